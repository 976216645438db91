//! Binds pods to nodes: those without a node, round robin over the Ready nodes that their node selector allows.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, ListParams, PostParams};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt};
use serde_json::json;

use super::kubelet::client;

/// `testbed scheduler`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// How to reach the API server.
    #[arg(long)]
    kubeconfig: PathBuf,
}

impl Args {
    /// Runs until it is killed.
    pub async fn run(self) -> Result<()> {
        let Self { kubeconfig } = self;
        let client = client(&kubeconfig).await?;
        let mut waiting: BTreeMap<String, Pod> = BTreeMap::new();
        let mut turn = 0;
        let query = watcher::Config::default().fields("spec.nodeName=");
        let mut events = std::pin::pin!(watcher(Api::<Pod>::all(client.clone()), query));
        loop {
            let next = tokio::time::timeout(Duration::from_millis(200), events.try_next()).await;
            match next {
                Ok(Ok(Some(Event::Apply(pod) | Event::InitApply(pod)))) => {
                    if pod.metadata.deletion_timestamp.is_none() {
                        waiting.insert(key(&pod), pod);
                    }
                }
                Ok(Ok(Some(Event::Delete(pod)))) => {
                    waiting.remove(&key(&pod));
                }
                Ok(Ok(Some(Event::Init))) => waiting.clear(),
                Ok(Ok(Some(Event::InitDone))) | Err(_) => {}
                Ok(Ok(None)) => return Ok(()),
                Ok(Err(error)) => {
                    tracing::warn!("watch of pods: {error}");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            }
            if !waiting.is_empty()
                && let Err(error) = bind_all(&client, &mut waiting, &mut turn).await
            {
                tracing::warn!("{error:#}");
            }
        }
    }
}

fn key(pod: &Pod) -> String {
    pod.metadata.uid.clone().unwrap_or_default()
}

async fn bind_all(client: &Client, waiting: &mut BTreeMap<String, Pod>, turn: &mut usize) -> Result<()> {
    let nodes = Api::<Node>::all(client.clone()).list(&ListParams::default()).await?.items;
    let mut bound = Vec::new();
    for (uid, pod) in waiting.iter() {
        let fitting: Vec<&Node> = nodes.iter().filter(|n| is_ready(n) && fits(pod, n)).collect();
        let Some(node) = pick(&fitting, turn) else { continue };
        let namespace = pod.namespace().unwrap_or_default();
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {"name": pod.name_any(), "namespace": namespace, "uid": uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node.name_any()},
        });
        let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        match pods.create_subresource("binding", &pod.name_any(), &PostParams::default(), &binding).await {
            Ok(serde_json::Value::Null | _) => bound.push(uid.clone()),
            // Gone or bound already.
            Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => {
                bound.push(uid.clone())
            }
            Err(error) => tracing::warn!("binding of {namespace}/{}: {error}", pod.name_any()),
        }
    }
    for uid in bound {
        waiting.remove(&uid);
    }
    Ok(())
}

fn pick<'a>(nodes: &[&'a Node], turn: &mut usize) -> Option<&'a Node> {
    if nodes.is_empty() {
        return None;
    }
    *turn = turn.wrapping_add(1);
    Some(nodes[*turn % nodes.len()])
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

fn fits(pod: &Pod, node: &Node) -> bool {
    let selector = pod.spec.as_ref().and_then(|s| s.node_selector.as_ref());
    selector.is_none_or(|s| s.iter().all(|(k, v)| node.labels().get(k) == Some(v)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, ready: &str) -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        }))
        .unwrap()
    }

    #[test]
    fn pods_go_round_over_the_nodes() {
        let nodes = [node("n1", "True"), node("n2", "True")];
        let all: Vec<_> = nodes.iter().collect();
        let mut turn = 0;
        let names: Vec<_> = (0..4).filter_map(|_| pick(&all, &mut turn)).map(|n| n.name_any()).collect();
        assert_eq!(names, ["n2", "n1", "n2", "n1"]);
        assert!(pick(&[], &mut turn).is_none());
    }

    #[test]
    fn a_node_selector_and_readiness_are_respected() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "a"},
            "spec": {"containers": [], "nodeSelector": {"kubernetes.io/hostname": "n2"}},
        }))
        .unwrap();
        assert!(!fits(&pod, &node("n1", "True")));
        assert!(fits(&pod, &node("n2", "True")));
        assert!(!is_ready(&node("n1", "False")));
    }
}
