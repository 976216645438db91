//! Whether what a node has of pods is what its pods need, once each: OVS ports, links, network namespaces, and the
//! logical ports of the cluster.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::addresses;
use crate::snapshot;
use testbed::cluster::Bed;

/// Fails with what is too much or missing.
pub(super) fn check(bed: &Bed) -> Result<String> {
    let pods: Value = serde_json::from_str(&bed.kubectl(&["get", "pods", "-A", "-o", "json"])?)?;
    let pods: Vec<&Value> =
        pods["items"].as_array().context("no pods")?.iter().filter(|p| is_ours(p)).collect();
    let mut seen = Vec::new();
    for node in bed.config().node_names() {
        let here = pods.iter().filter(|pod| pod["spec"]["nodeName"] == node.as_str());
        let expected: BTreeSet<String> = here
            .map(|pod| {
                let part = |name: &str| pod["metadata"][name].as_str().unwrap_or_default();
                format!("{}_{}", part("namespace"), part("name"))
            })
            .collect();
        let count = expected.len();
        let interfaces = snapshot::interfaces(bed, &node)?;
        let ports: Vec<_> =
            interfaces.iter().filter(|(_, id)| !id.is_empty() && !id.starts_with("k8s-")).collect();
        let ids: BTreeSet<String> = ports.iter().map(|(_, id)| id.clone()).collect();
        ensure!(ids == expected, "{node}: OVS ports of {ids:?}, pods {expected:?}");
        ensure!(ports.len() == count, "{node}: a pod has two OVS ports: {ports:?}");
        let links = snapshot::links(bed, &node)?;
        for (name, id) in &ports {
            ensure!(links.contains(name), "{node}: the link {name} of the OVS port of {id} is not there");
        }
        let hosts = links.iter().filter(|name| is_container(name, 15)).count();
        ensure!(hosts == count, "{node}: {count} pods have {hosts} links: {links:?}");
        let shims = |kind: &str| {
            links.iter().filter(|n| n.strip_prefix(kind).is_some_and(|id| is_container(id, 13))).count()
        };
        for shims in [shims("sa"), shims("so")] {
            ensure!(shims == 0 || shims == count, "{node}: {count} pods have {shims} shims: {links:?}");
        }
        let directory = bed.host(&node).path("/run/netns")?;
        let netns = fs::read_dir(&directory).with_context(|| directory.display().to_string())?.count();
        ensure!(netns == count, "{node}: {count} pods have {netns} network namespaces");
        seen.push(format!("{node}: {count}"));
    }
    let logical = addresses::each_once(bed)?;
    ensure!(logical == pods.len(), "{} pods have {logical} logical ports", pods.len());
    Ok(format!("each pod has its port, link and namespace once ({})", seen.join(", ")))
}

/// Whether the pod has a network of ours.
fn is_ours(pod: &Value) -> bool {
    let ended = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    !ended && pod["spec"]["hostNetwork"] != true && pod["spec"]["nodeName"].is_string()
}

/// Whether this is the beginning of a container's id.
fn is_container(name: &str, length: usize) -> bool {
    name.len() == length && name.chars().all(|c| c.is_ascii_hexdigit())
}
