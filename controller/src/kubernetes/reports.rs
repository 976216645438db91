//! Writes into objects what the state reports of them. That changes with every pod, so it is collected for a moment, and only the last
//! report of each object is written. What fails is tried again.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use api::error::chain;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use kube::Client;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::TIMEOUT;
use crate::metrics::{ErrorKind, Metrics};
use crate::state::{Notice, ObjectRef};

/// How long reports are collected before the last one is written.
pub(super) const COLLECT: Duration = Duration::from_millis(500);
/// Wait after a failure.
const RETRY: Duration = Duration::from_secs(5);
/// Objects that are written at once.
const AT_ONCE: usize = 8;

/// What an object should hold.
pub trait Report: Debug + Clone + Send + 'static {
    /// What failures are counted as.
    const KIND: ErrorKind;

    /// The object that the report is about.
    fn object(&self) -> &ObjectRef;

    /// Objects with different keys are written apart.
    fn key(&self) -> String;

    /// Writes what the object does not hold already. An object that is not there is no error.
    fn write(&self, client: &Client) -> impl Future<Output = kube::Result<()>> + Send;

    /// What is to be told when the API server refuses it.
    fn refused(&self, _error: &str) -> Option<Notice> {
        None
    }
}

/// A report that waits.
#[derive(Debug)]
struct Waiting<R> {
    report: R,
    at: Instant,
    /// True after the failure of this report has been told.
    told: bool,
}

/// Writes reports until the other end of the channel is gone.
pub async fn run<R: Report>(
    client: Client,
    mut reports: mpsc::UnboundedReceiver<R>,
    notices: mpsc::UnboundedSender<Notice>,
    metrics: Metrics,
) {
    let mut waiting: BTreeMap<String, Waiting<R>> = BTreeMap::new();
    let mut writing: Vec<String> = Vec::new();
    let mut writes = FuturesUnordered::new();
    loop {
        let now = Instant::now();
        while writing.len() < AT_ONCE
            && let Some(key) = next(&waiting, &writing, now)
            && let Some(Waiting { report, told, .. }) = waiting.remove(&key)
        {
            writing.push(key);
            writes.push(write(client.clone(), report, told));
        }
        let wake =
            waiting.iter().filter(|(key, _)| !writing.contains(key)).map(|(_, waiting)| waiting.at).min();
        let wake = wake.filter(|_| writing.len() < AT_ONCE);
        tokio::select! {
            report = reports.recv() => {
                let Some(report) = report else { return };
                let old = waiting.get(&report.key());
                let at = old.map_or(now + COLLECT, |old| old.at);
                let told = old.is_some_and(|old| old.told);
                waiting.insert(report.key(), Waiting { report, at, told });
            }
            Some((report, told, result)) = writes.next() => {
                let key = report.key();
                writing.retain(|other| *other != key);
                if let Err(failure) = result {
                    metrics.error(R::KIND);
                    let Failure { error, is_refused } = failure;
                    tracing::warn!(object = %report.object(), error, "object not written; retrying");
                    if is_refused && !told && let Some(notice) = report.refused(&error) {
                        // Fails only when the process is about to end.
                        let _ = notices.send(notice);
                    }
                    // A newer report goes before this one.
                    let at = Instant::now() + RETRY;
                    waiting.entry(key).or_insert(Waiting { report, at, told: told || is_refused });
                }
            }
            () = sleep_until(wake), if wake.is_some() => {}
        }
    }
}

async fn sleep_until(wake: Option<Instant>) {
    match wake {
        Some(wake) => tokio::time::sleep_until(wake).await,
        None => std::future::pending().await,
    }
}

/// The first object that is due and not being written.
fn next<R>(waiting: &BTreeMap<String, Waiting<R>>, writing: &[String], now: Instant) -> Option<String> {
    let due = waiting.iter().filter(|(key, waiting)| waiting.at <= now && !writing.contains(key));
    due.min_by_key(|(_, waiting)| waiting.at).map(|(key, _)| key.clone())
}

/// Why an object was not written.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failure {
    error: String,
    /// The API server has an answer, and it is no.
    is_refused: bool,
}

pub(super) async fn write<R: Report>(
    client: Client,
    report: R,
    told: bool,
) -> (R, bool, Result<(), Failure>) {
    let result = match tokio::time::timeout(TIMEOUT, report.write(&client)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(()),
        Ok(Err(error)) => {
            let is_refused = matches!(&error, kube::Error::Api(status) if (400..500).contains(&status.code) && status.code != 409);
            Err(Failure { error: chain(&error), is_refused })
        }
        Err(_elapsed) => {
            Err(Failure { error: format!("no answer within {} s", TIMEOUT.as_secs()), is_refused: false })
        }
    };
    (report, told, result)
}
