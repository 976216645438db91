//! What the agent writes on its Node object, on tasks of their own: nothing that packets depend on waits for the API server.
//! The latest value wins, and what fails is told and tried again.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::Api;
use tokio::sync::watch;

use crate::health::Health;
use crate::kube::node_annotations::{self, NodeFacts};
use crate::metrics::Metrics;

/// First and longest wait before what failed is tried again.
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(15));
/// Condition of the node.
const ANNOTATIONS: &str = "annotations";

/// What the annotations shall say, and what they said when last seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announcement {
    /// What is so.
    pub facts: NodeFacts,
    /// The Node object's annotations.
    pub current: BTreeMap<String, String>,
}

/// The latest value, for whoever writes it.
#[derive(Debug, Clone)]
pub struct Outlet<T>(watch::Sender<Option<T>>);

impl<T: PartialEq> Outlet<T> {
    /// An outlet and where its values come out.
    pub fn new() -> (Self, watch::Receiver<Option<T>>) {
        let (sender, receiver) = watch::channel(None);
        (Self(sender), receiver)
    }

    /// Puts a value in the place of the one before. Does not wait.
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

/// Where it is reported what could not be written.
#[derive(Debug, Clone)]
pub(crate) struct Reports {
    /// Conditions and warnings of the node.
    pub(crate) health: Health,
    /// Counts failed calls.
    pub(crate) metrics: Metrics,
}

/// Keeps the Node object's annotations as the values say, for as long as there may be another value.
pub(crate) async fn annotations(
    reports: Reports,
    nodes: Api<NodeObject>,
    values: watch::Receiver<Option<Announcement>>,
) {
    let write = |value: Announcement| {
        let nodes = nodes.clone();
        async move {
            if node_annotations::publish(&nodes, &value.facts, Some(&value.current)).await? {
                tracing::info!(node = value.facts.node, "annotations of the node written");
            }
            Ok(())
        }
    };
    keep(&reports, ANNOTATIONS, values, write).await;
}

/// Writes each value that comes, the latest first; while one cannot be written, the condition `name` is bad.
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

/// Writes each value that comes, the latest first; while one cannot be written, there is a warning `name`. For what the node can do
/// without.
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
