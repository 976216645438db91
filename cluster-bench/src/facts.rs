//! What the cluster is, and which two nodes are measured.

use anyhow::{Result, bail, ensure};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Container, Node as KubeNode};
use kube::api::{Api, ListParams};

use crate::api::Cluster;
use crate::document::{self, Node};
use crate::plugin::{Program, plugin};

/// Annotation in which Slipstream's agents find the settings of the cluster's network.
const NETWORK: &str = "slipstream.dev/cluster-network";
/// Prefixes of annotations that tell of a plugin.
const TELLING: &[&str] =
    &["slipstream.dev/", "k8s.ovn.org/", "projectcalico.org/", "flannel.alpha.coreos.com/"];

/// Reads what the cluster is and picks nodes: those that are wanted, or the first two that are ready and take pods.
pub(crate) async fn read(cluster: &Cluster, wanted: &[String]) -> Result<document::Cluster> {
    let version = cluster.client.apiserver_version().await;
    let version = version.map_err(|error| cluster.explain(error, "ask for its version"))?;
    let api: Api<KubeNode> = Api::all(cluster.client.clone());
    let nodes =
        api.list(&ListParams::default()).await.map_err(|error| cluster.explain(error, "list nodes"))?.items;
    let measured = pick(&nodes, wanted)?;
    let sets: Api<DaemonSet> = Api::all(cluster.client.clone());
    let sets =
        sets.list(&ListParams::default()).await.map(|list| list.items.iter().flat_map(programs).collect());
    let sets: Result<Vec<Program>, String> =
        sets.map_err(|error| cluster.explain(error, "list daemonsets").to_string());
    let mut annotations: Vec<&str> = measured
        .iter()
        .flat_map(|node| node.metadata.annotations.iter().flatten())
        .map(|(key, _)| key.as_str())
        .filter(|key| TELLING.iter().any(|prefix| key.starts_with(prefix)))
        .collect();
    annotations.sort_unstable();
    annotations.dedup();
    // Slipstream may have further networks alone, beside the plugin whose ways are measured.
    let secondary = measured
        .iter()
        .filter_map(|node| node.metadata.annotations.as_ref()?.get(NETWORK))
        .filter_map(|network| serde_json::from_str::<serde_json::Value>(network).ok())
        .any(|network| network["defaultNetwork"] == false);
    let (plugin, evidence) = plugin(sets.as_deref().map_err(String::as_str), &annotations, secondary);
    Ok(document::Cluster {
        kubernetes: version.git_version,
        plugin,
        evidence,
        nodes: nodes.len(),
        passed_over: passed_over(&nodes),
        measured: measured.into_iter().map(node).collect(),
        client: None,
    })
}

/// One or two nodes.
fn pick<'a>(nodes: &'a [KubeNode], wanted: &[String]) -> Result<Vec<&'a KubeNode>> {
    let names =
        || nodes.iter().filter_map(|node| node.metadata.name.as_deref()).collect::<Vec<_>>().join(", ");
    if !wanted.is_empty() {
        ensure!(wanted.len() == 2 && wanted[0] != wanted[1], "--nodes: must be two different nodes, A,B");
        let find = |name: &String| nodes.iter().find(|node| node.metadata.name.as_ref() == Some(name));
        let mut found = Vec::new();
        for name in wanted {
            let Some(node) = find(name) else {
                bail!("--nodes: there is no node {name}; there are {}", names())
            };
            found.push(node);
        }
        return Ok(found);
    }
    let good: Vec<_> = nodes.iter().filter(|node| obstacle(node).is_none()).take(2).collect();
    if good.is_empty() {
        bail!("no node takes pods: {}", passed_over(nodes).join("; "));
    }
    Ok(good)
}

/// Nodes that take no pods, with the reason.
fn passed_over(nodes: &[KubeNode]) -> Vec<String> {
    let why = |node: &KubeNode| Some(format!("{}: {}", node.metadata.name.as_deref()?, obstacle(node)?));
    nodes.iter().filter_map(why).collect()
}

