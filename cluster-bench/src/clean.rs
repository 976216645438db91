//! Removes everything that a run has made, and waits until it is gone.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DeleteParams};

use crate::api::{Cluster, is_gone, mine};
use crate::objects::{LABEL, MADE, MINE};
use crate::options::Where;
use crate::say::Progress;

/// Time between two looks at what is left.
const LOOK: Duration = Duration::from_millis(300);
/// How long a kubelet may take to end a pod. After that only the object is removed: the node is gone.
const KUBELET: Duration = Duration::from_secs(20);
/// How long everything may take.
const ALL: Duration = Duration::from_secs(90);

/// `clean`.
pub(crate) fn run(place: &Where) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let cluster = Cluster::open(place).await?;
        let mut progress = Progress::new(Duration::ZERO);
        let removed = all(&cluster).await?;
        progress.say(&match removed.as_slice() {
            [] => format!("nothing of a run is left in namespace {}", cluster.namespace),
            removed => format!("removed: {}", removed.join(", ")),
        });
        Ok(ExitCode::SUCCESS)
    })
}

/// Removes pods, Services, and the namespace if a run has made it. Answers with what there was.
pub(crate) async fn all(cluster: &Cluster) -> Result<Vec<String>> {
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    let name = &cluster.namespace;
    let found = match namespaces.get(name).await {
        Ok(found) => found,
        Err(error) if is_gone(&error) => return Ok(Vec::new()),
        Err(error) => return Err(cluster.explain(error, &format!("get namespace {name}"))),
    };
    if found.metadata.labels.as_ref().and_then(|all| all.get(LABEL)).is_none_or(|of| of != MINE) {
        bail!("namespace {name} is not one for runs, nothing is removed: it has no label {LABEL}={MINE}");
    }
    let mut done = vec![services(cluster).await];
    let made = found.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(MADE));
    if made {
        // Before its pods: nothing can be made in it any more.
        let deleted = namespaces.delete(name, &DeleteParams::default()).await;
        done.push(gone(cluster, deleted, &format!("delete namespace {name}")).map(|()| Vec::new()));
    }
    done.push(pods(cluster).await);
    if made && done.iter().all(Result::is_ok) {
        done.push(namespace(cluster, &namespaces).await);
    }
    together(done)
}

/// What all steps have removed; fails with what went wrong in any of them.
fn together(done: Vec<Result<Vec<String>>>) -> Result<Vec<String>> {
    let (mut removed, mut failed) = (Vec::new(), Vec::new());
    for step in done {
        match step {
            Ok(gone) => removed.extend(gone),
            Err(error) => failed.push(format!("{error:#}")),
        }
    }
    if failed.is_empty() { Ok(removed) } else { bail!("{}", failed.join("; ")) }
}

/// Removes all Services.
async fn services(cluster: &Cluster) -> Result<Vec<String>> {
    let found = cluster.services().list(&mine()).await;
    let mut done = Vec::new();
    for service in found.map_err(|error| cluster.explain(error, "list services"))? {
        let service = service.metadata.name.unwrap_or_default();
        let deleted = cluster.services().delete(&service, &DeleteParams::default()).await;
        let deleted = gone(cluster, deleted, &format!("delete service {service}"));
        done.push(deleted.map(|()| vec![format!("service {service}")]));
    }
    together(done)
}

/// Waits until the namespace is gone.
async fn namespace(cluster: &Cluster, namespaces: &Api<Namespace>) -> Result<Vec<String>> {
    let (end, name) = (Instant::now() + ALL, &cluster.namespace);
    while let Some(left) = exists(cluster, namespaces, name).await? {
        if Instant::now() >= end {
            bail!("namespace {name} is still being removed after {} s: {left}", ALL.as_secs());
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(vec![format!("namespace {name}")])
}

/// What keeps a namespace, or None if it is gone.
async fn exists(cluster: &Cluster, api: &Api<Namespace>, name: &str) -> Result<Option<String>> {
    match api.get(name).await {
        Ok(found) => {
            let conditions = found.status.and_then(|status| status.conditions).unwrap_or_default();
            let messages = conditions.into_iter().filter(|c| c.status == "True").filter_map(|c| c.message);
            Ok(Some(messages.collect::<Vec<_>>().join("; ")))
        }
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(cluster.explain(error, &format!("get namespace {name}"))),
    }
}

/// Removes all pods.
async fn pods(cluster: &Cluster) -> Result<Vec<String>> {
    let (start, mut removed) = (Instant::now(), Vec::new());
    loop {
        let left = cluster.list_pods().await?;
        if left.is_empty() {
            return Ok(removed);
        }
        let is_late = start.elapsed() >= KUBELET;
        for pod in left {
            let name = pod.metadata.name.unwrap_or_default();
            let label = format!("pod {name}");
            if pod.metadata.deletion_timestamp.is_none() || is_late {
                delete(cluster, &name, is_late).await?;
            }
            if !removed.contains(&label) {
                removed.push(label);
            }
        }
        if start.elapsed() >= ALL {
            bail!("pods are still there after {} s: {}", ALL.as_secs(), removed.join(", "));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Removes one pod and waits until it is gone.
pub(crate) async fn pod(cluster: &Cluster, name: &str) -> Result<()> {
    let start = Instant::now();
    delete(cluster, name, false).await?;
    loop {
        match cluster.pods().get(name).await {
            Err(error) if is_gone(&error) => return Ok(()),
            Err(error) => return Err(cluster.explain(error, &format!("get pod {name}"))),
            Ok(_) if start.elapsed() >= KUBELET => return delete(cluster, name, true).await,
            Ok(_) => tokio::time::sleep(LOOK).await,
        }
    }
}

async fn delete(cluster: &Cluster, name: &str, by_force: bool) -> Result<()> {
    let params = if by_force { DeleteParams::default().grace_period(0) } else { DeleteParams::default() };
    let deleted = cluster.pods().delete(name, &params).await;
    gone(cluster, deleted, &format!("delete pod {name}"))
}

/// An object that was gone before, or is already being removed (409), counts as deleted.
fn gone<T>(cluster: &Cluster, deleted: kube::Result<T>, doing: &str) -> Result<()> {
    match deleted {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        Err(error) => Err(cluster.explain(error, doing)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_is_told() {
        let ok = |name: &str| Ok(vec![name.to_owned()]);
        assert_eq!(together(vec![ok("a"), ok("b")]).unwrap(), ["a", "b"]);
        let failed = || Err(anyhow::anyhow!("delete service x: no rights"));
        let told = together(vec![failed(), ok("b"), Err(anyhow::anyhow!("list pods: gone"))]).unwrap_err();
        assert_eq!(told.to_string(), "delete service x: no rights; list pods: gone");
    }
}
