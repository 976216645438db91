//! Garbage collection of resources of deleted pods, at start and periodically, as a container's network namespace can disappear
//! without a DEL.
//!
//! A container with a host veth is kept: the veth is deleted with the pod's namespace, so the pod may be alive, and a DEL will
//! follow. All resources of a container without one are removed.

use api::MacAddr;
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::attach::Attach;
use crate::attach::Names;
use crate::bpf::{Endpoint, Mode};
use crate::cni::{CniError, del};
use crate::kernel::link::Link;
use crate::node::Node;
use crate::ovs::ports::PodPort;
use crate::pod::links;

/// Interval of rounds, after the first few.
const PERIOD: Duration = Duration::from_secs(60);

/// Resources of containers found on the node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// OVS ports by container.
    pub ports: BTreeMap<String, PodPort>,
    /// Containers named in the alias of a link.
    pub by_alias: BTreeSet<String>,
    /// Names of the veths on the node.
    pub veths: BTreeSet<String>,
    /// Containers with eBPF programs, and whether all of their programs are attached.
    pub endpoints: BTreeMap<String, bool>,
}

/// Actions of a round.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Containers to remove.
    pub release: BTreeSet<String>,
    /// Shims without a container, by the name of their agent end.
    pub shims: BTreeSet<String>,
    /// Containers without attached programs.
    pub reattach: BTreeSet<String>,
}

/// Computes the actions; pure. `programs`: attach mode, if the node uses eBPF programs.
pub fn plan(found: &Found, programs: Option<Attach>) -> Plan {
    let mut plan = Plan::default();
    let containers = found.ports.keys().chain(&found.by_alias).chain(found.endpoints.keys());
    for container in containers.collect::<BTreeSet<_>>() {
        let names = Names::of(container);
        if !found.veths.contains(&names.host) {
            plan.release.insert(container.clone());
        } else if programs.is_some_and(|mode| {
            let wanted = match mode {
                Attach::Direct => &names.host,
                Attach::Interposed => &names.shim_ovs,
            };
            found.ports.get(container).is_some_and(|port| port.name == *wanted)
        }) && found.endpoints.get(container) != Some(&true)
        {
            plan.reattach.insert(container.clone());
        }
    }
    // A shim created by an agent that exited before it set the alias.
    for agent in &found.veths {
        let Some(id) = agent.strip_prefix("sa").filter(|id| id.len() == 13) else { continue };
        let ours = found.veths.contains(&format!("so{id}"));
        let claimed = found.by_alias.iter().chain(found.ports.keys()).any(|c| c.starts_with(id));
        let pod = found.veths.iter().any(|name| name.len() == 15 && name.starts_with(id));
        if ours && !claimed && !pod {
            plan.shims.insert(agent.clone());
        }
    }
    plan
}

/// Collects all resources of containers.
pub async fn look(node: &Node) -> Result<Found, CniError> {
    let links: Vec<Link> = node.netlink.list().await?;
    let veths = links.iter().filter(|l| l.kind.as_deref() == Some("veth"));
    let endpoints = links::endpoints(&node.datapath).await?.into_iter().collect();
    Ok(Found {
        ports: node.ovs.pod_ports().into_iter().map(|port| (port.sandbox.clone(), port)).collect(),
        by_alias: veths.clone().filter_map(links::owner).map(str::to_owned).collect(),
        veths: veths.map(|l| l.name.clone()).collect(),
        endpoints,
    })
}

/// Runs one round. Containers with a CNI call in progress are skipped. Failures of single containers are logged and retried by the
/// next round. Returns the number of actions taken.
///
/// # Errors
/// The resources cannot be listed.
pub async fn round(node: &Node) -> Result<usize, CniError> {
    let found = look(node).await?;
    let programs = node.datapath.programs.as_ref().map(|_| node.datapath.attach);
    let plan = plan(&found, programs);
    let mut errors = Vec::new();
    let mut done = 0;
    for container in &plan.release {
        let Some(_turn) = node.calls.try_turn(container) else { continue };
        // An ADD may have completed since the resources were listed.
        if node.netlink.find(&Names::of(container).host).await?.is_some() {
            continue;
        }
        tracing::info!(container, "removing resources of a deleted container");
        errors.extend(del::release(node, container).await.err());
        done += 1;
    }
    for shim in &plan.shims {
        tracing::info!(shim, "removing a shim without a container");
        errors.extend(node.reaper.delete_if_exists(shim).await.err().map(CniError::from));
        done += 1;
    }
    for container in &plan.reattach {
        let Some(_turn) = node.calls.try_turn(container) else { continue };
        let Some(port) = found.ports.get(container) else { continue };
        tracing::info!(container, "attaching missing eBPF programs");
        errors.extend(reattach(node, container, port).await.err());
        done += 1;
    }
    CniError::join(errors).map_or(Ok(done), Err)
}

