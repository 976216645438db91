//! Connects everything: which tasks and channels there are, and how the process ends.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, anyhow};
use ovsdb_client::{Client, Options};
use supervision::{Ends, Tasks};
use tokio::sync::{mpsc, oneshot, watch};

use crate::admin;
use crate::certificates;
use crate::config::Config;
use crate::engine::{Engine, Input, Leadership, Outlets, Reason};
use crate::kubernetes::lease::Election;
use crate::kubernetes::watch::Interest;
use crate::kubernetes::{self, Access, annotate, events, onap_networks, reports};
use crate::metrics::Metrics;
use crate::network_api;
use crate::state::Annotated;

/// Reports of the watches that wait for the engine. If it is full, the watches wait and the API server buffers.
const INPUT_QUEUE: usize = 4096;
/// Interval of reports that the database cannot be reached, at the start.
const CONNECT_REPORT: Duration = Duration::from_secs(10);
/// Time limit for giving up the lease at the end.
const RESIGNATION: Duration = Duration::from_secs(3);
/// Name of the lease's task.
const LEASE: &str = "lease";

/// The settings of a controller.
#[derive(Debug)]
pub struct Controller {
    /// The northbound database.
    pub nb: Options,
    /// The certificates of OVN's databases, if this process makes them.
    pub certificates: Option<certificates::Settings>,
    /// The API server.
    pub access: Access,
    /// What is planned by: networks, names and features.
    pub config: Config,
    /// Whether network policies are enforced.
    pub network_policy: bool,
    /// Whether the database may hold rows of features that the controller does not have.
    pub adopt: bool,
    /// The interval at which everything is verified.
    pub verify: Duration,
    /// The lease that decides which process leads; without one this process leads.
    pub election: Option<Election>,
    /// Unique to this process.
    pub identity: String,
    /// Address of the administrative server.
    pub address: SocketAddr,
    /// Where virtual networks are made and changed over HTTP.
    pub network_api: Option<network_api::Settings>,
}

impl Controller {
    /// Runs until a signal, or until one of its tasks ends, which is an error with the task's name and cause.
    ///
    /// # Errors
    /// A part could not be started, or a task ended.
    pub async fn run(self) -> anyhow::Result<()> {
        let mut stop = std::pin::pin!(signal()?);
        let (tasks, mut ends) = Tasks::new();
        let (resign, resigned) = oneshot::channel();
        // Kept, so that the end of the engine is reported, and not the end of tasks that run out of work because of it.
        let _outlets = self.start(&tasks, resigned).await?;
        let result = tokio::select! {
            ended = ends.next() => Err(ended.into()),
            signal = &mut stop => {
                tracing::info!(signal, "signal received; exiting");
                Ok(())
            }
        };
        // Fails without leader election, or when the election has ended.
        if resign.send(()).is_ok() {
            let _ = tokio::time::timeout(RESIGNATION, resigned_from(&mut ends)).await;
        }
        result
    }

