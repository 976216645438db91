//! Flow table of the gateway bridge, computed from plain values; pure. Node and OVN gateway router share one MAC and one IP address
//! per family on the bridge; connection tracking marks record which of them owns a connection.
//!
//! Connection tracking zones: 64000 connections of node and OVN to the outside, 64001 host masquerade (`.2`), 64002 OVN
//! masquerade (`.1`), 64003 services with a backend in the host network, 64004 reassembly of fragments. Marks: 1 came from
//! OVN, 2 came from the node. Tables, priorities, zones and marks are those of ovn-kubernetes, so that nodes of both can be
//! inspected in the same way.
//!
//! In gateway mode local connections that come from the outside are the node's, whose stack translates what is for services; what OVN's
//! gateway router itself begins leaves by the bridge as in mode shared.

pub mod asked;
pub mod second;
mod service;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use api::MacAddr;
use api::addr::Family;
use api::annotation::GatewayMode;
use ipnet::IpNet;

use super::services::NodeService;

/// Cookie of flows that do not belong to a service.
pub const BASE_COOKIE: u64 = 0x0def_f105;
/// Cookie of flows that keep "fragmentation needed" away from other nodes.
pub const PMTUD_COOKIE: u64 = 0x304;
/// Cookie of flows of local-policy services with a backend in the host network.
pub const HOST_BACKEND_COOKIE: u64 = 0x00e7_45ec_f105;
/// UDP port of Geneve (RFC 8926).
pub(super) const GENEVE: u16 = 6081;
/// UDP port of bidirectional forwarding detection (RFC 5881).
const BFD: u16 = 3784;
/// ICMPv6 types of neighbour discovery (RFC 4861).
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
/// Mark that OVN puts on packets whose source the bridge must translate to the node's address.
const TRANSLATE_MARK: u32 = 0x3f0;

/// Inputs of the flow table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inputs {
    /// Way of pods to the outside.
    pub mode: GatewayMode,
    /// Port of the uplink on the bridge: a number, or a name for display.
    pub uplink: String,
    /// OVN's patch port on the bridge; `None` until ovn-controller has created it.
    pub patch: Option<String>,
    /// MAC address of bridge, uplink and gateway router.
    pub mac: MacAddr,
    /// The address families of the gateway.
    pub families: Vec<FamilyInputs>,
    /// Addresses of the other nodes.
    pub remote_nodes: BTreeSet<IpAddr>,
    /// Tunnel endpoints: of this node, of the other nodes, and of all tunnels of OVS.
    pub tunnel_ends: BTreeSet<IpAddr>,
    /// Ephemeral port range of the node.
    pub local_ports: RangeInclusive<u16>,
}

/// Inputs for one address family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FamilyInputs {
    /// Address of node and gateway router.
    pub node: IpNet,
    /// Service ranges.
    pub service_cidrs: Vec<IpNet>,
    /// Masquerade address that represents OVN (`.1`).
    pub masquerade_ovn: IpAddr,
    /// Masquerade address that represents the host (`.2`).
    pub masquerade_host: IpAddr,
}

/// Match syntax of one address family (ovs-fields(7)).
struct Words {
    ip: &'static str,
    icmp: &'static str,
    udp: &'static str,
    source: &'static str,
    destination: &'static str,
    /// "Fragmentation needed" (RFC 792), "packet too big" (RFC 4443).
    too_big: &'static str,
}

impl Words {
    fn of(family: Family) -> Self {
        match family {
            Family::V4 => Self {
                ip: "ip",
                icmp: "icmp",
                udp: "udp",
                source: "nw_src",
                destination: "nw_dst",
                too_big: "icmp_type=3,icmp_code=4",
            },
            Family::V6 => Self {
                ip: "ipv6",
                icmp: "icmp6",
                udp: "udp6",
                source: "ipv6_src",
                destination: "ipv6_dst",
                too_big: "icmp_type=2,icmp_code=0",
            },
        }
    }
}

/// Key of a flow: table, priority and match. Also the output order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct FlowKey {
    table: u8,
    priority: u16,
    matches: String,
}

/// A set of flows, at most one per key; the first one added wins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FlowSet(BTreeMap<FlowKey, (u64, String)>);

impl FlowSet {
    pub(super) fn add(
        &mut self,
        cookie: u64,
        table: u8,
        priority: u16,
        matches: impl Into<String>,
        actions: impl Into<String>,
    ) {
        let key = FlowKey { table, priority, matches: matches.into() };
        self.0.entry(key).or_insert_with(|| (cookie, actions.into()));
    }

    /// Flows that `other` does not have, or has with other actions.
    pub fn beyond(&self, other: &Self) -> Self {
        let new = self.0.iter().filter(|(key, flow)| other.0.get(key) != Some(flow));
        Self(new.map(|(key, flow)| (key.clone(), flow.clone())).collect())
    }

