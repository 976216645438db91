//! Calls for a further interface of a container, as Multus makes them for each NetworkAttachmentDefinition after the call for the first one:
//! the same container, another `CNI_IFNAME`. The first ADD has made all interfaces of the pod, so a further one says what there is, and a
//! further DEL leaves it to that of the first, which removes everything.

use api::annotation::{PodNetwork, PodNetworks};

use super::CniError;
use super::request::Call;
use super::result::{AddResult, AddResults};
use crate::attach::{self, Names};
use crate::node::Node;
use crate::ovs::ports::PodPort;
use crate::pod::pod_netns::PodSide;

/// The container's ports, if the call is for a further interface: a first one has been made, with another name.
pub(super) fn ports(node: &Node, call: &Call) -> Option<Vec<PodPort>> {
    let rows = node.ovs.ports_of(&call.container_id);
    let ports: Vec<PodPort> = rows.iter().filter_map(|row| PodPort::of(row)).collect();
    is_further(&ports, &call.ifname).then_some(ports)
}

/// Whether a container with these ports has a first interface of another name.
pub(super) fn is_further(ports: &[PodPort], ifname: &str) -> bool {
    ports.iter().any(|port| attach::is_first(&port.id()) && port.pod_interface != ifname)
}

/// The result of ADD for an interface that the first ADD has made.
///
/// # Errors
/// The pod has no such interface, with those that it has; or its annotation is not known, and the runtime is to try again.
pub(super) async fn add(node: &Node, call: &Call, ports: &[PodPort]) -> Result<AddResults, CniError> {
    let ifname = call.ifname.as_str();
    let annotation = call.pod().and_then(|pod| node.pods.get(&pod)?.networks);
    let others = annotation.and_then(|text| Some(PodNetworks::all_of(&text).ok()?.1)).unwrap_or_default();
    let entry = others.values().find(|network| network.interface.as_deref() == Some(ifname));
    let port = ports.iter().find(|port| port.pod_interface == ifname);
    let Some(port) = port else { return Err(unknown(ifname, ports)) };
    let Some(network) = entry else {
        let why = "the interface is there, and the pod's annotation does not tell of it (yet)";
        return Err(CniError::again(format!("CNI_IFNAME `{ifname}`: {why}")));
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

fn unknown(ifname: &str, ports: &[PodPort]) -> CniError {
    let mut has: Vec<&str> = ports.iter().map(|port| port.pod_interface.as_str()).collect();
    has.sort_unstable();
    CniError::failure(format!(
        "CNI_IFNAME `{ifname}`: the pod has no such interface; it has {}. A pod gets all its interfaces by the first call: it names them in \
         annotation k8s.v1.cni.cncf.io/networks (the second of that list is net2 where the pod gives no name) or ovnNetwork when it is \
         made. Nothing was changed",
        has.join(", ")
    ))
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

    #[test]
    fn an_interface_that_is_not_there_is_refused_with_those_that_are() {
        let said = unknown("net9", &[port(0, "eth0"), port(1, "net1")]).msg;
        assert!(said.contains("`net9`") && said.contains("it has eth0, net1"), "{said}");
    }
}
