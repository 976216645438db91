//! DEL and GC: everything of a container goes, whatever of it is left. Goes by container id alone, so that an old
//! sandbox's DEL cannot touch a newer one of the same pod.

use crate::pod::AttachError;
use std::collections::BTreeSet;

use api::cni::code;

use super::CniError;
use super::request::Call;
use crate::attach::Names;
use crate::node::Node;
use crate::node::timing::Steps;
use crate::pod::links;

/// DEL. Unknown containers, missing namespaces and repeated calls are fine.
///
/// A database that is away does not keep a pod from going: the links go now, and the port, which connects nothing any
/// more, goes with the first round of [`crate::cni::gc`] after the database is back.
pub async fn del(node: &Node, call: &Call, steps: &mut Steps) -> Result<(), CniError> {
    let container = call.container_id.as_str();
    let (port, rest) = steps.time("release", release_each(node, container)).await;
    match (port, rest) {
        (Err(later), Ok(())) if later.code == code::TRY_AGAIN_LATER => {
            tracing::warn!(
                container,
                reason = later.msg,
                "the OVS port is removed when the database is back"
            );
            Ok(())
        }
        (port, rest) => join(port, rest),
    }
}

/// Takes away everything of one container. Every step is tried; the failures come back together.
pub async fn release(node: &Node, container: &str) -> Result<(), CniError> {
    let (port, rest) = release_each(node, container).await;
    join(port, rest)
}

fn join(port: Result<(), CniError>, rest: Result<(), CniError>) -> Result<(), CniError> {
    CniError::join([port.err(), rest.err()].into_iter().flatten().collect()).map_or(Ok(()), Err)
}

/// The OVS port, and the rest.
async fn release_each(node: &Node, container: &str) -> (Result<(), CniError>, Result<(), CniError>) {
    let names = Names::of(container);
    let port = node.ovs.delete_ports_of(container).await.map(drop).map_err(CniError::from);
    let mut errors = Vec::new();
    let mut note = |done: Result<(), AttachError>| errors.extend(done.err().map(CniError::from));
    note(links::remove_endpoint(&node.datapath, container).await);
    // Flows of other pods to this one end before its links do.
    node.flow_cache.endpoint_removed(container);
    // A pair goes with either end. The shim is looked for in every mode: the mode may have been another one.
    note(links::delete_link(&node.reaper, &names.shim_agent, container).await);
    note(links::delete_link(&node.reaper, &names.host, container).await);
    (port, CniError::join(errors).map_or(Ok(()), Err))
}

/// GC: takes away every container that is not in the runtime's list.
pub async fn gc(node: &Node, call: &Call) -> Result<(), CniError> {
    let Some(valid) = &call.conf.valid_attachments else {
        let msg = "GC: `cni.dev/valid-attachments` is missing; an empty list is needed to free everything";
        return Err(CniError::new(code::INVALID_CONFIG, msg));
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
    all.extend(links.iter().filter_map(links::owner).map(str::to_owned));
    all.extend(links::endpoints(&node.datapath).await?.into_iter().map(|(id, _)| id));
    Ok(all)
}
