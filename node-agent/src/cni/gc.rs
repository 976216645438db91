//! Garbage collection of resources of deleted pods, at start and periodically, as a container's network namespace can disappear
//! without a DEL.
//!
//! An interface with a host veth is kept: the veth is deleted with the pod's namespace, so the pod may be alive, and a DEL will
//! follow. All resources of an interface without one are removed, whether or not the container has others. Interfaces are known by
//! their ids ([`attach::interface_id`]); the first one of a container has the container's.

use api::MacAddr;
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::attach::{self, Attach, Names};
use crate::bpf::{Endpoint, Mode};
use crate::cni::{CniError, del};
use crate::kernel::link::Link;
use crate::node::Node;
use crate::ovs::ports::PodPort;
use crate::pod::endpoints;
use crate::pod::links;

/// Interval of rounds, after the first few.
const PERIOD: Duration = Duration::from_secs(60);

/// Resources of interfaces of containers found on the node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// OVS ports by interface.
    pub ports: BTreeMap<String, PodPort>,
    /// Interfaces that have a link whose alias names the container.
    pub by_alias: BTreeSet<String>,
    /// Names of the veths on the node.
    pub veths: BTreeSet<String>,
    /// Interfaces with eBPF programs, and whether all of their programs are attached.
    pub endpoints: BTreeMap<String, bool>,
}

/// Actions of a round.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Interfaces to remove.
    pub release: BTreeSet<String>,
    /// Shims without a container, by the name of their agent end.
    pub shims: BTreeSet<String>,
    /// Interfaces without attached programs.
    pub reattach: BTreeSet<String>,
}

/// Computes the actions; pure. `programs`: attach mode, if the node uses eBPF programs.
pub fn plan(found: &Found, programs: Option<Attach>) -> Plan {
    let mut plan = Plan::default();
    let interfaces = found.ports.keys().chain(&found.by_alias).chain(found.endpoints.keys());
    for id in interfaces.collect::<BTreeSet<_>>() {
        let names = Names::of(id);
        if !found.veths.contains(&names.host) {
            plan.release.insert(id.clone());
        } else if programs.is_some_and(|mode| {
            let wanted = match mode {
                Attach::Direct => &names.host,
                Attach::Interposed => &names.shim_ovs,
            };
            found.ports.get(id).is_some_and(|port| port.name == *wanted)
        }) && found.endpoints.get(id) != Some(&true)
        {
            plan.reattach.insert(id.clone());
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
///
/// # Errors
/// Interfaces or endpoints could not be listed.
pub async fn look(node: &Node) -> Result<Found, CniError> {
    let links: Vec<Link> = node.netlink.list().await?;
    let veths = links.iter().filter(|l| l.kind.as_deref() == Some("veth"));
    let endpoints = endpoints::list(&node.datapath).await?.into_iter().collect();
    let interface = |link: &Link| {
        let container = links::owner(link)?;
        Some(attach::interface_of_link(&link.name, container).unwrap_or_else(|| container.to_owned()))
    };
    Ok(Found {
        ports: node.ovs.pod_ports().into_iter().map(|port| (port.id(), port)).collect(),
        by_alias: veths.clone().filter_map(interface).collect(),
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
    for id in &plan.release {
        let container = attach::container_of(id);
        let Some(_turn) = node.calls.try_turn(container) else { continue };
        // An ADD may have completed since the resources were listed.
        if node.netlink.find(&Names::of(id).host).await?.is_some() {
            continue;
        }
        tracing::info!(container, interface = id, "removing resources of a deleted container");
        errors.extend(del::release_interface(node, id).await.err());
        done += 1;
    }
    for shim in &plan.shims {
        tracing::info!(shim, "removing a shim without a container");
        errors.extend(node.reaper.delete_if_exists(shim).await.err().map(CniError::from));
        done += 1;
    }
    for id in &plan.reattach {
        let container = attach::container_of(id);
        let Some(_turn) = node.calls.try_turn(container) else { continue };
        let Some(port) = found.ports.get(id) else { continue };
        tracing::info!(container, interface = id, "attaching missing eBPF programs");
        errors.extend(reattach(node, id, port).await.err());
        done += 1;
    }
    CniError::join(errors).map_or(Ok(done), Err)
}

async fn reattach(node: &Node, id: &str, port: &PodPort) -> Result<(), CniError> {
    let names = Names::of(id);
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
    // The `bandwidth` plugin limits the interface that the runtime named.
    let limits_sending = || node.pods.of_port(port).is_some_and(|pod| pod.limits_sending);
    let shares_ingress = attach::is_first(id) && limits_sending();
    let endpoint = Endpoint {
        id: id.to_owned(),
        host_ifindex: host.index,
        mode: Mode::of_shim(shim),
        addresses,
        mac: mac.0,
        shares_ingress,
    };
    endpoints::add(&node.datapath, attach::container_of(id), vec![endpoint]).await?;
    node.flow_cache.endpoint_added(id);
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
    fn an_interface_without_its_veth_goes_and_the_others_of_the_container_stay() {
        let (net1, net2) = (attach::interface_id(A, 1), attach::interface_id(A, 2));
        let host = |id: &str| Names::of(id).host;
        let of = |id: &str| {
            let (_, port) = port(&host(id), A);
            (port.id(), port)
        };
        let found = Found {
            ports: [of(A), of(&net1), of(&net2)].into(),
            by_alias: set(&[A, &net2]),
            veths: set(&[&host(A), &host(&net2)]),
            endpoints: [(A.to_owned(), true), (net1.clone(), true), (net2.clone(), false)].into(),
        };
        assert_eq!(found.ports.len(), 3);
        assert_eq!(
            plan(&found, Some(Attach::Direct)),
            Plan { release: set(&[&net1]), reattach: set(&[&net2]), ..Plan::default() }
        );
        // The first one is no exception.
        let found = Found { veths: set(&[&host(&net1), &host(&net2)]), ..found };
        assert_eq!(plan(&found, None), Plan { release: set(&[A]), ..Plan::default() });
    }

    #[test]
    fn a_shim_of_any_interface_is_removed_when_nobody_claims_it() {
        let names = Names::of(&attach::interface_id(A, 12));
        let shim = [names.shim_agent.as_str(), &names.shim_ovs];
        let found = Found { veths: set(&shim), ..Found::default() };
        assert_eq!(plan(&found, None).shims, set(&shim[..1]));
        let found = Found { veths: set(&[shim[0], shim[1], &names.host]), ..Found::default() };
        assert_eq!(plan(&found, None), Plan::default(), "its pod may be alive");
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
