//! DEL and GC: remove all resources of a container, however incomplete. Resources are identified by container id only, so that DEL of
//! an old sandbox does not affect a newer one of the same pod.
//!
//! The interfaces of a container are those of its OVS ports and of its eBPF programs, which the agent has in memory. Where these do not
//! tell all, its links are looked for among those of the node: ADD adds the ports of all interfaces at once, after their links, so without
//! any port there may be links of an unfinished ADD.

use crate::pod::AttachError;
use std::collections::BTreeSet;

use api::annotation::PodNetworks;
use api::cni::code;
use serde_json::Value;

use super::request::Call;
use super::{CniError, further};
use crate::attach::{self, Names};
use crate::node::Node;
use crate::node::timing::Steps;
use crate::ovs::ports::PodPort;
use crate::pod::{endpoints, links};

/// Executes DEL. Unknown containers, missing namespaces and repeated calls succeed.
///
/// DEL succeeds without the Open_vSwitch database: the links are deleted at once, and the unconnected ports are removed by
/// [`crate::cni::gc`] after the database has reconnected.
///
/// # Errors
/// A link, port or entry of the container could not be removed.
pub async fn del(node: &Node, call: &Call, steps: &mut Steps) -> Result<(), CniError> {
    let container = call.container_id.as_str();
    let several = several_were_asked_for(node, call);
    let release = async {
        match further::ports(node, call) {
            Some(ports) => release_further(node, call, &ports).await,
            None => release_each(node, container, several).await,
        }
    };
    let (port, rest) = steps.time("release", release).await;
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

/// Removes the further interface that a call names; and what an unfinished ADD left of the container, once it has no interface. Fails in
/// parts as [`release_each`] does.
async fn release_further(
    node: &Node,
    call: &Call,
    ports: &[PodPort],
) -> (Result<(), CniError>, Result<(), CniError>) {
    let container = call.container_id.as_str();
    let (own, others): (Vec<&PodPort>, Vec<&PodPort>) =
        ports.iter().partition(|port| port.pod_interface == call.ifname);
    // Without a port there may be links of an ADD that was not finished: of this interface, unless they are those of another port.
    let by_number = further::number(node, call).map(|number| attach::interface_id(container, number));
    let mut ids: BTreeSet<String> = own.into_iter().map(PodPort::id).collect();
    ids.extend(by_number.filter(|id| others.iter().all(|port| port.id() != *id)));
    let (mut port_errors, mut errors) = (Vec::new(), Vec::new());
    for id in &ids {
        let (port, rest) = release_parts(node, id).await;
        port_errors.extend(port.err());
        errors.extend(rest.err());
    }
    // While the database is away, nothing tells whether the container has other interfaces.
    if others.is_empty() && node.ovs.replica().is_synced() {
        let (port, rest) = release_each(node, container, true).await;
        port_errors.extend(port.err());
        errors.extend(rest.err());
    }
    let done = |errors| CniError::join(errors).map_or(Ok(()), Err);
    (done(port_errors), done(errors))
}

/// Whether the result of ADD, which the runtime may pass, or the pod's annotation has several interfaces.
fn several_were_asked_for(node: &Node, call: &Call) -> bool {
    let prev = call.conf.prev_result.as_ref().and_then(|prev| prev.get("interfaces")?.as_array());
    let in_pod = |one: &&Value| one.get("sandbox").and_then(Value::as_str).is_some_and(|s| !s.is_empty());
    let annotation = || call.pod().and_then(|pod| node.pods.get(&pod)?.networks);
    let others = |text: String| PodNetworks::read(&text).is_ok_and(|(_, others)| !others.is_empty());
    prev.is_some_and(|list| list.iter().filter(in_pod).count() > 1) || annotation().is_some_and(others)
}

/// Removes all resources of one container.
///
/// # Errors
/// All failed steps; a failed step does not stop the others.
pub async fn release(node: &Node, container: &str) -> Result<(), CniError> {
    let (port, rest) = release_each(node, container, false).await;
    join(port, rest)
}

/// Removes all resources of one interface of a container.
///
/// # Errors
/// All failed steps; a failed step does not stop the others.
pub async fn release_interface(node: &Node, id: &str) -> Result<(), CniError> {
    let (port, rest) = release_parts(node, id).await;
    join(port, rest)
}

/// Removes the OVS port of one interface of a container and, separately, all other resources of it.
async fn release_parts(node: &Node, id: &str) -> (Result<(), CniError>, Result<(), CniError>) {
    let container = attach::container_of(id);
    let mut ports = ports(node, container);
    ports.retain(|port| port.id() == id);
    let port = delete_ports(node, &ports).await;
    let done = endpoints::remove(&node.datapath, id).await;
    let links = delete_links(node, container, &BTreeSet::from([id.to_owned()])).await;
    (port, together([done.err().map(CniError::from), links.err()]))
}

fn join(port: Result<(), CniError>, rest: Result<(), CniError>) -> Result<(), CniError> {
    together([port.err(), rest.err()])
}

fn together(errors: impl IntoIterator<Item = Option<CniError>>) -> Result<(), CniError> {
    CniError::join(errors.into_iter().flatten().collect()).map_or(Ok(()), Err)
}

/// Removes the OVS ports and, separately, all other resources. `several`: there may be interfaces beside the first.
async fn release_each(
    node: &Node,
    container: &str,
    several: bool,
) -> (Result<(), CniError>, Result<(), CniError>) {
    let ports = ports(node, container);
    let port = delete_ports(node, &ports).await;
    let (mut ids, done) = endpoints::remove_all(&node.datapath, container).await;
    ids.extend(ports.iter().map(PodPort::id));
    let mut looked = Ok(());
    if several || ports.is_empty() || ids.len() > 1 {
        match node.netlink.list().await {
            Ok(all) => ids.extend(links::interfaces_of(container, &all)),
            Err(error) => looked = Err(error),
        }
    }
    let links = delete_links(node, container, &ids).await;
    (port, together([done.err().map(CniError::from), looked.err().map(CniError::from), links.err()]))
}

fn ports(node: &Node, container: &str) -> Vec<PodPort> {
    node.ovs.ports_of(container).iter().filter_map(|row| PodPort::of(row)).collect()
}

async fn delete_ports(node: &Node, ports: &[PodPort]) -> Result<(), CniError> {
    let names: Vec<String> = ports.iter().map(|port| port.name.clone()).collect();
    node.ovs.delete_ports(&names).await.map_err(CniError::from)
}

/// Deletes the links of these interfaces of a container.
async fn delete_links(node: &Node, container: &str, ids: &BTreeSet<String>) -> Result<(), CniError> {
    // Entries of other pods to these are invalidated before the links are deleted.
    ids.iter().for_each(|id| node.flow_cache.endpoint_removed(id));
    let mut errors = Vec::new();
    let mut note = |done: Result<(), AttachError>| errors.push(done.err().map(CniError::from));
    for names in ids.iter().map(|id| Names::of(id)) {
        // Deleting one end deletes the pair. The shim is looked up in either mode, as the mode may have changed.
        note(links::delete_link(&node.reaper, &names.shim_agent, container).await);
        note(links::delete_link(&node.reaper, &names.host, container).await);
    }
    together(errors)
}

/// Executes GC: removes all containers that are not in the runtime's list.
///
/// # Errors
/// The resources could not be listed, or some not removed.
pub async fn gc(node: &Node, call: &Call) -> Result<(), CniError> {
    let Some(valid) = &call.conf.valid_attachments else {
        let msg = "GC: `cni.dev/valid-attachments` is missing; pass an empty list to remove all containers";
        return Err(CniError::new(code::INVALID_CONFIG, msg));
    };
    if !node.default_network || call.conf.network.is_some() {
        // The list has the containers on one definition's network. Others are on other networks, or on this one by another definition.
        tracing::debug!(network = call.conf.name, "GC of a definition: what is left over is removed anyway");
        return Ok(());
    }
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
///
/// # Errors
/// The resources could not be listed.
pub async fn containers(node: &Node) -> Result<BTreeSet<String>, CniError> {
    let mut all: BTreeSet<String> = node.ovs.pod_ports().into_iter().map(|port| port.sandbox).collect();
    let links = node.netlink.list().await?;
    all.extend(links.iter().filter_map(links::owner).map(str::to_owned));
    let ids = endpoints::list(&node.datapath).await?.into_iter().map(|(id, _)| id);
    all.extend(ids.map(|id| attach::container_of(&id).to_owned()));
    Ok(all)
}
