//! Calls for a further interface of a container, as Multus makes them for each NetworkAttachmentDefinition: the same container, another
//! `CNI_IFNAME`. Such an ADD makes that interface alone, or says what there is, and such a DEL removes that one alone.
//!
//! Where Slipstream has the cluster's network, the call for the first interface comes before. It makes the pod's other interfaces too, but
//! leaves those to the calls for them that Multus will make: Multus refuses a name that is there. Where another plugin has the cluster's
//! network, every call is for a further interface.

use std::collections::BTreeSet;

use api::NamespacedName;
use api::annotation::{PodNetwork, PodNetworks};
use api::pod_attachments::selections;

use super::CniError;
use super::installer::multus::Multus;
use super::interfaces::{Interfaces, unknown};
use super::request::Call;
use super::result::{AddResult, AddResults};
use crate::attach::{self, Names};
use crate::node::Node;
use crate::ovs::ports::PodPort;
use crate::pod::pod_netns::PodSide;

/// The container's ports, if the call is for a further interface.
pub(super) fn ports(node: &Node, call: &Call) -> Option<Vec<PodPort>> {
    let rows = node.ovs.ports_of(&call.container_id);
    let ports: Vec<PodPort> = rows.iter().filter_map(|row| PodPort::of(row)).collect();
    (!node.default_network || is_further(&ports, &call.ifname)).then_some(ports)
}

/// Whether a container with these ports has a first interface of another name.
pub(super) fn is_further(ports: &[PodPort], ifname: &str) -> bool {
    ports.iter().any(|port| attach::is_first(&port.id()) && port.pod_interface != ifname)
}

/// Interfaces of a pod for which calls of their own will come: those that it names in the annotation that Multus reads, while Multus is
/// what the container runtime calls.
///
/// # Errors
/// The runtime's configurations cannot be read, and the runtime is to try again.
pub(super) async fn called_for(node: &Node, pod: &NamespacedName) -> Result<BTreeSet<String>, CniError> {
    let Some(text) = node.pods.get(pod).and_then(|info| info.selections) else { return Ok(BTreeSet::new()) };
    // The controller refuses an annotation that cannot be read.
    let Ok(named) = selections(&text) else { return Ok(BTreeSet::new()) };
    let directory = node.cni_conf_dir.clone();
    let looked = tokio::task::spawn_blocking(move || Multus::in_use(&directory)).await;
    let failed = |error: String| {
        CniError::again(format!("CNI configurations in {}: {error}", node.cni_conf_dir.display()))
    };
    let multus = looked.map_err(|e| failed(e.to_string()))?.map_err(|e| failed(e.to_string()))?;
    Ok(multus.iter().flat_map(|_| &named).map(|selection| selection.interface.clone()).collect())
}

/// Refuses a call whose configuration names another network than the interface is on.
pub(super) fn fits(call: &Call, all: &Interfaces) -> Result<(), CniError> {
    let Some(named) = &call.conf.network else { return Ok(()) };
    let name = named.rsplit('/').next().unwrap_or_default();
    let is_on = |key: &str| key.split('/').nth(1) == Some(name);
    match all.all().find(|one| !is_on(&one.key)) {
        None => Ok(()),
        Some(one) => Err(CniError::failure(format!(
            "CNI_IFNAME `{}`: the pod has this interface on virtual network {}, and the network configuration `{}` is for {named}. \
             Nothing was changed",
            call.ifname, one.key, call.conf.name
        ))),
    }
}

/// The result of ADD for an interface that is there already.
///
/// # Errors
/// The pod's annotation does not tell of the interface: either it is not known, and the runtime is to try again, or it is not the pod's.
pub(super) async fn told(node: &Node, call: &Call, port: &PodPort) -> Result<AddResults, CniError> {
    let ifname = call.ifname.as_str();
    let annotation = call.pod().and_then(|pod| node.pods.get(&pod)?.networks);
    let Some(text) = annotation else {
        let why = "the interface is there, and the pod's annotation is not known (yet)";
        return Err(CniError::again(format!("CNI_IFNAME `{ifname}`: {why}")));
    };
    let others = PodNetworks::read(&text).map(|(_, others)| others).unwrap_or_default();
    let entry = others.values().find(|network| network.interface.as_deref() == Some(ifname));
    let Some(network) = entry else {
        let has: Vec<String> = others.values().filter_map(|network| network.interface.clone()).collect();
        return Err(unknown(ifname, &has));
    };
    let names = Names::of(&port.id());
    let host = node.netlink.get(&names.host).await?;
    Ok(result(call, network, names.host, host.mac.unwrap_or_default(), node.mtu))
}

fn result(
    call: &Call,
    network: &PodNetwork,
    host: String,
    host_mac: api::MacAddr,
    cluster_mtu: u32,
) -> AddResults {
    let side = PodSide::new(&call.ifname, network, true, false);
    AddResults {
        interfaces: vec![AddResult {
            host,
            host_mac,
            ifname: call.ifname.clone(),
            mac: network.mac_address,
            sandbox: call.netns.clone().unwrap_or_default(),
            mtu: network.mtu.unwrap_or(cluster_mtu),
            ips: network.ip_addresses.iter().map(|a| (*a, side.gateway_of(a))).collect(),
        }],
        routes: side.all_routes(),
    }
}

/// Number of an interface among the further ones of its pod, from 1, by the pod's annotation.
pub(super) fn number(node: &Node, call: &Call) -> Option<usize> {
    let text = call.pod().and_then(|pod| node.pods.get(&pod)?.networks)?;
    let (_, others) = PodNetworks::read(&text).ok()?;
    let at = others.values().position(|network| network.interface.as_deref() == Some(&call.ifname))?;
    Some(at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(number: usize, pod_interface: &str) -> PodPort {
        let sandbox = match number {
            0 => "c1".to_owned(),
            number => attach::interface_id("c1", number),
        };
        PodPort {
            name: "h".to_owned(),
            iface_id: "x_a".to_owned(),
            iface_id_ver: "u".to_owned(),
            sandbox,
            pod_interface: pod_interface.to_owned(),
            mac: String::new(),
            addresses: String::new(),
        }
    }

    #[test]
    fn a_call_is_for_a_further_interface_once_the_first_has_another_name() {
        let ports = [port(0, "eth0"), port(1, "net1")];
        assert!(is_further(&ports, "net1") && is_further(&ports, "net9"));
        assert!(!is_further(&ports, "eth0"));
        assert!(!is_further(&[], "eth0") && !is_further(&[], "net1"));
        assert!(
            !is_further(&ports[1..], "net1"),
            "a rest without its first interface is removed by any call"
        );
    }
}
