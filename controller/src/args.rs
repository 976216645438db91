//! The command line, and what is done with it: everything is connected here.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::{ArgAction, Parser, Subcommand};
use ipnet::IpNet;
use ovsdb_client::{Client, Endpoint, Options, TlsOptions, nb};
use tokio::sync::{mpsc, watch};

use crate::admin;
use crate::config::{ClusterSubnet, Config, Features};
use crate::engine::{Engine, Outlets, Reason};
use crate::kubernetes::lease::Election;
use crate::kubernetes::{self, annotate, events};
use crate::metrics::Metrics;

/// Reports of the watches that wait for the engine. When it is full the watches wait, and the API server buffers.
const INPUT_QUEUE: usize = 4096;
/// How often to say that the database cannot be reached, while starting.
const CONNECT_REPORT: Duration = Duration::from_secs(10);

/// Slipstream's controller: writes OVN's northbound database from Kubernetes objects.
#[derive(Debug, Parser)]
#[command(name = "slipstream-controller", version)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the controller.
    Run(Box<Run>),
}

#[derive(Debug, clap::Args)]
struct Run {
    /// Kubeconfig file; without it the pod's service account.
    #[arg(long, env = "SLIPSTREAM_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// Northbound database: tcp:IP:PORT, ssl:IP:PORT or unix:PATH; several separated by commas.
    #[arg(long, env = "SLIPSTREAM_NB")]
    nb: String,
    /// Certificate authority of the northbound database (PEM).
    #[arg(long, env = "SLIPSTREAM_NB_CA")]
    nb_ca: Option<PathBuf>,
    /// Our certificate for the northbound database (PEM).
    #[arg(long, env = "SLIPSTREAM_NB_CERT", requires = "nb_ca")]
    nb_cert: Option<PathBuf>,
    /// Key of the certificate (PEM).
    #[arg(long, env = "SLIPSTREAM_NB_KEY", requires = "nb_cert")]
    nb_key: Option<PathBuf>,
    /// Pod ranges: CIDR/HOSTLEN, separated by commas.
    #[arg(
        long,
        env = "SLIPSTREAM_CLUSTER_SUBNETS",
        value_delimiter = ',',
        default_value = "10.244.0.0/16/24"
    )]
    cluster_subnets: Vec<ClusterSubnet>,
    /// Service ranges, separated by commas.
    #[arg(long, env = "SLIPSTREAM_SERVICE_CIDRS", value_delimiter = ',', default_value = "10.96.0.0/12")]
    service_cidrs: Vec<IpNet>,
    /// Range of the join switch, one for each family; fd98::/64 where pods have IPv6 and none is given.
    #[arg(long, env = "SLIPSTREAM_JOIN_SUBNET", value_delimiter = ',', default_value = "100.64.0.0/16")]
    join_subnet: Vec<IpNet>,
    /// Masquerade range, one for each family; fd69::/125 where pods have IPv6 and none is given.
    #[arg(
        long,
        env = "SLIPSTREAM_MASQUERADE_SUBNET",
        value_delimiter = ',',
        default_value = "169.254.169.0/29"
    )]
    masquerade_subnet: Vec<IpNet>,
    /// MTU of pods, bytes.
    #[arg(long, env = "SLIPSTREAM_MTU", default_value_t = 1400)]
    mtu: u16,
    /// Whether network policies are enforced; without that every pod can be reached.
    #[arg(long, env = "SLIPSTREAM_NETWORK_POLICY", default_value_t = true, action = ArgAction::Set)]
    network_policy: bool,
    /// The namespace that stands for the nodes: a policy's peer that selects it by labels alone takes the addresses from which
    /// the nodes reach pods. Empty: none does.
    #[arg(long, env = "SLIPSTREAM_HOST_NETWORK_NAMESPACE", default_value = "ovn-host-network")]
    host_network_namespace: String,
    /// Work beside rows that ovn-kubernetes has left in the northbound database for features that this controller does not
    /// have, and leave them as they are. Without it such rows end the controller before it writes anything.
    #[arg(long, env = "SLIPSTREAM_ADOPT")]
    adopt: bool,
    /// Namespace of the lease.
    #[arg(long, env = "SLIPSTREAM_LEASE_NAMESPACE", default_value = "kube-system")]
    lease_namespace: String,
    /// Name of the lease.
    #[arg(long, env = "SLIPSTREAM_LEASE_NAME", default_value = "slipstream-controller")]
    lease_name: String,
    /// Whether to run only while holding the lease.
    #[arg(long, env = "SLIPSTREAM_LEADER_ELECT", default_value_t = true, action = ArgAction::Set)]
    leader_elect: bool,
    /// Where /metrics, /healthz and /readyz are served.
    #[arg(long, env = "SLIPSTREAM_METRICS_BIND_ADDRESS", default_value = "127.0.0.1:9409")]
    metrics_bind_address: SocketAddr,
}

impl Args {
    /// Does what the command line says, until a signal or a fatal error.
    pub fn run(self) -> anyhow::Result<()> {
        tracing_subscriber::fmt()
            .with_env_filter(
                tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_unset| "info".into()),
            )
            .with_writer(std::io::stderr)
            .init();
        // An error means that a provider is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let Command::Run(run) = self.command;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().worker_threads(2).build()?;
        let result = runtime.block_on(run.run());
        runtime.shutdown_timeout(Duration::from_secs(1));
        result
    }
}

