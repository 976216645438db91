//! Where a pod's network is, from containerd's own records.

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::containerd;
use crate::bed::Bed;
use crate::exec;
use crate::nodes::PodName;

/// A container as `ctr container info` prints it, as far as it matters here.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Info {
    #[serde(rename = "CreatedAt")]
    created: String,
    spec: Spec,
}

#[derive(Debug, Deserialize)]
struct Spec {
    linux: Linux,
}

#[derive(Debug, Deserialize)]
struct Linux {
    namespaces: Vec<Namespace>,
}

#[derive(Debug, Deserialize)]
struct Namespace {
    #[serde(rename = "type")]
    kind: String,
    path: Option<String>,
}

/// The path of the pod's network namespace inside its node; none for a pod in the node's network.
pub(super) fn network(bed: &Bed, pod: &PodName<'_>) -> Result<Option<String>> {
    // Of the mirror of a static pod the runtime knows the other UID.
    let query =
        r"jsonpath={.spec.hostNetwork} {.metadata.uid} {.metadata.annotations.kubernetes\.io/config\.mirror}";
    let said = bed.kubectl(&["get", "pod", "-n", pod.namespace, pod.name, "-o", query])?;
    let parts: Vec<&str> = said.split(' ').map(str::trim).collect();
    let [host_network, uid, mirror] = parts[..] else { bail!("kubectl said {said:?}") };
    if host_network == "true" {
        return Ok(None);
    }
    let uid = if mirror.is_empty() { uid } else { mirror };
    let filter =
        format!("labels.\"io.kubernetes.pod.uid\"=={uid},labels.\"io.cri-containerd.kind\"==sandbox");
    let ids = ctr(bed, pod.node, &["container", "list", "--quiet", &filter])?;
    let mut sandboxes = Vec::new();
    for id in ids.split_whitespace() {
        let info = ctr(bed, pod.node, &["container", "info", id])?;
        let info: Info = serde_json::from_str(&info).with_context(|| format!("container {id}"))?;
        sandboxes.push(info);
    }
    // A pod whose first sandbox failed has had several.
    sandboxes.sort_by(|a, b| a.created.cmp(&b.created));
    let path = sandboxes
        .pop()
        .and_then(|info| info.spec.linux.namespaces.into_iter().find(|n| n.kind == "network")?.path)
        .with_context(|| format!("pod {}/{} has no sandbox on {}", pod.namespace, pod.name, pod.node))?;
    // A link, which would be followed on the machine and not in the node.
    Ok(Some(path.strip_prefix("/var").filter(|p| p.starts_with("/run/")).unwrap_or(&path).to_owned()))
}

fn ctr(bed: &Bed, node: &str, args: &[&str]) -> Result<String> {
    let mut command = bed.host(node).command(bed.config().containerd("ctr"))?;
    command.args(["--address", containerd::SOCKET, "--namespace", "k8s.io"]);
    exec::output(command.args(args))
}
