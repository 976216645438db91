//! Writes annotations: merge patches that carry the object's UID, so that a successor of the same name is never patched. Many
//! patches are under way at once, and each is tried again until it is written or pointless; the [queue] decides which is next.

mod queue;
#[cfg(test)]
mod tests;

use std::time::Instant;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1 as core;
use kube::api::{Patch as KubePatch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::mpsc;

use api::error::chain;

use super::TIMEOUT;
use crate::metrics::{ErrorKind, Metrics};
use crate::state::{Annotated, Notice, NoticeKind, Patch};
use queue::{After, Ended, Limits, Queue};

/// The API server answers a write in a few milliseconds, so more writes at once would only queue there. But while an admission
/// webhook hangs, they take seconds each, and the remaining places must be enough for the other objects.
const LIMITS: Limits = Limits { total: 64, namespace: 16, failing: 2 };

/// The channels of the writer.
#[derive(Debug)]
pub struct Ends {
    /// Patches to write. The writer receives at once and keeps only the newest patch of each object.
    pub patches: mpsc::UnboundedReceiver<Patch>,
    /// UIDs of objects that are gone.
    pub forgotten: mpsc::UnboundedReceiver<String>,
    /// Reports every object that is written or gone: once for each that was under way.
    pub done: mpsc::UnboundedSender<Annotated>,
    /// Reports objects that cannot be written.
    pub notices: mpsc::UnboundedSender<Notice>,
}

/// Writes patches until the other ends of its channels are gone.
pub async fn run(client: Client, ends: Ends, metrics: Metrics) {
    let Ends { mut patches, mut forgotten, done, notices } = ends;
    let mut queue = Queue::new(LIMITS);
    let mut writes = FuturesUnordered::new();
    loop {
        while let Some(patch) = queue.next(Instant::now()) {
            writes.push(write(client.clone(), patch));
        }
        metrics.annotations_waiting.set(i64::try_from(queue.len()).unwrap_or(i64::MAX));
        let wake = queue.wake();
        tokio::select! {
            // A patch is received before the later report that its object is gone.
            biased;
            patch = patches.recv() => match patch {
                Some(patch) => queue.push(patch, Instant::now()),
                None => return,
            },
            uid = forgotten.recv() => match uid {
                Some(uid) => queue.forget(&uid),
                None => return,
            },
            Some((patch, result)) = writes.next() => ended(&mut queue, patch, result, &done, &notices, &metrics),
            () = sleep_until(wake), if wake.is_some() => {}
        }
    }
}

async fn sleep_until(wake: Option<Instant>) {
    match wake {
        Some(wake) => tokio::time::sleep_until(wake.into()).await,
        None => std::future::pending().await,
    }
}

/// What a failed attempt means.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// The object is gone, or another one has its name.
    Gone,
    /// The API server, or a webhook that it calls, rejects the patch in the present state.
    Refused(String),
    /// The API server could not be reached.
    Unasked(String),
}

fn judge(error: &kube::Error) -> Verdict {
    let kube::Error::Api(status) = error else { return Verdict::Unasked(chain(error)) };
    let message = &status.message;
    let gone = match status.code {
        404 => true,
        // The server also returns this code when its own attempts collided with other writers: then the object is there.
        409 => message.contains("Precondition failed") && message.contains("UID"),
        // The server's wording where it validates the patched object first.
        422 => message.contains("metadata.uid"),
        _ => false,
    };
    if gone { Verdict::Gone } else { Verdict::Refused(format!("{} ({})", message, status.code)) }
}

async fn write(client: Client, patch: Patch) -> (Patch, Result<(), Verdict>) {
    let body = json!({ "metadata": { "uid": patch.object.uid, "annotations": patch.annotations } });
    let result = match tokio::time::timeout(TIMEOUT, send(&client, &patch, &body)).await {
        Ok(result) => result.map_err(|error| judge(&error)),
        Err(_elapsed) => Err(Verdict::Refused(format!("no answer within {} s", TIMEOUT.as_secs()))),
    };
    (patch, result)
}

fn ended(
    queue: &mut Queue,
    patch: Patch,
    result: Result<(), Verdict>,
    done: &mpsc::UnboundedSender<Annotated>,
    notices: &mpsc::UnboundedSender<Notice>,
    metrics: &Metrics,
) {
    let Patch { object, annotations } = patch;
    let (how, error) = match result {
        Ok(()) => {
            metrics.annotations.inc();
            (Ended::Written, String::new())
        }
        Err(Verdict::Gone) => {
            tracing::debug!(%object, "annotation is not needed any more");
            (Ended::Gone, String::new())
        }
        Err(verdict) => {
            metrics.error(ErrorKind::Annotation);
            let tell = matches!(verdict, Verdict::Refused(_));
            let (Verdict::Refused(error) | Verdict::Unasked(error)) = verdict else { return };
            tracing::debug!(%object, error, "annotation not written; retrying");
            (Ended::Failed { tell }, error)
        }
    };
    match queue.ended(&object.uid, how, Instant::now()) {
        After::Again => {}
        After::Off(age) => {
            if how == Ended::Written {
                Metrics::observe(&metrics.annotation_seconds, age);
            }
            let uid = object.uid;
            // Fails only when the engine has ended, and with it the process.
            let _ =
                done.send(if how == Ended::Written { Annotated::Written(uid) } else { Annotated::Gone(uid) });
        }
        After::Stuck { failures } => {
            let keys: Vec<&str> = annotations.keys().copied().collect();
            let message = format!(
                "{object}: annotation {} could not be written, {failures} times so far: {error}; it is tried on, and the \
                 object has no network until then: look at the admission webhooks for {}s and at the controller's rights",
                keys.join(", "),
                object.kind.to_lowercase(),
            );
            tracing::error!("{message}");
            let notice = Notice { kind: NoticeKind::NotWritten, object: Some(object), message };
            // Fails only when the process is about to end.
            let _ = notices.send(notice);
        }
    }
}

async fn send(client: &Client, patch: &Patch, body: &serde_json::Value) -> kube::Result<()> {
    let (params, body) = (PatchParams::default(), KubePatch::Merge(body));
    let name = &patch.object.name;
    match &patch.object.namespace {
        Some(namespace) => {
            let api: Api<core::Pod> = Api::namespaced(client.clone(), namespace);
            api.patch_metadata(name, &params, &body).await.map(drop)
        }
        None => Api::<core::Node>::all(client.clone()).patch_metadata(name, &params, &body).await.map(drop),
    }
}
