//! Command line of the controller: verbs, flags and their defaults.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow};
use axum::http::Uri;
use clap::{ArgAction, Parser, Subcommand};
use ovsdb_client::{Endpoint, Options, TlsOptions, nb};

use api::cluster_network::ClusterNetworkArgs;
use api::settings::{ApiAccessArgs, SettingsArgs};
use supervision::log::{self, LogArgs};

use crate::config::{Config, Features};
use crate::engine::VERIFY;
use crate::kubernetes::lease::Election;
use crate::kubernetes::{Access, parse_server};
use crate::run::Controller;
use crate::{certificates, cleanup, network_api};

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
    /// Removes what controller and node agents wrote into Kubernetes objects, and the objects that they made. For the end, when none
    /// of them runs any more.
    Cleanup(Box<Cleanup>),
}

#[derive(Debug, clap::Args)]
struct Cleanup {
    /// Kubeconfig file; without it the pod's service account is used.
    #[arg(long, env = "SLIPSTREAM_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// API server, as https://HOST[:PORT].
    #[arg(long, env = "SLIPSTREAM_API_SERVER", value_parser = parse_server)]
    api_server: Option<Uri>,
    /// Namespace of the lease, of the certificates, and of the pods whose end is waited for.
    #[arg(long, env = "SLIPSTREAM_LEASE_NAMESPACE", default_value = "kube-system")]
    lease_namespace: String,
    /// Name of the leader election lease.
    #[arg(long, env = "SLIPSTREAM_LEASE_NAME", default_value = "slipstream-controller")]
    lease_name: String,
    /// Remove nothing yet: wait until the pods that clean the nodes are there.
    #[arg(long)]
    prepare: bool,
    #[command(flatten)]
    log: LogArgs,
}

#[derive(Debug, clap::Args)]
struct Run {
    /// Kubeconfig file; without it the pod's service account is used.
    #[arg(long, env = "SLIPSTREAM_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// API server, as https://HOST[:PORT], in place of the one in the kubeconfig or the pod's environment. Needed in a pod when
    /// no other component serves the ClusterIP of the `kubernetes` service.
    #[arg(long, env = "SLIPSTREAM_API_SERVER", value_parser = parse_server)]
    api_server: Option<Uri>,
    #[command(flatten)]
    api_access: ApiAccessArgs,
    /// Northbound database servers: tcp:IP:PORT, ssl:IP:PORT or unix:PATH, separated by commas.
    #[arg(long, env = "SLIPSTREAM_NB")]
    nb: String,
    /// PEM file with the certificate authorities that sign the northbound database servers' certificates.
    #[arg(long, env = "SLIPSTREAM_NB_CA")]
    nb_ca: Option<PathBuf>,
    /// PEM file with the certificate that the controller shows to the northbound database.
    #[arg(long, env = "SLIPSTREAM_NB_CERT", requires = "nb_ca")]
    nb_cert: Option<PathBuf>,
    /// PEM file with the private key of that certificate.
    #[arg(long, env = "SLIPSTREAM_NB_KEY", requires = "nb_cert")]
    nb_key: Option<PathBuf>,
    /// Seconds without a message from the northbound database until an echo request is sent; after twice as many the
    /// connection is closed. 0 disables the probe.
    #[arg(long, env = "SLIPSTREAM_NB_PROBE_INTERVAL", default_value_t = 60)]
    nb_probe_interval: u64,
    /// Directory for the controller's own certificate, `ca.crt`, `tls.crt` and `tls.key`. With it the controller is also the
    /// certificate authority of OVN's databases: it keeps Secrets and a ConfigMap in the namespace of the lease, and signs nodes'
    /// requests.
    #[arg(long, env = "SLIPSTREAM_CERTIFICATES")]
    certificates: Option<PathBuf>,
    /// Wait for the Secrets of the two authorities, which somebody else makes, such as cert-manager.
    #[arg(long, env = "SLIPSTREAM_EXTERNAL_AUTHORITIES", default_value_t = false, action = ArgAction::Set)]
    external_authorities: bool,
    #[command(flatten)]
    network: ClusterNetworkArgs,
    /// Enforce NetworkPolicy objects. With `false` every pod can reach every pod.
    #[arg(long, env = "SLIPSTREAM_NETWORK_POLICY", default_value_t = true, action = ArgAction::Set)]
    network_policy: bool,
    /// Namespace that represents the nodes in policies: a peer whose namespace selector matches its labels includes the
    /// addresses from which nodes reach pods. Empty: no namespace does.
    #[arg(long, env = "SLIPSTREAM_HOST_NETWORK_NAMESPACE", default_value = "ovn-host-network")]
    host_network_namespace: String,
    /// Start although ovn-kubernetes left rows in the northbound database for features that this controller does not have, and
    /// leave those rows as they are. Without this flag the controller exits before it writes anything.
    #[arg(long, env = "SLIPSTREAM_ADOPT")]
    adopt: bool,
    /// Seconds between two verifications, which compare the whole northbound database and repair rows that differ.
    #[arg(
        long,
        env = "SLIPSTREAM_VERIFY_INTERVAL",
        default_value_t = VERIFY.as_secs(),
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    verify_interval: u64,
    /// Namespace of the leader election lease.
    #[arg(long, env = "SLIPSTREAM_LEASE_NAMESPACE", default_value = "kube-system")]
    lease_namespace: String,
    /// Name of the leader election lease.
    #[arg(long, env = "SLIPSTREAM_LEASE_NAME", default_value = "slipstream-controller")]
    lease_name: String,
    /// Use leader election: write to the northbound database only while holding the lease.
    #[arg(long, env = "SLIPSTREAM_LEADER_ELECT", default_value_t = true, action = ArgAction::Set)]
    leader_elect: bool,
    /// Address and port of the HTTP endpoints /metrics, /healthz and /readyz.
    #[arg(long, env = "SLIPSTREAM_METRICS_BIND_ADDRESS", default_value = "127.0.0.1:9409")]
    metrics_bind_address: SocketAddr,
    /// Address and port of an HTTP API for virtual networks (docs/virtual-networks.md#over-http); without it there is none. A loopback
    /// address, unless there is a certificate.
    #[arg(long, env = "SLIPSTREAM_NETWORK_API_BIND_ADDRESS")]
    network_api_bind_address: Option<SocketAddr>,
    /// PEM file with the certificate that this API shows, with its chain. Read again when it changes.
    #[arg(long, env = "SLIPSTREAM_NETWORK_API_CERT", requires = "network_api_key")]
    network_api_cert: Option<PathBuf>,
    /// PEM file with the private key of that certificate.
    #[arg(long, env = "SLIPSTREAM_NETWORK_API_KEY", requires = "network_api_cert")]
    network_api_key: Option<PathBuf>,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    settings: SettingsArgs,
}