/// Why a node does not take pods.
pub(crate) fn obstacle(node: &KubeNode) -> Option<String> {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.into_iter().flatten().find(|condition| condition.type_ == "Ready");
    match ready {
        Some(ready) if ready.status == "True" => {}
        Some(not) => {
            return Some(format!("not Ready: {}", not.message.as_deref().unwrap_or("no reason is given")));
        }
        None => return Some("it has not said that it is Ready".to_owned()),
    }
    let spec = node.spec.as_ref();
    if spec.and_then(|spec| spec.unschedulable) == Some(true) {
        return Some("it is cordoned".to_owned());
    }
    let mut taints = spec.and_then(|spec| spec.taints.as_ref()).into_iter().flatten();
    taints.find(|taint| taint.effect != "PreferNoSchedule").map(|taint| format!("taint {}", taint.key))
}

fn node(node: &KubeNode) -> Node {
    let status = node.status.clone().unwrap_or_default();
    let info = status.node_info.unwrap_or_default();
    let capacity = |what: &str| {
        status.capacity.as_ref().and_then(|all| all.get(what)).map_or_else(String::new, |q| q.0.clone())
    };
    let label = |key: &str| node.metadata.labels.as_ref().and_then(|all| all.get(key)).cloned();
    Node {
        name: node.metadata.name.clone().unwrap_or_default(),
        kernel: info.kernel_version,
        os: info.os_image,
        architecture: info.architecture,
        cpus: capacity("cpu"),
        memory: capacity("memory"),
        kubelet: info.kubelet_version,
        runtime: info.container_runtime_version,
        instance_type: label("node.kubernetes.io/instance-type"),
        zone: label("topology.kubernetes.io/zone"),
    }
}

fn programs(set: &DaemonSet) -> Vec<Program> {
    let name = format!(
        "{}/{}",
        set.metadata.namespace.as_deref().unwrap_or_default(),
        set.metadata.name.as_deref().unwrap_or_default()
    );
    let spec = set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let program = |container: &Container| {
        let words = container.command.iter().chain(&container.args).flatten().cloned();
        let environment = container.env.iter().flatten();
        let environment = environment.filter_map(|env| Some(format!("{}={}", env.name, env.value.as_ref()?)));
        let image = container.image.clone().unwrap_or_default();
        Program { set: name.clone(), image, words: words.chain(environment).collect() }
    };
    spec.into_iter().flat_map(|spec| &spec.containers).map(program).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn nodes(all: &[(&str, &str, Value)]) -> Vec<KubeNode> {
        let node = |(name, ready, spec): &(&str, &str, Value)| {
            serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec, "status": {"conditions":
                [{"type": "Ready", "status": ready, "message": "kubelet says so"}]}}))
            .unwrap()
        };
        all.iter().map(node).collect()
    }

    fn names(nodes: &[&KubeNode]) -> Vec<String> {
        nodes.iter().filter_map(|node| node.metadata.name.clone()).collect()
    }

    #[test]
    fn the_first_two_nodes_that_take_pods_are_picked() {
        let taint = |effect: &str| json!({"taints": [{"key": "k", "effect": effect}]});
        let all = nodes(&[
            ("cp", "True", taint("NoSchedule")),
            ("down", "Unknown", json!({})),
            ("a", "True", taint("PreferNoSchedule")),
            ("off", "True", json!({"unschedulable": true})),
            ("b", "True", json!({})),
            ("c", "True", json!({})),
        ]);
        assert_eq!(names(&pick(&all, &[]).unwrap()), ["a", "b"]);
        assert_eq!(names(&pick(&all, &["c".into(), "cp".into()]).unwrap()), ["c", "cp"]);
        let error = pick(&all, &["a".into(), "z".into()]).unwrap_err().to_string();
        assert!(error.contains("no node z; there are cp, down, a"), "{error}");
        assert!(pick(&all, &["a".into(), "a".into()]).is_err() && pick(&all, &["a".into()]).is_err());
        let error = pick(&all[..2], &[]).unwrap_err().to_string();
        assert_eq!(error, "no node takes pods: cp: taint k; down: not Ready: kubelet says so");
    }
}