    /// Flows of this set, and flows of `other` that have another key.
    pub fn over(self, mut other: Self) -> Self {
        other.0.extend(self.0);
        other
    }

    /// Number of flows.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True when there is no flow.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for FlowSet {
    /// Formats one flow per line for `ovs-ofctl`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (key, (cookie, actions)) in &self.0 {
            write!(f, "cookie={cookie:#x},table={},priority={}", key.table, key.priority)?;
            if !key.matches.is_empty() {
                write!(f, ",{}", key.matches)?;
            }
            writeln!(f, ",actions={actions}")?;
        }
        Ok(())
    }
}

/// Flow table of a learning switch, as OVS creates it for a new bridge.
pub fn switching() -> FlowSet {
    let mut set = FlowSet::default();
    set.add(0, 0, 0, "", "NORMAL");
    set
}

/// Flow table of the bridge. Without OVN's patch port it is that of a learning switch.
pub fn compute(inputs: &Inputs, services: &[NodeService]) -> FlowSet {
    let mut set = switching();
    let Some(patch) = &inputs.patch else { return set };
    by_mac(&mut set, inputs, patch);
    between(&mut set, inputs, patch);
    forged(&mut set, inputs, patch);
    for family in &inputs.families {
        let words = Words::of(Family::of_net(&family.node));
        outside(&mut set, inputs, family, &words, patch);
        masquerade(&mut set, family, &words, patch);
        replies(&mut set, inputs, &words, patch);
    }
    if inputs.families.iter().any(|family| family.node.addr().is_ipv6()) {
        discovery(&mut set);
    }
    for service in services {
        for family in &inputs.families {
            service::add(&mut set, inputs, family, patch, service);
        }
    }
    set
}

/// Flows that do not depend on the address family: separation by MAC.
fn by_mac(set: &mut FlowSet, inputs: &Inputs, patch: &str) {
    let Inputs { mac, .. } = inputs;
    let c = BASE_COOKIE;
    for remote in &inputs.remote_nodes {
        let Words { icmp, destination, too_big, .. } = Words::of(Family::of(*remote));
        let matches = format!("{icmp},in_port={patch},{destination}={remote},{too_big}");
        set.add(PMTUD_COOKIE, 0, 700, matches, "drop");
    }
    set.add(c, 0, 10, format!("dl_dst={mac}"), format!("output:{patch},NORMAL"));
    set.add(c, 0, 10, format!("in_port={patch},dl_src={mac}"), "NORMAL");
    set.add(c, 0, 9, format!("in_port={patch}"), "drop");
    set.add(c, 1, 10, format!("dl_dst={mac}"), "LOCAL");
    set.add(c, 1, 0, "", "NORMAL");
}

/// Paths between host and OVN.
fn between(set: &mut FlowSet, inputs: &Inputs, patch: &str) {
    let Inputs { mac, .. } = inputs;
    let c = BASE_COOKIE;
    // When OVN refuses a connection, it replies to the source MAC of the packet. That must not be OVN's own MAC, or OVN would drop the
    // reply.
    let source = inputs.families.first().map(|family| MacAddr::from_ip(family.masquerade_ovn));
    let from = source.map(|source| format!("mod_dl_src:{source},")).unwrap_or_default();
    set.add(c, 2, 100, "", format!("{from}mod_dl_dst:{mac},output:{patch}"));
    set.add(
        c,
        3,
        DEFAULT_PRIORITY,
        "",
        format!("move:NXM_OF_ETH_DST[]->NXM_OF_ETH_SRC[],mod_dl_dst:{mac},LOCAL"),
    );
}

/// Drops packets of pods to tunnel endpoints on Geneve's port. They leave with the node's own address, so the other node would accept
/// them as tunnel packets of this node, and their sender could inject frames into any network there. OVS's own tunnel packets do not
/// come from OVN's port. Other destinations are not filtered: there a client may have been given this port number.
fn forged(set: &mut FlowSet, inputs: &Inputs, patch: &str) {
    for end in &inputs.tunnel_ends {
        let Words { udp, destination, .. } = Words::of(Family::of(*end));
        let matches = format!("{udp},in_port={patch},{destination}={end},tp_dst={GENEVE}");
        set.add(BASE_COOKIE, 0, 700, matches, "drop");
    }
}

