//! What the rules need to know of a flow besides its match.

use std::net::{IpAddr, Ipv4Addr};

use api::MacAddr;

use crate::ovs::openflow::{FlowActions, LogicalPort, Match, Part, Target};

/// Key of the first multicast group of a datapath (OVN, `OVN_MIN_MULTICAST` in lib/ovn-util.h).
pub(super) const FIRST_GROUP: u32 = 0x8000;

/// A constant in a register, by the register's meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Constant {
    /// Next hop of a router: register 0, or 0 to 3 for IPv6.
    NextHop(IpAddr),
    /// Destination before translation: register 4, or 4 to 7 for IPv6.
    Original(IpAddr),
    /// Multicast group as egress port: register 15, from [`FIRST_GROUP`] on.
    Group(u32),
}

/// What the lint must know of a flow that may match TCP or UDP; see [`lint`](super::lint).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Write {
    /// Lowers the TTL.
    LowersTtl,
    /// Sets an egress port without lowering the TTL.
    EgressAlone,
    /// Translates addresses by connection tracking.
    Translates,
    /// Translates the destination.
    TranslatesDestination,
    /// Writes to the registers of the next hop what is neither a constant nor the packet's destination.
    NextHop,
    /// Writes to the registers of the destination before translation what is neither a constant nor the packet's destination.
    Original,
    /// Writes to register 1 what is neither 0 nor the original destination.
    Scratches,
    /// Copies registers 0 to 3 to 4 to 7.
    Carries,
    /// Writes Ethernet addresses.
    Ethernet,
    /// Writes a field in a way that the rules exclude.
    Never(Target),
    /// Leads to another datapath without setting registers 0 to 7 to 0.
    Registers,
}

/// A fact that the ledger keeps of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Fact {
    /// Packets of an OpenFlow port come in by this logical port.
    Origin(u32, LogicalPort),
    /// Packets to a logical port are output to an OpenFlow port.
    Output(LogicalPort, u32),
    /// Packets to the first logical port come in by the second, of another datapath.
    Patch(LogicalPort, LogicalPort),
    /// A datapath admits packets to this MAC address; it is a port's own if the datapath is a router.
    Admits(u64, MacAddr),
    /// Packets get this Ethernet source.
    Sends(MacAddr),
    /// Packets of a datapath get a constant.
    Constant(Option<u64>, Constant),
    /// Clause of a conjunction, with its table.
    Clause(u8, Part),
    /// Virtual address of a load balancer.
    Virtual(IpAddr),
    /// In a datapath, packets of the first table are sent through the second, which is no stage of a pipeline.
    Calls(Option<u64>, u8, u8),
    /// For the lint: datapath, table, what is written.
    Write(Option<u64>, u8, Write),
}

/// Appends what a flow says.
pub(super) fn read(table: u8, matched: &Match, actions: &FlowActions, facts: &mut Vec<Fact>) {
    facts.extend(actions.parts.iter().map(|part| Fact::Clause(table, *part)));
    // A provider's port has flows for its VLAN alone.
    if matched.is_never_cached() && matched.in_port.is_none() {
        return;
    }
    let effects = &actions.effects;
    let patch = ports(matched, actions, facts);
    if let (Some(datapath), Some(mac), Some(_)) =
        (matched.datapath, matched.eth_destination, matched.register(14))
    {
        facts.push(Fact::Admits(datapath, mac));
    }
    facts.extend(effects.eth_source.map(Fact::Sends));
    constants(matched, actions, facts);
    if effects.translates_destination {
        facts.extend(matched.destination.whole().map(Fact::Virtual));
    }
    facts.extend(effects.calls().map(|called| Fact::Calls(matched.datapath, table, called)));
    writes(matched, actions, patch, |write| facts.push(Fact::Write(matched.datapath, table, write)));
}

/// How logical ports are connected. Returns whether the flow leads to another datapath.
fn ports(matched: &Match, actions: &FlowActions, facts: &mut Vec<Fact>) -> bool {
    let effects = &actions.effects;
    let enters = effects.datapath.zip(effects.register(14));
    let enters = enters.map(|(datapath, port)| LogicalPort { datapath, port });
    match (matched.in_port, enters, matched.logical_port(15)) {
        // A provider's port (`localnet`). Endpoints of its datapath have no entries (`eligibility/flow_actions.rs`).
        (Some(_), Some(_), _) if matched.vlan => {}
        (Some(port), Some(to), _) => facts.push(Fact::Origin(port, to)),
        (None, Some(to), Some(from)) => facts.push(Fact::Patch(from, to)),
        (None, None, Some(to)) if effects.actions == 1 => {
            facts.extend(effects.output.map(|port| Fact::Output(to, port)));
        }
        _ => {}
    }
    matches!(facts.last(), Some(Fact::Patch(..)))
}

fn constants(matched: &Match, actions: &FlowActions, facts: &mut Vec<Fact>) {
    let effects = &actions.effects;
    let mut add = |constant: Constant| facts.push(Fact::Constant(matched.datapath, constant));
    for (first, constant) in [(0, Constant::NextHop as fn(IpAddr) -> Constant), (4, Constant::Original)] {
        if let Some(register) = effects.register(first) {
            add(constant(v4(register)));
        }
        if let Some(address) = effects.registers(first) {
            add(constant(IpAddr::V6(address)));
        }
    }
    // A flow of the group itself, which sends copies to its ports, writes nothing new.
    let group = effects.register(15).filter(|port| *port >= FIRST_GROUP);
    if let Some(group) = group.filter(|group| matched.register(15) != Some(*group)) {
        add(Constant::Group(group));
    }
}

/// A register as an IPv4 address.
pub(super) fn v4(register: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(register))
}

fn writes(matched: &Match, actions: &FlowActions, patch: bool, mut add: impl FnMut(Write)) {
    let effects = &actions.effects;
    let (written, other) = (|target| effects.writes(target), |target| effects.other.contains(target));
    for target in [Target::Address, Target::Port, Target::Ttl, Target::Encapsulation, Target::Unknown] {
        if written(target) {
            add(Write::Never(target));
        }
    }
    let enters = patch || matched.in_port.is_some();
    for target in [Target::Datapath, Target::Ingress] {
        if written(target) && !enters {
            add(Write::Never(target));
        }
    }
    if patch && !effects.zeroes() {
        add(Write::Registers);
    }
    // A group's packets are copied to several ports.
    let group = matched.register(15).is_some_and(|port| port >= FIRST_GROUP);
    if other(Target::Egress) && !group && !enters {
        add(Write::Never(Target::Egress));
    }
    if effects.lowers_ttl {
        add(Write::LowersTtl);
    } else if effects.register(15).is_some() && !group {
        add(Write::EgressAlone);
    }
    for (target, write) in [(Target::NextHop, Write::NextHop), (Target::Original, Write::Original)] {
        if other(target) {
            add(write);
        }
    }
    if effects.scratches {
        add(Write::Scratches);
    }
    if effects.carries {
        add(Write::Carries);
    }
    let sets = effects.eth_source.or(effects.eth_destination).is_some();
    // What goes back to its port has no scoped entry.
    if (sets || other(Target::EthSource) || other(Target::EthDestination)) && !effects.returns {
        add(Write::Ethernet);
    }
    if effects.translates {
        add(Write::Translates);
    }
    if effects.translates_destination {
        add(Write::TranslatesDestination);
    }
}