    async fn start(self, tasks: &Tasks, resigned: oneshot::Receiver<()>) -> anyhow::Result<Outlets> {
        let Self {
            nb,
            certificates,
            access,
            config,
            network_policy,
            adopt,
            verify,
            election,
            identity,
            address,
            network_api,
        } = self;
        let kube = access.client().await?;
        let metrics = Metrics::default();
        let listener = admin::bind(address).await?;
        if let Some(settings) = network_api {
            tasks.spawn("network-api", network_api::bind(&settings, access.config().await?, &metrics).await?);
        }
        let leadership = match election {
            Some(election) => {
                let (held, holding) = watch::channel(false);
                tasks.spawn(LEASE, election.run(kube.clone(), held, resigned, metrics.clone()));
                Leadership::elected(holding)
            }
            None => Leadership::always(),
        };
        let (reason, reasons) = watch::channel(Some("starting".to_owned()));
        let pages = admin::pages(metrics.clone(), reasons, leadership.clone());
        #[cfg(feature = "test-hooks")]
        let pages = pages.merge(admin::test_hooks(tasks.clone()));
        tasks.spawn("log-level", supervision::log::follow_signal());
        tasks.spawn("admin", admin::serve(listener, pages));

        // Why these are unbounded is described at their receivers.
        let (patches, patch_queue) = mpsc::unbounded_channel();
        let (forgotten, forgotten_queue) = mpsc::unbounded_channel();
        let (notices, notice_queue) = mpsc::unbounded_channel();
        let (networks, network_reports) = mpsc::unbounded_channel();
        let (claims, claim_reports) = mpsc::unbounded_channel();
        let (done, annotated) = mpsc::unbounded_channel();
        let (inputs, input_queue) = mpsc::channel(INPUT_QUEUE);
        let ends = annotate::Ends {
            patches: patch_queue,
            forgotten: forgotten_queue,
            done,
            notices: notices.clone(),
        };
        tasks.spawn("annotations", annotate::run(kube.clone(), ends, metrics.clone()));
        tasks.spawn("events", events::run(kube.clone(), identity, notice_queue, metrics.clone()));
        tasks.spawn(
            "network-status",
            reports::run(kube.clone(), network_reports, notices.clone(), metrics.clone()),
        );
        tasks.spawn(
            "claim-status",
            reports::run(kube.clone(), claim_reports, notices.clone(), metrics.clone()),
        );
        tasks.spawn(
            "onap-networks",
            onap_networks::run(kube.clone(), leadership.clone(), notices.clone(), metrics.clone()),
        );
        let interest = Interest { default_network: config.default_network, network_policy };
        kubernetes::watch::start(tasks, &kube, &inputs, &metrics, interest);
        if let Some(settings) = certificates {
            certificates::start(tasks, &kube, settings);
        }
        let client = Client::new(nb);
        tasks.spawn("nb-session", session(client.clone()));
        let outlets = Outlets { patches, forgotten, notices, networks, claims };
        let work =
            Work { client, config, metrics, outlets: outlets.clone(), leadership, reason, adopt, verify };
        tasks.thread("engine", move |stop| work.on_thread(stop, input_queue, annotated));
        Ok(outlets)
    }
}

/// The parts of the engine.
struct Work {
    client: Client,
    config: Config,
    metrics: Metrics,
    outlets: Outlets,
    leadership: Leadership,
    reason: watch::Sender<Reason>,
    adopt: bool,
    verify: Duration,
}

/// How often the engine's thread checks whether it must end.
const LOOK_FOR_STOP: Duration = Duration::from_millis(100);

impl Work {
    /// Runs on a thread of its own: planning everything takes some time, and neither the lease nor the database session may
    /// wait for it.
    fn on_thread(
        self,
        stop: &AtomicBool,
        inputs: mpsc::Receiver<Input>,
        annotated: mpsc::UnboundedReceiver<Annotated>,
    ) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let stopped = async {
            while !stop.load(Ordering::Relaxed) {
                tokio::time::sleep(LOOK_FOR_STOP).await;
            }
        };
        runtime.block_on(async {
            tokio::select! {
                ended = self.run(inputs, annotated) => ended,
                () = stopped => Ok(()),
            }
        })
    }

    /// Waits for the database and runs the engine on it.
    async fn run(
        self,
        inputs: mpsc::Receiver<Input>,
        annotated: mpsc::UnboundedReceiver<Annotated>,
    ) -> anyhow::Result<()> {
        let Self { client, config, metrics, outlets, leadership, reason, adopt, verify } = self;
        while let Err(error) = client.connected(CONNECT_REPORT).await {
            tracing::warn!(%error, "northbound database cannot be reached; retrying");
            reason.send_replace(Some(error.to_string()));
        }
        let engine = Engine::new(client, config, metrics.clone(), outlets, leadership, reason)
            .await
            .context("northbound database")?
            .verify_every(verify);
        let foreign = engine.foreign();
        metrics.foreign(&foreign);
        foreign.check(adopt)?;
        engine.run(inputs, annotated).await.context("northbound database")
    }
}

/// Lasts as long as the task that holds the database session. That task's end cannot be observed otherwise.
async fn session(client: Client) -> anyhow::Result<()> {
    let mut status = client.status();
    while status.changed().await.is_ok() {}
    Err(anyhow!("the task of the session has ended"))
}

async fn resigned_from(ends: &mut Ends) {
    while ends.next().await.name != LEASE {}
}

fn signal() -> anyhow::Result<impl Future<Output = &'static str>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).context("signal handler")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("signal handler")?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    })
}