/// Tunnel packets, connections of node and OVN to the outside, and packets from the outside.
fn outside(set: &mut FlowSet, inputs: &Inputs, family: &FamilyInputs, words: &Words, patch: &str) {
    let Inputs { uplink, mac, .. } = inputs;
    let Words { ip, udp, destination, .. } = words;
    let node = family.node.addr();
    let commit = |mark: u8| format!("ct(commit,zone=64000,exec(load:{mark:#x}->NXM_NX_CT_MARK[]))");
    let c = BASE_COOKIE;

    set.add(c, 0, 205, format!("{udp},in_port={uplink},dl_dst={mac},tp_dst={GENEVE}"), "LOCAL");
    set.add(c, 0, 200, format!("{udp},in_port={uplink},tp_dst={GENEVE}"), "NORMAL");
    set.add(c, 0, 200, format!("{udp},in_port=LOCAL,tp_dst={GENEVE}"), format!("output:{uplink}"));
    for cidr in &family.service_cidrs {
        // If OVN sends back a packet to a service address, it would loop.
        set.add(c, 0, 115, format!("{ip},in_port={patch},{destination}={}", net(cidr)), "drop");
    }
    set.add(c, 0, 110, format!("{ip},in_port={uplink},nw_frag=yes"), "ct(table=0,zone=64004)");
    set.add(
        c,
        0,
        105,
        format!("pkt_mark={TRANSLATE_MARK:#x},{ip},in_port={patch},dl_src={mac}"),
        format!("ct(commit,zone=64000,nat(src={node}),exec(load:0x1->NXM_NX_CT_MARK[])),output:{uplink}"),
    );
    let near = net(&family.node);
    set.add(
        c,
        0,
        102,
        format!("{ip},in_port={patch},dl_src={mac},{destination}={near}"),
        format!("{},NORMAL", commit(1)),
    );
    set.add(
        c,
        0,
        102,
        format!("{ip},in_port=LOCAL,dl_src={mac},{destination}={near}"),
        format!("{},NORMAL", commit(2)),
    );
    set.add(
        c,
        0,
        100,
        format!("{ip},in_port={patch},dl_src={mac}"),
        format!("{},output:{uplink}", commit(1)),
    );
    set.add(c, 0, 100, format!("{ip},in_port=LOCAL"), format!("{},output:{uplink}", commit(2)));
    set.add(c, 0, 50, format!("{ip},dl_dst={mac}"), "ct(table=1,zone=64000,nat)");
}

/// Between node and OVN: the node connects to services from `.2`, OVN connects to the node's own address from `.1`.
fn masquerade(set: &mut FlowSet, family: &FamilyInputs, words: &Words, patch: &str) {
    let FamilyInputs { masquerade_host: host, masquerade_ovn: ovn, .. } = family;
    let Words { ip, source, destination, .. } = words;
    let node = family.node.addr();
    let c = BASE_COOKIE;
    for cidr in &family.service_cidrs {
        let cidr = net(cidr);
        set.add(
            c,
            0,
            500,
            format!("{ip},in_port={patch},{source}={cidr},{destination}={host}"),
            "ct(table=3,zone=64001,nat)",
        );
        set.add(
            c,
            0,
            500,
            format!("{ip},in_port=LOCAL,{destination}={cidr}"),
            format!("ct(commit,table=2,zone=64001,nat(src={host}))"),
        );
    }
    set.add(
        c,
        0,
        500,
        format!("{ip},in_port={patch},{source}={node},{destination}={host}"),
        format!("ct(commit,table=4,zone=64001,nat(dst={node}))"),
    );
    set.add(c, 0, 500, format!("{ip},in_port=LOCAL,{destination}={ovn}"), "ct(table=5,zone=64002,nat)");
    set.add(c, 4, DEFAULT_PRIORITY, *ip, format!("ct(commit,table=3,zone=64002,nat(src={ovn}))"));
    set.add(c, 5, DEFAULT_PRIORITY, *ip, "ct(commit,table=2,zone=64001,nat)");
}

/// Table 1: packets of a known connection go to its owner, others to the node.
fn replies(set: &mut FlowSet, inputs: &Inputs, words: &Words, patch: &str) {
    let Words { ip, udp, .. } = words;
    let c = BASE_COOKIE;
    for state in ["est", "rel"] {
        let matches = |mark: u8| format!("ct_state=+{state}+trk,ct_mark={mark:#x},{ip}");
        set.add(c, 1, 100, matches(1), format!("output:{patch}"));
        set.add(c, 1, 100, matches(2), "LOCAL");
    }
    let matches = format!("{udp},in_port={},tp_dst={BFD}", inputs.uplink);
    set.add(c, 1, 13, matches, format!("output:{patch},LOCAL"));
}

/// Neighbour discovery is not tracked, so advertisements go to both node and OVN, which share the MAC.
fn discovery(set: &mut FlowSet) {
    for kind in [ROUTER_ADVERTISEMENT, NEIGHBOUR_ADVERTISEMENT] {
        set.add(BASE_COOKIE, 1, 14, format!("icmp6,icmp_type={kind}"), "FLOOD");
    }
}

/// OpenFlow's priority of a flow for which none is given (`OFP_DEFAULT_PRIORITY`).
const DEFAULT_PRIORITY: u16 = 32768;

/// A prefix as OVS prints it: a single address has no length, so that a match has only one spelling.
fn net(cidr: &IpNet) -> String {
    let cidr = cidr.trunc();
    if cidr.prefix_len() == cidr.max_prefix_len() { cidr.addr().to_string() } else { cidr.to_string() }
}

#[cfg(test)]
pub(super) mod tests;