impl Args {
    /// Runs the command until a signal or a fatal error. `warnings` are logged first.
    ///
    /// # Errors
    /// A flag is invalid, or the controller failed.
    pub fn run(self, warnings: &[String]) -> anyhow::Result<()> {
        let log = match &self.command {
            Command::Run(run) => &run.log,
            Command::Cleanup(cleanup) => &cleanup.log,
        };
        log::start(log)?;
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        // An error means that a provider is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().worker_threads(2).build()?;
        let result = runtime.block_on(async {
            match self.command {
                Command::Run(run) => run.controller()?.run().await,
                Command::Cleanup(cleanup) => {
                    let Cleanup { kubeconfig, api_server, lease_namespace, lease_name, prepare, log: _ } =
                        *cleanup;
                    let access = Access { kubeconfig, server: api_server, flags: ApiAccessArgs::default() };
                    let client = access.client().await?;
                    match prepare {
                        true => cleanup::prepare(client, &lease_namespace).await,
                        false => cleanup::run(client, &lease_namespace, &lease_name).await,
                    }
                }
            }
        });
        runtime.shutdown_timeout(Duration::from_secs(1));
        result
    }
}

impl Run {
    /// The controller with the settings of the flags.
    fn controller(self) -> anyhow::Result<Controller> {
        let Self {
            kubeconfig,
            api_server,
            api_access,
            nb,
            nb_ca,
            nb_cert,
            nb_key,
            nb_probe_interval,
            certificates,
            external_authorities,
            network:
                ClusterNetworkArgs {
                    cluster_subnets,
                    service_cidrs,
                    join_subnet,
                    masquerade_subnet,
                    mtu,
                    default_network,
                },
            network_policy,
            host_network_namespace,
            adopt,
            verify_interval,
            lease_namespace,
            lease_name,
            leader_elect,
            metrics_bind_address,
            network_api_bind_address,
            network_api_cert,
            network_api_key,
            log: _,
            settings: _,
        } = self;
        let network_api = network_api_bind_address
            .map(|address| network_api::Settings { address, tls: network_api_cert.zip(network_api_key) });
        network_api.as_ref().map_or(Ok(()), network_api::Settings::check)?;
        let config = Config {
            cluster_subnets,
            service_cidrs,
            join_subnets: join_subnet,
            masquerade_subnets: masquerade_subnet,
            mtu,
            host_network_namespace: Some(host_network_namespace).filter(|name| !name.is_empty()),
            default_network,
            features: Features::ALL,
        }
        .with_default_ranges();
        config.validate().context("address ranges")?;
        if !default_network {
            tracing::info!(
                "another plugin has the cluster's network (--default-network=false): pods get interfaces on virtual networks alone"
            );
        }
        if !network_policy {
            tracing::warn!("network policies are not enforced (--network-policy=false)");
        }
        let endpoints: Vec<Endpoint> = Endpoint::parse_list(&nb).with_context(|| format!("--nb {nb}"))?;
        let identity = identity();
        Ok(Controller {
            nb: Options {
                // Each member of a Raft cluster keeps its own locks: if one address led two controllers to different members, both
                // would hold the lock. A standalone server counts as leader.
                leader_only: true,
                endpoints,
                database: nb::DATABASE.to_owned(),
                tls: tls_options(nb_ca, nb_cert, nb_key)?,
                probe_interval: Duration::from_secs(nb_probe_interval),
                ..Options::default()
            },
            certificates: certificates.map(|directory| certificates::Settings {
                namespace: lease_namespace.clone(),
                directory,
                create: !external_authorities,
            }),
            access: Access { kubeconfig, server: api_server, flags: api_access },
            config,
            network_policy,
            adopt,
            verify: Duration::from_secs(verify_interval),
            election: leader_elect.then(|| Election {
                namespace: lease_namespace,
                name: lease_name,
                identity: identity.clone(),
            }),
            identity,
            address: metrics_bind_address,
            network_api,
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    fn controller(args: &[&str]) -> anyhow::Result<Controller> {
        let all = ["slipstream-controller", "run", "--nb", "tcp:192.0.2.1:6641"].iter().chain(args);
        match Args::try_parse_from(all)?.command {
            Command::Run(run) => run.controller(),
            Command::Cleanup(_) => anyhow::bail!("not asked for"),
        }
    }

    #[test]
    fn one_address_of_the_database_is_taken_for_the_leaders_only_too() {
        let controller = controller(&[]).unwrap();
        assert!(controller.nb.leader_only);
        assert_eq!(controller.nb.endpoints.len(), 1);
    }

    #[test]
    fn the_databases_probe_is_a_flag() {
        let interval = |args: &[&str]| controller(args).map(|controller| controller.nb.probe_interval);
        assert_eq!(interval(&[]).unwrap(), Duration::from_secs(60));
        assert_eq!(interval(&["--nb-probe-interval", "0"]).unwrap(), Duration::ZERO);
        assert!(interval(&["--nb-probe-interval", "soon"]).is_err());
    }

    #[test]
    fn the_api_server_is_a_flag() {
        let server = controller(&["--api-server", "https://192.0.2.1:6443"]).unwrap().access.server.unwrap();
        assert_eq!(server.to_string(), "https://192.0.2.1:6443/");
        assert!(controller(&["--api-server", "192.0.2.1"]).is_err());
    }

    /// A command line of ovn-kubernetes, as the process would read it.
    fn old(line: &str) -> Result<(Controller, Vec<String>), String> {
        use api::settings::{self, Program, Sources};
        let argv = std::iter::once("ovnkube").chain(line.split_whitespace()).map(Into::into).collect();
        let read = settings::read_from::<Args>(Program::Controller, argv, &Sources::default());
        let settings = read.map_err(|error| error.to_string())?;
        let Command::Run(run) = settings.args.command else { panic!("not `run`") };
        Ok((run.controller().map_err(|error| format!("{error:#}"))?, settings.warnings))
    }

    #[test]
    fn the_command_line_of_an_ovnkube_master_starts_the_controller() {
        let line = "-k8s-kubeconfig kubeconfig.yaml -loglevel=4 -k8s-apiserver=http://192.0.2.1:8080 \
                    -logfile=/var/log/ovn-kubernetes/ovnkube.log -init-master=n1 -init-node=n1 \
                    -cluster-subnets=192.168.0.0/16 -k8s-service-cidr=172.16.1.0/24 -nodeport -init-gateways -gateway-local \
                    -k8s-token=secret -nb-address=tcp:192.0.2.1:6641 -sb-address=tcp:192.0.2.1:6642"
            .replace('\\', " ");
        let (controller, warnings) = old(&line).unwrap();
        assert_eq!(controller.config.cluster_subnets[0].to_string(), "192.168.0.0/16/24");
        assert_eq!(controller.config.service_cidrs[0].to_string(), "172.16.1.0/24");
        assert_eq!(controller.access.server.unwrap().to_string(), "http://192.0.2.1:8080/");
        assert_eq!(controller.access.kubeconfig.unwrap().to_str(), Some("kubeconfig.yaml"));
        assert_eq!(controller.access.flags.api_token.as_deref(), Some("secret"));
        assert_eq!(controller.nb.endpoints.len(), 1);
        assert!(warnings.iter().any(|warning| warning.contains("write --nb")), "{warnings:?}");
    }

    #[test]
    fn the_commands_before_ovnkube_start_the_controller_too() {
        let words =
            "--cluster-ip-subnet=192.168.0.0/16 --node-name=kube-master --nb-address=tcp:192.0.2.1:6641";
        let (controller, _) = old(&format!("master-init {words}")).unwrap();
        assert_eq!(controller.config.cluster_subnets[0].to_string(), "192.168.0.0/16/24");
        let refused = old(&format!("master-init {words} --master-switch-subnet=192.168.1.0/24")).unwrap_err();
        assert!(refused.contains("k8s.ovn.org/node-subnets"), "{refused}");
        let watcher = "--overlay --pidfile --log-file -vfile:info -vconsole:emer --detach --nb-address=tcp:192.0.2.1:6641";
        let (_, warnings) = old(watcher).unwrap();
        assert_eq!(warnings.iter().filter(|warning| warning.contains("ignored")).count(), 5, "{warnings:?}");
    }
}
