//! Runs the clients: a pod for each pass, whose log has the results.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::AsyncBufReadExt;
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, LogParams, PostParams};
use tokio::sync::watch;

use crate::api::Cluster;
use crate::facts::obstacle;
use crate::place::{remove, said};
use crate::ready::{State, state};
use crate::rows::{documents, is_progress, last_words};
use crate::say::Progress;

/// Time between two looks at the client.
const LOOK: Duration = Duration::from_millis(500);
/// Between two looks at the other pods and the nodes.
const AROUND: Duration = Duration::from_secs(3);
/// A client may take so many times as long as was planned, and this more.
const TIMES: u32 = 3;
const MORE: Duration = Duration::from_secs(60);

/// What is watched while a client runs.
pub(crate) struct Watched<'a> {
    /// Pods of servers.
    pub(crate) servers: &'a [String],
    pub(crate) nodes: &'a [String],
    /// How long a pod may take to start.
    pub(crate) ready: Duration,
    /// How long this client will take.
    pub(crate) planned: Duration,
    /// How long what comes after it will take.
    pub(crate) after: Duration,
    /// What is said before the client's own words.
    pub(crate) title: String,
}

/// Runs one client to its end; answers with its results.
pub(crate) async fn run(
    cluster: &Cluster,
    pod: &Pod,
    watched: &Watched<'_>,
    progress: &mut Progress,
) -> Result<Vec<traffic::report::Document>> {
    let name = pod.metadata.name.clone().unwrap_or_default();
    let made = cluster.pods().create(&PostParams::default(), pod).await;
    made.map_err(|error| cluster.explain(error, &format!("create pod {name}")))?;
    progress.left(watched.planned + watched.after);
    let (says, words) = watch::channel(String::new());
    let follow = follow(cluster, &name, &says);
    let end = end(cluster, &name, watched, &words, progress);
    // The log only says how far it is; the pod says when it is done.
    let ended = tokio::select! {
        ended = end => ended,
        never = follow => match never {},
    };
    if let Err(error) = ended {
        return Err(blame(cluster, watched)
            .await
            .map_or(error.context("while measuring"), |who| anyhow::anyhow!("{who}")));
    }
    let log = cluster.pods().logs(&name, &LogParams::default()).await;
    let log = log.map_err(|error| cluster.explain(error, &format!("get the log of pod {name}")))?;
    let results = documents(&log).with_context(|| format!("pod {name}"))?;
    if results.is_empty() {
        let words =
            last_words(&log).unwrap_or("its log has no result: is the image that of slipstream-traffic?");
        bail!("pod {name}: {words}");
    }
    remove(cluster, &name).await?;
    Ok(results)
}

/// Waits for the end of a client.
async fn end(
    cluster: &Cluster,
    name: &str,
    watched: &Watched<'_>,
    words: &watch::Receiver<String>,
    progress: &mut Progress,
) -> Result<()> {
    let (start, mut looked, mut began) = (Instant::now(), Instant::now(), false);
    let limit = watched.planned * TIMES + MORE;
    loop {
        let pod = cluster.pods().get(name).await;
        let pod = pod.map_err(|error| cluster.explain(error, &format!("get pod {name}")))?;
        match state(&pod, &[]) {
            State::Done => return Ok(()),
            State::Never(reason) => bail!("{}", said(cluster, name, reason).await),
            State::Ready if !began => {
                began = true;
                progress.left(watched.planned + watched.after);
            }
            State::Not(_) if !began && start.elapsed() >= watched.ready => {
                let events = cluster.events(name).await;
                if let State::Not(why) | State::Never(why) = state(&pod, &events) {
                    bail!("not ready after {} s: {why}", watched.ready.as_secs());
                }
            }
            State::Ready | State::Not(_) => {}
        }
        if looked.elapsed() >= AROUND {
            looked = Instant::now();
            if let Some(who) = blame(cluster, watched).await {
                bail!("{who}");
            }
        }
        if start.elapsed() >= limit {
            bail!(
                "pod {name} has not ended after {} s, {} s were planned",
                limit.as_secs(),
                watched.planned.as_secs()
            );
        }
        let said = words.borrow().clone();
        progress.step(&format!("{} {said}", watched.title));
        tokio::time::sleep(LOOK).await;
    }
}

