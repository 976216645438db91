//! Trials that share a stage.

use std::fmt;
use std::time::Duration;

use anyhow::Result;

use super::jobs::{Jobs, Orders};
use super::settings::Settings;

/// One trial: its name, how long it may take, and what the suite knows it by.
#[derive(Clone, Debug)]
pub struct Case<C> {
    name: String,
    limit: Duration,
    case: C,
}

impl<C> Case<C> {
    /// A trial. `limit` is without the time that the cluster takes to come up.
    pub fn new(name: impl Into<String>, limit: Duration, case: C) -> Self {
        Self { name: name.into(), limit, case }
    }
}

/// The thread that all trials of a group run in.
pub(super) type Run = Box<dyn FnOnce(&Settings, Orders) -> Result<()> + Send>;

/// Trials that share a stage, usually one cluster.
pub struct Group {
    prefix: &'static str,
    trials: Vec<(String, Duration)>,
    /// Clusters that the stage may bring up, to be taken down if a trial exceeds its limit.
    clusters: Vec<String>,
    run: Run,
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group").field("prefix", &self.prefix).field("trials", &self.trials).finish()
    }
}

impl Group {
    /// Trials named `prefix::NAME`, or `NAME` if the prefix is empty. `stage` runs in a thread of its own, brings up what it
    /// needs, takes jobs until there are no more, and takes down what it brought up; `clusters` are the names of what it may
    /// bring up.
    pub fn new<C: Clone + Send + 'static>(
        prefix: &'static str,
        cases: Vec<Case<C>>,
        clusters: Vec<String>,
        stage: impl FnOnce(&Settings, &mut Jobs<C>) -> Result<()> + Send + 'static,
    ) -> Self {
        let trials = cases.iter().map(|case| (case.name.clone(), case.limit)).collect();
        let cases: Vec<C> = cases.into_iter().map(|case| case.case).collect();
        let run = move |settings: &Settings, orders: Orders| stage(settings, &mut Jobs::new(cases, orders));
        Self { prefix, trials, clusters, run: Box::new(run) }
    }

    /// The names of the trials.
    pub(super) fn names(&self) -> impl Iterator<Item = String> + '_ {
        self.trials.iter().map(|(name, _)| self.full_name(name))
    }

    /// With the prefix.
    pub(super) fn full_name(&self, name: &str) -> String {
        if self.prefix.is_empty() { name.to_owned() } else { format!("{}::{name}", self.prefix) }
    }

    /// How long each trial may take, the clusters, and the thread.
    pub(super) fn into_parts(self) -> (Vec<Duration>, Vec<String>, Run) {
        (self.trials.into_iter().map(|(_, limit)| limit).collect(), self.clusters, self.run)
    }
}
