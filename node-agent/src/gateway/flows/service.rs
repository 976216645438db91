//! Flows of one service: packets for its node ports and external addresses go directly to OVN, whose load balancers serve them, and
//! OVN's replies go directly to the uplink. Where a node port is in the node's ephemeral port range, replies to the node's own
//! connections are separated first. A local-policy service with a backend in the host network is served on the bridge instead, because
//! OVN would hide the client's address from it. In gateway mode local the node's stack serves all of them.

use std::net::{IpAddr, SocketAddr};

use api::addr::Family;
use api::annotation::GatewayMode;

use super::{FamilyInputs, FlowSet, HOST_BACKEND_COOKIE, Inputs, Words, asked};
use crate::gateway::services::{NodeService, NodeServicePort};
use api::{NamespacedName, Protocol};

/// Priority of all service flows.
const PRIORITY: u16 = 110;
/// ICMPv6 type of a neighbour solicitation (RFC 4861).
const NEIGHBOUR_SOLICITATION: u8 = 135;

pub(super) fn add(
    set: &mut FlowSet,
    inputs: &Inputs,
    family: &FamilyInputs,
    patch: &str,
    service: &NodeService,
) {
    let kind = Family::of_net(&family.node);
    if service.cluster_ip(kind).is_none() {
        return;
    }
    let words = Words::of(kind);
    let cookie = cookie(&service.name);
    let by_ovn = inputs.mode == GatewayMode::Shared;
    for port in service.ports.iter().filter(|_| by_ovn) {
        match host_backend(family, service, port) {
            Some(target) => add_host_backend(set, inputs, family, patch, service, port, target),
            None => add_ovn(set, inputs, kind, patch, service, port, cookie),
        }
    }
    for ip in service.external_ips_of(kind) {
        let uplink = &inputs.uplink;
        let question = match ip {
            IpAddr::V4(ip) => format!("arp,in_port={uplink},arp_tpa={ip},arp_op=1"),
            IpAddr::V6(ip) => {
                format!("icmp6,in_port={uplink},icmp_type={NEIGHBOUR_SOLICITATION},nd_target={ip}")
            }
        };
        // The node answers for the address; OVN would send a second answer with the same MAC.
        set.add(cookie, 0, PRIORITY, question, "LOCAL");
        if !by_ovn {
            continue;
        }
        let Words { icmp, destination, too_big, .. } = words;
        let matches = format!("{icmp},in_port={uplink},{destination}={ip},{too_big}");
        set.add(cookie, 0, PRIORITY, matches, format!("output:{patch}"));
    }
}

fn add_ovn(
    set: &mut FlowSet,
    inputs: &Inputs,
    family: Family,
    patch: &str,
    service: &NodeService,
    port: &NodeServicePort,
    cookie: u64,
) {
    let Inputs { uplink, mac, .. } = inputs;
    let Words { source, destination, .. } = Words::of(family);
    let proto = proto(port.protocol, family);
    let mut pair = |to: String, from: String, own: bool| {
        let action = if own { asked::action(set, patch) } else { format!("output:{patch}") };
        set.add(cookie, 0, PRIORITY, format!("{proto},in_port={uplink},{to}"), action);
        let matches = format!("{proto},in_port={patch},dl_src={mac},{from}");
        set.add(cookie, 0, PRIORITY, matches, format!("output:{uplink}"));
    };
    if let Some(node_port) = port.node_port {
        let own = inputs.local_ports.contains(&node_port);
        pair(format!("tp_dst={node_port}"), format!("tp_src={node_port}"), own);
    }
    for ip in service.external_ips_of(family) {
        let port = port.port;
        pair(format!("{destination}={ip},tp_dst={port}"), format!("{source}={ip},tp_src={port}"), false);
    }
}

/// Sends packets directly to the node's own network stack, with the client's address kept.
fn add_host_backend(
    set: &mut FlowSet,
    inputs: &Inputs,
    family: &FamilyInputs,
    patch: &str,
    service: &NodeService,
    port: &NodeServicePort,
    target: u16,
) {
    let uplink = &inputs.uplink;
    let kind = Family::of_net(&family.node);
    let destination = Words::of(kind).destination;
    let to = SocketAddr::new(family.node.addr(), target);
    let proto = proto(port.protocol, kind);
    let c = HOST_BACKEND_COOKIE;
    let actions = format!("ct(commit,table=6,zone=64003,nat(dst={to}))");
    if let Some(node_port) = port.node_port {
        let matches = format!("{proto},in_port={uplink},tp_dst={node_port}");
        let actions = match inputs.local_ports.contains(&node_port) {
            true => asked::action_of(set, patch, &matches, &actions),
            false => actions.clone(),
        };
        set.add(c, 0, PRIORITY, matches, actions);
    }
    for ip in service.external_ips_of(kind) {
        let matches = format!("{proto},in_port={uplink},{destination}={ip},tp_dst={}", port.port);
        set.add(c, 0, PRIORITY, matches, actions.clone());
    }
    let matches = format!("{proto},in_port=LOCAL,tp_src={target}");
    set.add(c, 0, PRIORITY, matches, "ct(table=7,zone=64003,nat)");
    set.add(c, 6, PRIORITY, "", "LOCAL");
    set.add(c, 7, PRIORITY, "", format!("output:{uplink}"));
}

/// The port of a backend in this node's host network, when the service must keep the client's address.
fn host_backend(family: &FamilyInputs, service: &NodeService, port: &NodeServicePort) -> Option<u16> {
    if !service.external_local {
        return None;
    }
    port.local.iter().find(|(ip, _)| *ip == family.node.addr()).map(|(_, target)| *target)
}

fn proto(protocol: Protocol, family: Family) -> &'static str {
    match (protocol, family) {
        (Protocol::Tcp, Family::V4) => "tcp",
        (Protocol::Udp, Family::V4) => "udp",
        (Protocol::Sctp, Family::V4) => "sctp",
        (Protocol::Tcp, Family::V6) => "tcp6",
        (Protocol::Udp, Family::V6) => "udp6",
        (Protocol::Sctp, Family::V6) => "sctp6",
    }
}

/// Cookie of a service's flows, the same in every run: FNV-1a (64 bits) of its `namespace/name`.
fn cookie(service: &NamespacedName) -> u64 {
    api::hash::fnv1a(service.to_string().as_bytes())
}
