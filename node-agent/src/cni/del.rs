//! DEL and GC: everything of a container goes, whatever of it is left. Goes by container id alone, so that an old
//! sandbox's DEL cannot touch a newer one of the same pod.

use std::collections::BTreeSet;

use super::attach::{self, Names};
use super::request::Call;
use super::{CniError, steps::Steps};
use crate::node::Node;

/// DEL. Unknown containers, missing namespaces and repeated calls are fine.
pub async fn del(node: &Node, call: &Call, steps: &mut Steps) -> Result<(), CniError> {
    steps.time("release", release(node, &call.container_id)).await
}

/// Takes away everything of one container. Every step is tried; the failures come back together.
pub async fn release(node: &Node, container: &str) -> Result<(), CniError> {
    let names = Names::of(container);
    let mut errors = Vec::new();
    let mut note = |done: Result<(), CniError>| errors.extend(done.err());
    note(node.ovs.delete_ports_of(container).await.map(drop).map_err(CniError::from));
    note(attach::remove_endpoint(&node.datapath, container).await);
    // A pair goes with either end. The shim is looked for in every mode: the mode may have been another one.
    note(attach::delete_link(&node.netlink, &names.shim_agent, container).await);
    note(attach::delete_link(&node.netlink, &names.host, container).await);
    CniError::join(errors).map_or(Ok(()), Err)
}

/// GC: takes away every container that is not in the runtime's list.
pub async fn gc(node: &Node, call: &Call) -> Result<(), CniError> {
    let Some(valid) = &call.conf.valid_attachments else {
        let msg = "GC: `cni.dev/valid-attachments` is missing; an empty list is needed to free everything";
        return Err(CniError::new(api::cni::code::INVALID_CONFIG, msg));
    };
    let valid: BTreeSet<&str> = valid.iter().map(|(id, _)| id.as_str()).collect();
    let mut errors = Vec::new();
    for container in containers(node).await? {
        if valid.contains(container.as_str()) {
            continue;
        }
        tracing::info!(container, "GC: not in the runtime's list");
        let _turn = node.calls.turn(&container).await;
        errors.extend(release(node, &container).await.err());
    }
    CniError::join(errors).map_or(Ok(()), Err)
}

/// Every container of which something is on the node.
pub async fn containers(node: &Node) -> Result<BTreeSet<String>, CniError> {
    let mut all: BTreeSet<String> = node.ovs.pod_ports().into_iter().map(|port| port.sandbox).collect();
    let links = node.netlink.list().await?;
    all.extend(links.iter().filter_map(attach::owner).map(str::to_owned));
    if let Some(programs) = node.datapath.programs.clone() {
        let list =
            tokio::task::spawn_blocking(move || programs.list()).await.unwrap_or_else(|e| Err(e.to_string()));
        let list = list.map_err(|e| CniError::failure(format!("list of eBPF endpoints: {e}")))?;
        all.extend(list.into_iter().map(|(id, _)| id));
    }
    Ok(all)
}
