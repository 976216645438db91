//! Writers of the Node object, on separate tasks, so that nothing on the packet path waits for the API server. The latest value wins;
//! failed writes are reported and retried.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::Api;
use tokio::sync::watch;

use crate::health::Health;
use crate::kube::node_annotations::{self, NodeFacts};
use crate::metrics::Metrics;

/// First and longest retry delay.
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(15));
/// Name of the node condition.
const ANNOTATIONS: &str = "annotations";

/// Desired annotations, and those of the Node object when last read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announcement {
    /// Desired content.
    pub facts: NodeFacts,
    /// Annotations of the Node object.
    pub current: BTreeMap<String, String>,
}

/// Sender of the latest value to a writer task.
#[derive(Debug, Clone)]
pub struct Outlet<T>(watch::Sender<Option<T>>);

impl<T: PartialEq> Outlet<T> {
    /// Creates an outlet and its receiver.
    pub fn new() -> (Self, watch::Receiver<Option<T>>) {
        let (sender, receiver) = watch::channel(None);
        (Self(sender), receiver)
    }

    /// Replaces the value. Does not wait.
    pub fn put(&self, value: T) {
        self.0.send_if_modified(|old| {
            let news = old.as_ref() != Some(&value);
            if news {
                *old = Some(value);
            }
            news
        });
    }
}

/// Where failed writes are reported.
#[derive(Debug, Clone)]
pub(crate) struct Reports {
    /// Conditions and warnings of the node.
    pub(crate) health: Health,
    /// Counter of failed requests.
    pub(crate) metrics: Metrics,
}

/// Writes each desired set of annotations to the Node object, until the outlet is dropped.
pub(crate) async fn annotations(
    reports: Reports,
    nodes: Api<NodeObject>,
    values: watch::Receiver<Option<Announcement>>,
) {
    let write = |value: Announcement| {
        let nodes = nodes.clone();
        async move {
            if node_annotations::publish(&nodes, &value.facts, Some(&value.current)).await? {
                tracing::info!(node = value.facts.node, "node annotations updated");
            }
            Ok(())
        }
    };
    keep(&reports, ANNOTATIONS, values, write).await;
}

/// Writes the latest value of the channel, with retries; while a write fails, the condition `name` is not met.
async fn keep<T: Clone, F: Future<Output = anyhow::Result<()>>>(
    reports: &Reports,
    name: &'static str,
    values: watch::Receiver<Option<T>>,
    write: impl Fn(T) -> F,
) {
    let tell = |done: Result<(), String>| match done {
        Ok(()) => reports.health.met(name),
        Err(error) => reports.health.not_met(name, error),
    };
    each(reports, name, values, write, tell).await;
}

/// Writes the latest value of the channel, with retries; while a write fails, the warning `name` is active. For values that
/// readiness does not depend on.
pub(crate) async fn keep_quietly<T: Clone, F: Future<Output = anyhow::Result<()>>>(
    reports: &Reports,
    name: &'static str,
    values: watch::Receiver<Option<T>>,
    write: impl Fn(T) -> F,
) {
    each(reports, name, values, write, |done| reports.health.warning(name, done.err())).await;
}

async fn each<T: Clone, F: Future<Output = anyhow::Result<()>>>(
    reports: &Reports,
    name: &'static str,
    mut values: watch::Receiver<Option<T>>,
    write: impl Fn(T) -> F,
    tell: impl Fn(Result<(), String>),
) {
    let mut wait = RETRY.0;
    loop {
        let value = values.borrow_and_update().clone();
        if let Some(value) = value {
            let done = write(value).await;
            let failed = done.is_err();
            tell(done.map_err(|error| format!("{error:#}")));
            if failed {
                reports.metrics.api_failure(name);
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(RETRY.1);
                continue;
            }
            wait = RETRY.0;
        }
        if values.changed().await.is_err() {
            return;
        }
    }
}
