//! Flows of one service: packets for its node ports and external addresses go straight to OVN, whose load balancers serve
//! them, and OVN's answers straight out. A local-policy service with a backend in the host network is served on the bridge
//! instead, because OVN would hide the client's address from it.

use super::{FlowSet, HOST_BACKEND_COOKIE, Inputs};
use crate::gateway::services::{NodeService, NodeServicePort, Protocol};

/// Priority of all service flows.
const PRIORITY: u16 = 110;

pub(super) fn add(set: &mut FlowSet, inputs: &Inputs, patch: &str, service: &NodeService) {
    let cookie = cookie(&service.key);
    for port in &service.ports {
        if let Some(target) = host_backend(inputs, service, port) {
            add_host_backend(set, inputs, service, port, target);
            continue;
        }
        add_ovn(set, inputs, patch, service, port, cookie);
    }
    for ip in &service.external_ips {
        let uplink = &inputs.uplink;
        // The node answers for the address; OVN would answer with the same MAC a second time.
        set.add(cookie, 0, PRIORITY, format!("arp,in_port={uplink},arp_tpa={ip},arp_op=1"), "LOCAL");
        set.add(
            cookie,
            0,
            PRIORITY,
            format!("icmp,in_port={uplink},nw_dst={ip},icmp_type=3,icmp_code=4"),
            format!("output:{patch}"),
        );
    }
}

fn add_ovn(
    set: &mut FlowSet,
    inputs: &Inputs,
    patch: &str,
    service: &NodeService,
    port: &NodeServicePort,
    cookie: u64,
) {
    let Inputs { uplink, mac, .. } = inputs;
    let proto = proto(port.protocol);
    let mut pair = |to: String, from: String| {
        set.add(cookie, 0, PRIORITY, format!("{proto},in_port={uplink},{to}"), format!("output:{patch}"));
        let matches = format!("{proto},in_port={patch},dl_src={mac},{from}");
        set.add(cookie, 0, PRIORITY, matches, format!("output:{uplink}"));
    };
    if let Some(node_port) = port.node_port {
        pair(format!("tp_dst={node_port}"), format!("tp_src={node_port}"));
    }
    for ip in &service.external_ips {
        pair(format!("nw_dst={ip},tp_dst={}", port.port), format!("nw_src={ip},tp_src={}", port.port));
    }
}

/// Straight to the node's own network stack, with the client's address kept.
fn add_host_backend(
    set: &mut FlowSet,
    inputs: &Inputs,
    service: &NodeService,
    port: &NodeServicePort,
    target: u16,
) {
    let uplink = &inputs.uplink;
    let node = inputs.node.addr();
    let proto = proto(port.protocol);
    let c = HOST_BACKEND_COOKIE;
    let actions = format!("ct(commit,table=6,zone=64003,nat(dst={node}:{target}))");
    if let Some(node_port) = port.node_port {
        set.add(c, 0, PRIORITY, format!("{proto},in_port={uplink},tp_dst={node_port}"), actions.clone());
    }
    for ip in &service.external_ips {
        let matches = format!("{proto},in_port={uplink},nw_dst={ip},tp_dst={}", port.port);
        set.add(c, 0, PRIORITY, matches, actions.clone());
    }
    let matches = format!("{proto},in_port=LOCAL,tp_src={target}");
    set.add(c, 0, PRIORITY, matches, "ct(table=7,zone=64003,nat)");
    set.add(c, 6, PRIORITY, "", "LOCAL");
    set.add(c, 7, PRIORITY, "", format!("output:{uplink}"));
}

/// The port of a backend in this node's host network, when the service must keep the client's address.
fn host_backend(inputs: &Inputs, service: &NodeService, port: &NodeServicePort) -> Option<u16> {
    if !service.external_local {
        return None;
    }
    port.local.iter().find(|(ip, _)| *ip == inputs.node.addr()).map(|(_, target)| *target)
}

fn proto(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    }
}

/// A number that is the same for a service in every run: FNV-1a (64 bits) of its `namespace/name`.
fn cookie(key: &str) -> u64 {
    key.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3))
}
