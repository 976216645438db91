//! The controller's process, as an operator sees it: its pages, its log, its lease, its memory and its time.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::api::Api;

use crate::process::Process;
use testbed::cluster::config::CONTROLLER_PORT;
use testbed::cluster::{Bed, controller_arguments};
use testbed::exec;
use testbed::metrics::Metrics;

const PROCESS: &str = "controller";
const PREFIX: &str = "slipstream_controller";

/// The controller of a cluster.
#[derive(Clone, Copy, Debug)]
pub(super) struct Controller<'a> {
    bed: &'a Bed,
}

/// Who leads: holder and the number of changes.
pub(super) type Holder = (Option<String>, Option<i32>);

impl<'a> Controller<'a> {
    /// The one that the cluster has.
    pub(super) fn of(bed: &'a Bed) -> Self {
        Self { bed }
    }

    /// Starts one, of this program if it is given, else the one beside the test bed's.
    pub(super) fn start(bed: &'a Bed, program: Option<PathBuf>) -> Result<Self> {
        let config = bed.config();
        let program = program.unwrap_or_else(|| config.program("slipstream-controller"));
        let program = fs::canonicalize(&program).with_context(|| format!("{}", program.display()))?;
        let argv: Vec<String> = [program.display().to_string(), "run".into()]
            .into_iter()
            .chain(controller_arguments(config))
            .collect();
        let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
        bed.host("central").start(PROCESS, &argv, &[])?;
        Ok(Self { bed })
    }

    /// Ends it with SIGKILL.
    pub(super) fn kill(self) -> Result<()> {
        self.bed.host("central").kill(PROCESS)
    }

    /// Starts it as before.
    pub(super) fn restart(self) -> Result<()> {
        self.bed.host("central").restart(PROCESS)
    }

    /// What it counts.
    pub(super) fn metrics(self) -> Result<Metrics> {
        self.bed.page("central", CONTROLLER_PORT, "/metrics").map(Metrics::new)
    }

    /// One figure of it, whose name has the usual prefix; an error if it is not there.
    pub(super) fn metric(self, name: &str) -> Result<u64> {
        let name = format!("{PREFIX}_{name}");
        self.metrics()?.find(&name, &[])?.with_context(|| format!("the controller shows no metric {name}"))
    }

    /// Fails unless it leads and is ready, so that all is compared and written.
    pub(super) fn is_settled(self) -> Result<()> {
        self.bed.page("central", CONTROLLER_PORT, "/readyz").context("/readyz")?;
        ensure!(self.metric("leader")? == 1, "it does not lead");
        Ok(())
    }

    /// Waits until it is settled; fails permanently if the process has ended.
    pub(super) async fn settled(self, limit: Duration) -> Result<()> {
        let end = Instant::now() + exec::patient(limit);
        while let Err(error) = self.is_settled() {
            self.bed.host("central").check_running(PROCESS)?;
            ensure!(Instant::now() < end, "the controller is not settled after {limit:?}: {error:#}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    fn process(self) -> Result<Process> {
        Process::of(self.bed, "central", PROCESS)
    }

    /// Its number inside the host, the same as long as it is the same process.
    pub(super) fn pid(self) -> Result<i32> {
        Ok(self.process()?.pid)
    }

    /// The most memory that it ever had, in MB (10^6 bytes).
    pub(super) fn peak_megabytes(self) -> Result<u64> {
        Ok(self.process()?.peak_kb()? * 1024 / 1_000_000)
    }

    /// Time of a processor that it has used so far.
    pub(super) fn used(self) -> Result<Duration> {
        self.process()?.used()
    }

    /// Where its log ends now.
    pub(super) fn log_length(self) -> usize {
        fs::read(self.bed.config().log("central", PROCESS)).map_or(0, |text| text.len())
    }

    /// Fails if the log has a line with these words from there on.
    pub(super) fn never_said(self, from: usize, words: &str) -> Result<()> {
        let text = fs::read(self.bed.config().log("central", PROCESS))?;
        let text = String::from_utf8_lossy(text.get(from..).unwrap_or_default()).into_owned();
        match text.lines().find(|line| line.contains(words)) {
            Some(line) => bail!("it said {line:?}"),
            None => Ok(()),
        }
    }

    /// Who has the lease.
    pub(super) async fn holder(self, client: &Client) -> Result<Holder> {
        let lease =
            Api::<Lease>::namespaced(client.clone(), "kube-system").get("slipstream-controller").await?;
        let spec = lease.spec.context("a lease without a spec")?;
        Ok((spec.holder_identity, spec.lease_transitions))
    }

    /// Waits until it has compared all that is wanted with all that the database holds once more, and fails unless
    /// nothing differed.
    pub(super) async fn verified(self, limit: Duration) -> Result<String> {
        let total = "nb_verifications_total";
        let before = self.metric(total)?;
        let end = Instant::now() + exec::patient(limit);
        while self.metric(total)? == before {
            ensure!(Instant::now() < end, "it has verified nothing for {limit:?}");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        let differences = self.metric("nb_differences")?;
        ensure!(differences == 0, "{differences} differences");
        Ok(format!("verification {}: 0 differences", self.metric(total)?))
    }
}

/// What else the machine does: the load averages.
pub(super) fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}