impl Run {
    async fn run(self) -> anyhow::Result<()> {
        let Self {
            kubeconfig,
            nb,
            nb_ca,
            nb_cert,
            nb_key,
            cluster_subnets,
            service_cidrs,
            join_subnet,
            masquerade_subnet,
            mtu,
            network_policy,
            host_network_namespace,
            adopt,
            lease_namespace,
            lease_name,
            leader_elect,
            metrics_bind_address,
        } = self;
        let config = Config {
            cluster_subnets,
            service_cidrs,
            join_subnets: join_subnet,
            masquerade_subnets: masquerade_subnet,
            mtu,
            host_network_namespace: Some(host_network_namespace).filter(|name| !name.is_empty()),
            features: Features::ALL,
        }
        .with_default_ranges();
        config.validate().context("address ranges")?;
        if !network_policy {
            tracing::warn!("network policies are not enforced (--network-policy=false)");
        }
        let tls = tls_options(nb_ca, nb_cert, nb_key)?;
        let endpoints: Vec<Endpoint> = Endpoint::parse_list(&nb).with_context(|| format!("--nb {nb}"))?;
        let kube = kubernetes::client(kubeconfig.as_deref()).await?;

        let metrics = Metrics::default();
        let (reason, reasons) = watch::channel(Some("starting".to_owned()));
        admin::start(metrics_bind_address, metrics.clone(), reasons).await?;

        let client = Client::new(Options {
            leader_only: endpoints.len() > 1,
            endpoints,
            database: nb::DATABASE.to_owned(),
            tls,
            ..Options::default()
        });
        let identity = identity();
        let election = Election { namespace: lease_namespace, name: lease_name, identity: identity.clone() };
        let mut stop = pin_signals()?;
        let work = lead(
            &client,
            &kube,
            config,
            network_policy,
            adopt,
            &election,
            leader_elect,
            &metrics,
            reason,
            identity,
        );
        let result = tokio::select! {
            result = work => result,
            signal = &mut stop => {
                tracing::info!(signal, "ending");
                Ok(())
            }
        };
        if leader_elect {
            election.release(kube).await;
        }
        result
    }
}

fn tls_options(
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
) -> anyhow::Result<Option<TlsOptions>> {
    match (ca, cert, key) {
        (None, None, None) => Ok(None),
        (Some(ca), Some(cert), Some(key)) => Ok(Some(TlsOptions { ca, cert, key })),
        _ => Err(anyhow!("--nb-ca, --nb-cert and --nb-key are needed together")),
    }
}

/// Unique to this process: host name, process id and start time.
fn identity() -> String {
    let host = std::env::var("HOSTNAME").ok().or_else(|| {
        std::fs::read_to_string("/proc/sys/kernel/hostname").ok().map(|name| name.trim().to_owned())
    });
    format!("{}_{}", host.unwrap_or_default(), uuid::Uuid::new_v4())
}

fn pin_signals() -> anyhow::Result<std::pin::Pin<Box<dyn Future<Output = &'static str> + Send>>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).context("signal handler")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("signal handler")?;
    Ok(Box::pin(async move {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    }))
}

/// Becomes leader, connects to the database, and works until the leadership or the engine ends.
#[expect(clippy::too_many_arguments, reason = "the one place where everything is connected")]
async fn lead(
    client: &Client,
    kube: &kube::Client,
    config: Config,
    network_policy: bool,
    adopt: bool,
    election: &Election,
    elect: bool,
    metrics: &Metrics,
    reason: watch::Sender<Reason>,
    identity: String,
) -> anyhow::Result<()> {
    let (held, mut holding) = watch::channel(!elect);
    if elect {
        reason.send_replace(Some(format!("not the leader (lease {}/{})", election.namespace, election.name)));
        tokio::spawn(election.clone().run(kube.clone(), held, metrics.clone()));
        holding.wait_for(|held| *held).await.context("leader election ended")?;
    }
    metrics.leader.set(1);
    while let Err(error) = client.connected(CONNECT_REPORT).await {
        tracing::warn!(%error, "northbound database cannot be reached; trying on");
        reason.send_replace(Some(error.to_string()));
        if !*holding.borrow() {
            return Err(anyhow!("leadership lost"));
        }
    }
    let (patches, patch_queue) = mpsc::unbounded_channel();
    let (notices, notice_queue) = mpsc::unbounded_channel();
    let (done, annotated) = mpsc::unbounded_channel();
    let (inputs, input_queue) = mpsc::channel(INPUT_QUEUE);
    let outlets = Outlets { patches, notices };
    let engine = Engine::new(client.clone(), config, metrics.clone(), outlets, reason)
        .await
        .context("northbound database")?;
    let foreign = engine.foreign();
    metrics.foreign(&foreign);
    foreign.check(adopt)?;
    tokio::spawn(annotate::run(kube.clone(), patch_queue, done, metrics.clone()));
    tokio::spawn(events::run(kube.clone(), identity, notice_queue));
    kubernetes::watch::start(kube, &inputs, metrics, network_policy);
    let lost = async {
        if elect {
            // An error means that the election has ended, which is the same.
            let _ = holding.wait_for(|held| !*held).await;
        } else {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = engine.run(input_queue, annotated) => Err(anyhow!("the engine ended")),
        () = lost => {
            metrics.leader.set(0);
            Err(anyhow!("leadership lost"))
        }
    }
}
