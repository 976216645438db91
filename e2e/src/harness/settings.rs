//! Settings of a suite's clusters, from command line and environment.

use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Result, anyhow};
use testbed::cluster::Bed;
use testbed::cluster::config::Config;
use testbed::ui::say;

use super::jobs::Jobs;
use super::stage::message;

/// How often the controllers of clusters under test compare the northbound database with what they want, seconds, unless a
/// suite asks for more: the end of each cluster waits for two comparisons.
const VERIFY_INTERVAL: u32 = 2;

/// Which clusters a program uses, and what becomes of them.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Settings {
    /// Leave the cluster running.
    #[arg(long, global = true)]
    pub keep: bool,
    /// Use a cluster that runs already, by its name, and leave it.
    #[arg(long, global = true, value_name = "NAME")]
    pub cluster: Option<String>,
    /// Name of the cluster to bring up, in place of the suite's own.
    #[arg(long, global = true)]
    pub name: Option<String>,
}

impl Settings {
    /// From `SLIPSTREAM_KEEP` and `SLIPSTREAM_CLUSTER`, for test programs, whose flags are those of the harness.
    #[must_use]
    pub fn from_environment() -> Self {
        let set = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        Self { keep: set("SLIPSTREAM_KEEP").is_some(), cluster: set("SLIPSTREAM_CLUSTER"), name: None }
    }

    /// Name of the suite's cluster.
    #[must_use]
    pub fn name_or(&self, usual: &str) -> String {
        self.name.clone().unwrap_or_else(|| usual.to_owned())
    }

    /// Whether clusters go on running in the end.
    #[must_use]
    pub fn leaves_clusters(&self) -> bool {
        self.keep || self.cluster.is_some()
    }

    /// Plays on a cluster of that description, brought up for it in place of one that an earlier run has left, and takes it
    /// down; or on the one that runs already.
    ///
    /// # Errors
    /// The cluster does not come up, the play fails, or something is left in the end.
    pub fn on_cluster<C: Clone>(
        &self,
        config: Config,
        jobs: &mut Jobs<C>,
        play: impl FnOnce(&Bed, &mut Jobs<C>) -> Result<()>,
    ) -> Result<()> {
        let bed = match &self.cluster {
            Some(name) => Bed::open(name)?,
            None => bring_up(often_verified(config))?,
        };
        // A cluster goes when a test of it panics, too.
        let outcome = catch_unwind(AssertUnwindSafe(|| play(&bed, jobs)))
            .unwrap_or_else(|panic| Err(anyhow!("panicked: {}", message(&*panic))));
        let good = outcome.is_ok() && jobs.are_good();
        self.finish(bed, good).and(outcome)
    }

    /// Takes a cluster down, unless it is to be kept.
    ///
    /// # Errors
    /// Something is left of it, or it was not as its controller wants it.
    pub fn finish(&self, bed: Bed, good: bool) -> Result<()> {
        if self.leaves_clusters() {
            say(format_args!("the cluster {} goes on running", bed.config().name));
            return Ok(());
        }
        bed.finish(good)
    }
}

/// A cluster without a controller of its own has one whose load is measured, and keeps its interval.
fn often_verified(config: Config) -> Config {
    if !config.plugin {
        return config;
    }
    let verify_interval = config.verify_interval.min(VERIFY_INTERVAL);
    Config { verify_interval, ..config }
}

/// Brings a cluster up, in place of one of its name that an earlier run has left.
///
/// # Errors
/// The old one does not go, or the new one does not come up.
pub fn bring_up(config: Config) -> Result<Bed> {
    if let Some(old) = Bed::rest(&config.name)? {
        say(format_args!("taking down the cluster {} of an earlier run", config.name));
        old.down()?;
    }
    Bed::up(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controller_is_asked_often_unless_its_load_is_measured() {
        let usual = Config::new("t", 1).unwrap();
        assert_eq!(often_verified(usual.clone()).verify_interval, VERIFY_INTERVAL);
        let without = Config { plugin: false, ..usual.clone() };
        assert_eq!(often_verified(without).verify_interval, usual.verify_interval);
    }
}