async fn reattach(node: &Node, container: &str, port: &PodPort) -> Result<(), CniError> {
    let names = Names::of(container);
    let host = node.netlink.get(&names.host).await?;
    let shim = match node.datapath.attach {
        Attach::Direct => None,
        Attach::Interposed => {
            let ends = (node.netlink.get(&names.shim_agent).await?, node.netlink.get(&names.shim_ovs).await?);
            Some((ends.0.index, ends.1.index))
        }
    };
    let bad = |what: String| CniError::failure(format!("OVS port {}: {what}", port.name));
    let mut addresses = Vec::new();
    for address in port.addresses.split(',').filter(|a| !a.is_empty()) {
        let net: IpNet = address.parse().map_err(|e| bad(format!("ip_addresses `{address}`: {e}")))?;
        addresses.push(net.addr());
    }
    let mac: MacAddr = port.mac.parse().map_err(|e| bad(format!("attached_mac: {e}")))?;
    let shares_ingress = node.pods.of_port(port).is_some_and(|pod| pod.limits_sending);
    let endpoint = Endpoint {
        id: container.to_owned(),
        host_ifindex: host.index,
        mode: Mode::of_shim(shim),
        addresses,
        mac: mac.0,
        shares_ingress,
    };
    links::add_endpoint(&node.datapath, endpoint).await?;
    node.flow_cache.endpoint_added(container);
    Ok(())
}

/// Runs rounds: several soon after the start, as namespaces disappear shortly after their last process, then periodically, and one
/// after each reconnection of the database. Never returns.
pub async fn follow(node: Node) {
    let mut connected = node.ovs.replica().synced();
    let soon = [2, 5, 10, 20].map(Duration::from_secs);
    for wait in soon.into_iter().chain(std::iter::repeat(PERIOD)) {
        connected.mark_unchanged();
        // Both start a round.
        let _ = tokio::time::timeout(wait, connected.changed()).await;
        if !node.ovs.replica().is_synced() {
            continue;
        }
        if let Err(error) = round(&node).await {
            tracing::warn!(%error, "garbage collection failed; retrying");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(name: &str, sandbox: &str) -> (String, PodPort) {
        let port = PodPort {
            name: name.to_owned(),
            iface_id: "ns_p".to_owned(),
            iface_id_ver: "u".to_owned(),
            sandbox: sandbox.to_owned(),
            pod_interface: "eth0".to_owned(),
            mac: String::new(),
            addresses: String::new(),
        };
        (sandbox.to_owned(), port)
    }

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|n| (*n).to_owned()).collect()
    }

    const A: &str = "aaaaaaaaaaaaaaaaaaaa";
    const B: &str = "bbbbbbbbbbbbbbbbbbbb";

    #[test]
    fn a_living_pod_stays_and_one_without_its_veth_goes() {
        let found = Found {
            ports: [port(&A[..15], A), port(&B[..15], B)].into(),
            by_alias: set(&[A]),
            veths: set(&[&A[..15], "eth0peer"]),
            ..Found::default()
        };
        assert_eq!(plan(&found, None), Plan { release: set(&[B]), ..Plan::default() });
    }

    #[test]
    fn shims_go_with_their_pod_and_programs_come_back_to_the_living() {
        let names = Names::of(A);
        let dead = Names::of(B);
        let found = Found {
            ports: [port(&names.shim_ovs, A)].into(),
            by_alias: set(&[A, B]),
            veths: set(&[&names.host, &names.shim_agent, &names.shim_ovs, &dead.shim_agent, &dead.shim_ovs]),
            endpoints: [(B.to_owned(), true)].into(),
        };
        assert_eq!(
            plan(&found, Some(Attach::Interposed)),
            Plan { release: set(&[B]), reattach: set(&[A]), ..Plan::default() }
        );
    }

    #[test]
    fn programs_come_to_a_pod_only_in_the_way_it_is_attached() {
        let names = Names::of(A);
        for (name, mode) in [(&names.host, Attach::Direct), (&names.shim_ovs, Attach::Interposed)] {
            let found = Found {
                ports: [port(name, A)].into(),
                veths: set(&[&names.host, &names.shim_agent, &names.shim_ovs]),
                by_alias: set(&[A]),
                ..Found::default()
            };
            let other = if mode == Attach::Direct { Attach::Interposed } else { Attach::Direct };
            assert_eq!(plan(&found, Some(mode)).reattach, set(&[A]));
            assert_eq!(plan(&found, Some(other)).reattach, set(&[]));
        }
    }

    #[test]
    fn only_a_shim_nobody_claims_is_removed_by_its_name() {
        let (a, b) = (Names::of(A), Names::of(B));
        let veths =
            set(&[&a.shim_agent, &a.shim_ovs, &b.host, &b.shim_agent, &b.shim_ovs, "sa-eth0", "so-eth0"]);
        let found = Found { veths, ..Found::default() };
        assert_eq!(
            plan(&found, Some(Attach::Interposed)),
            Plan { shims: set(&[&a.shim_agent]), ..Plan::default() }
        );
    }
}
