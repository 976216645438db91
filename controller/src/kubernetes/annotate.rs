//! Writes annotations: merge patches that carry the object's UID, so that a successor of the same name is never written
//! to. Many at once, tried again until written or pointless.

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1 as core;
use kube::api::{Patch as KubePatch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::{Semaphore, mpsc};

use crate::metrics::{ErrorKind, Metrics};
use crate::state::Patch;

/// Patches under way at once. The API server answers one in a few milliseconds; more would only queue there.
const AT_ONCE: usize = 32;
/// First wait after a failure; doubled up to [`MAX_BACKOFF`].
const MIN_BACKOFF: Duration = Duration::from_millis(50);
/// Longest wait after a failure.
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// For one attempt.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Writes what comes, and tells the UID of every object that is written or given up.
pub async fn run(
    client: Client,
    mut patches: mpsc::UnboundedReceiver<Patch>,
    done: mpsc::UnboundedSender<String>,
    metrics: Metrics,
) {
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    while let Some(patch) = patches.recv().await {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        let (client, done, metrics) = (client.clone(), done.clone(), metrics.clone());
        tokio::spawn(async move {
            write(&client, &patch, &metrics).await;
            drop(permit);
            // Fails only when the engine has ended.
            let _ = done.send(patch.object.uid);
        });
    }
}

/// What a failed attempt means.
enum Verdict {
    Retry,
    /// The object is gone, or another one has its name.
    Gone,
    /// The API server will not take it, however often.
    Refused,
}

fn judge(error: &kube::Error) -> Verdict {
    match error {
        kube::Error::Api(status) => match status.code {
            404 => Verdict::Gone,
            409 => Verdict::Gone,
            // How the API server words that the UID differs.
            422 if status.message.contains("metadata.uid") => Verdict::Gone,
            408 | 429 | 500.. => Verdict::Retry,
            // Rights may be granted later.
            401 | 403 => Verdict::Retry,
            _ => Verdict::Refused,
        },
        _ => Verdict::Retry,
    }
}

async fn write(client: &Client, patch: &Patch, metrics: &Metrics) {
    let start = Instant::now();
    let body = json!({ "metadata": { "uid": patch.object.uid, "annotations": patch.annotations } });
    let mut backoff = MIN_BACKOFF;
    loop {
        let error = match tokio::time::timeout(TIMEOUT, send(client, patch, &body)).await {
            Ok(Ok(())) => {
                metrics.annotations.inc();
                Metrics::observe(&metrics.annotation_seconds, start.elapsed());
                return;
            }
            Ok(Err(error)) => error,
            Err(_elapsed) => {
                tracing::warn!(object = %patch.object, "writing an annotation timed out; trying again");
                continue;
            }
        };
        match judge(&error) {
            Verdict::Gone => {
                tracing::debug!(object = %patch.object, %error, "annotation is not needed any more");
                return;
            }
            Verdict::Refused => {
                metrics.error(ErrorKind::Annotation);
                tracing::error!(object = %patch.object, %error, "annotation is refused");
                return;
            }
            Verdict::Retry => {
                metrics.error(ErrorKind::Annotation);
                tracing::warn!(object = %patch.object, %error, "annotation not written; trying again");
                tokio::time::sleep(backoff).await;
                backoff = (backoff * 2).min(MAX_BACKOFF);
            }
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
