//! Whether the northbound database holds what the controller wants, by the controller's own comparison, which changes
//! nothing: it makes one every few seconds and exports what came of it.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::Bed;
use super::config::{CONTROLLER_PORT, Install};
use crate::exec;
use crate::metrics::Metrics;

const MADE: &str = "slipstream_controller_nb_verifications_total";
const NOW: &str = "slipstream_controller_nb_differences";
const EVER: &str = "slipstream_controller_nb_differences_found_total";

/// What the controller has exported about its comparisons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Verified {
    /// How many it has made since it was started.
    made: u64,
    /// Differences that the last one found.
    now: u64,
    /// Differences that all of them found together.
    ever: u64,
}

impl Verified {
    fn read(metrics: &Metrics) -> Result<Self> {
        let value = |name| {
            metrics.find(name, &[])?.with_context(|| format!("the controller exports no metric {name}"))
        };
        Ok(Self { made: value(MADE)?, now: value(NOW)?, ever: value(EVER)? })
    }

    fn is_clean(self) -> Result<String> {
        let Self { made, now, ever } = self;
        ensure!(
            now == 0 && ever == 0,
            "the northbound database differs from what the controller wants in {now} places, and did in {ever} in all \
             {made} comparisons"
        );
        Ok(format!("{made} comparisons found no difference"))
    }
}

impl Bed {
    /// Waits for a comparison that began after now, and fails if it, or one since the controller's start, found a
    /// difference.
    pub fn verified(&self) -> Result<String> {
        let host = self.leader_host()?;
        let read = || {
            self.page(&host, CONTROLLER_PORT, "/metrics")
                .map(Metrics::new)
                .and_then(|page| Verified::read(&page))
        };
        let mut before = read()?;
        let interval = Duration::from_secs(self.config.verify_interval.into());
        // One may be under way, and says nothing about what was changed since it began.
        let limit = interval * 2 + Duration::from_secs(30);
        let after = exec::retry(limit, "the controller compares the northbound database", || {
            let now = read()?;
            if now.made < before.made {
                // It was started again and counts from the beginning.
                before = now;
            }
            if now.made < before.made + 2 {
                std::thread::sleep(Duration::from_millis(200));
                bail!("{} comparisons so far", now.made);
            }
            Ok(now)
        })?;
        after.is_clean()
    }

    /// The host of the controller that leads.
    fn leader_host(&self) -> Result<String> {
        if self.config.install == Install::Programs {
            return Ok("central".to_owned());
        }
        let path = "jsonpath={.spec.holderIdentity}";
        let holder =
            self.kubectl(&["-n", "kube-system", "get", "lease", "slipstream-controller", "-o", path])?;
        // Its host's name, `_`, and what makes it unique.
        holder.split_once('_').map(|(host, _)| host.to_owned()).with_context(|| format!("leader {holder:?}"))
    }

    /// As [`Self::verified`], at the end of a run, if a controller runs.
    pub(super) fn verified_at_end(&self) -> Result<()> {
        if !self.config.plugin {
            return Ok(());
        }
        let said = self.verified().map_err(|error| anyhow!("at the end of the run: {error:#}"))?;
        crate::ui::say(format_args!("NB is as the controller wants it: {said}"));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(now: u64, ever: u64) -> Metrics {
        Metrics::new(format!("# TYPE {NOW} gauge\n{NOW} {now}\n{EVER} {ever}\n{MADE} 7\n"))
    }

    #[test]
    fn nothing_found_ever_is_clean() {
        assert_eq!(
            Verified::read(&page(0, 0)).unwrap().is_clean().unwrap(),
            "7 comparisons found no difference"
        );
    }

    #[test]
    fn a_difference_that_was_repaired_fails_too() {
        for (now, ever) in [(1, 1), (0, 3)] {
            let error = Verified::read(&page(now, ever)).unwrap().is_clean().unwrap_err().to_string();
            assert!(
                error.contains(&format!("in {now} places")) && error.contains(&format!("in {ever} in all")),
                "{error}"
            );
        }
    }

    #[test]
    fn a_metric_that_is_not_there_is_an_error() {
        let without = Metrics::new(format!("{NOW} 0\n{MADE} 7\n"));
        assert!(Verified::read(&without).unwrap_err().to_string().contains(EVER));
    }
}