/// Reads the client's words as it says them, again and again if the connection ends.
async fn follow(cluster: &Cluster, name: &str, says: &watch::Sender<String>) -> std::convert::Infallible {
    let params = LogParams { follow: true, since_seconds: Some(5), ..LogParams::default() };
    loop {
        if let Ok(log) = cluster.pods().log_stream(name, &params).await {
            let mut lines = log.lines();
            while let Some(Ok(line)) = lines.next().await {
                if is_progress(&line) {
                    says.send_replace(line);
                }
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// A node or a server that is not as it should be: it is to blame for what a client says.
async fn blame(cluster: &Cluster, watched: &Watched<'_>) -> Option<String> {
    // Nodes first: of a node that is gone, the API server says that its pods are not ready.
    let api: Api<Node> = Api::all(cluster.client.clone());
    for name in watched.nodes {
        match api.get(name).await {
            Ok(node) => {
                if let Some(why) = gone(&node) {
                    return Some(why);
                }
            }
            Err(error) if crate::api::is_gone(&error) => return Some(format!("node {name} was removed")),
            // Where it cannot be read, the others must do.
            Err(_) => {}
        }
    }
    failed(&cluster.list_pods().await.ok()?, watched.servers)
}

/// Why nothing can be measured on a node any more.
fn gone(node: &Node) -> Option<String> {
    let why = obstacle(node).filter(|why| why.starts_with("not Ready"))?;
    Some(format!("node {} has gone: {why}", node.metadata.name.as_deref().unwrap_or_default()))
}

/// The first of the servers that does not answer any more.
fn failed(pods: &[Pod], servers: &[String]) -> Option<String> {
    let reason = |name: &String| {
        let pod = pods.iter().find(|pod| pod.metadata.name.as_ref() == Some(name));
        match pod.map(|pod| state(pod, &[])) {
            Some(State::Ready) => None,
            Some(State::Never(reason) | State::Not(reason)) => Some(reason),
            Some(State::Done) => Some(format!("pod {name} has ended")),
            None => Some(format!("pod {name} was removed by somebody else")),
        }
    };
    servers.iter().find_map(reason).map(|reason| format!("a server has failed: {reason}"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn server(name: &str, ready: &str, container: &Value) -> Pod {
        let status = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": ready}],
            "containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
            "state": container}]});
        serde_json::from_value(json!({"metadata": {"name": name}, "status": status})).unwrap()
    }

    #[test]
    fn a_server_that_is_not_ready_any_more_or_not_there_is_named() {
        let running = json!({"running": {}});
        let pods = [server("a", "True", &running), server("b", "False", &running)];
        let failed =
            |servers: &[&str]| failed(&pods, &servers.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(failed(&["a"]), None);
        let of = |server: &str| failed(&["a", server]).unwrap_or_default();
        assert_eq!(of("b"), "a server has failed: pod b: its containers run, but it is not ready");
        assert_eq!(of("c"), "a server has failed: pod c was removed by somebody else");
    }

    #[test]
    fn a_node_that_is_not_ready_has_gone_and_one_that_is_cordoned_has_not() {
        let node = |unschedulable: bool, ready: &str| -> Node {
            let ready = json!({"type": "Ready", "status": ready, "reason": "NodeStatusUnknown",
                "message": "Kubelet stopped posting node status."});
            let node = json!({"metadata": {"name": "n"}, "spec": {"unschedulable": unschedulable},
                "status": {"conditions": [ready]}});
            serde_json::from_value(node).unwrap()
        };
        assert_eq!(gone(&node(false, "True")), None);
        assert_eq!(gone(&node(true, "True")), None);
        for cordoned in [false, true] {
            let said = gone(&node(cordoned, "Unknown")).unwrap_or_default();
            assert!(said.starts_with("node n has gone: not Ready") && said.contains("posting"), "{said}");
        }
    }
}
