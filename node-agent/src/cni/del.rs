//! DEL and GC: remove all resources of a container, however incomplete. Resources are identified by container id only, so that DEL of
//! an old sandbox does not affect a newer one of the same pod.

use crate::pod::AttachError;
use std::collections::BTreeSet;

use api::cni::code;

use super::CniError;
use super::request::Call;
use crate::attach::Names;
use crate::node::Node;
use crate::node::timing::Steps;
use crate::pod::links;

/// Executes DEL. Unknown containers, missing namespaces and repeated calls succeed.
///
/// DEL succeeds without the Open_vSwitch database: the links are deleted at once, and the unconnected port is removed by
/// [`crate::cni::gc`] after the database has reconnected.
pub async fn del(node: &Node, call: &Call, steps: &mut Steps) -> Result<(), CniError> {
    let container = call.container_id.as_str();
    let (port, rest) = steps.time("release", release_each(node, container)).await;
    match (port, rest) {
        (Err(later), Ok(())) if later.code == code::TRY_AGAIN_LATER => {
            tracing::warn!(
                container,
                reason = later.msg,
                "cannot remove the OVS port now; it will be removed when the database has reconnected"
            );
            Ok(())
        }
        (port, rest) => join(port, rest),
    }
}

/// Removes all resources of one container.
///
/// # Errors
/// All failed steps; a failed step does not stop the others.
pub async fn release(node: &Node, container: &str) -> Result<(), CniError> {
    let (port, rest) = release_each(node, container).await;
    join(port, rest)
}

fn join(port: Result<(), CniError>, rest: Result<(), CniError>) -> Result<(), CniError> {
    CniError::join([port.err(), rest.err()].into_iter().flatten().collect()).map_or(Ok(()), Err)
}

/// Removes the OVS port and, separately, all other resources.
async fn release_each(node: &Node, container: &str) -> (Result<(), CniError>, Result<(), CniError>) {
    let names = Names::of(container);
    let port = node.ovs.delete_ports_of(container).await.map(drop).map_err(CniError::from);
    let mut errors = Vec::new();
    let mut note = |done: Result<(), AttachError>| errors.extend(done.err().map(CniError::from));
    note(links::remove_endpoint(&node.datapath, container).await);
    // Entries of other pods to this one are invalidated before its links are deleted.
    node.flow_cache.endpoint_removed(container);
    // Deleting one end deletes the pair. The shim is looked up in either mode, as the mode may have changed.
    note(links::delete_link(&node.reaper, &names.shim_agent, container).await);
    note(links::delete_link(&node.reaper, &names.host, container).await);
    (port, CniError::join(errors).map_or(Ok(()), Err))
}

/// Executes GC: removes all containers that are not in the runtime's list.
pub async fn gc(node: &Node, call: &Call) -> Result<(), CniError> {
    let Some(valid) = &call.conf.valid_attachments else {
        let msg = "GC: `cni.dev/valid-attachments` is missing; pass an empty list to remove all containers";
        return Err(CniError::new(code::INVALID_CONFIG, msg));
    };
    let valid: BTreeSet<&str> = valid.iter().map(|(id, _)| id.as_str()).collect();
    let mut errors = Vec::new();
    for container in containers(node).await? {
        if valid.contains(container.as_str()) {
            continue;
        }
        tracing::info!(container, "GC: removing container that is not in the runtime's list");
        let _turn = node.calls.turn(&container).await;
        errors.extend(release(node, &container).await.err());
    }
    CniError::join(errors).map_or(Ok(()), Err)
}

/// Ids of all containers with any resource on the node.
pub async fn containers(node: &Node) -> Result<BTreeSet<String>, CniError> {
    let mut all: BTreeSet<String> = node.ovs.pod_ports().into_iter().map(|port| port.sandbox).collect();
    let links = node.netlink.list().await?;
    all.extend(links.iter().filter_map(links::owner).map(str::to_owned));
    all.extend(links::endpoints(&node.datapath).await?.into_iter().map(|(id, _)| id));
    Ok(all)
}
