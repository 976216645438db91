//! The table of the model: its flows, and how a packet goes through them.

use std::collections::{BTreeMap, BTreeSet};

use super::super::wire::*;
use super::super::*;

/// Key of the router's port that leads to other nodes.
pub(super) const AWAY: u32 = 20;
/// OpenFlow port of the tunnels.
pub(super) const TUNNEL: u32 = 99;
/// Tables: classification, switch ingress, look-up, egress, delivery; routing, policies, resolution.
pub(super) const INGRESS: u8 = 10;
pub(super) const LOOKUP: u8 = 18;
pub(super) const ROUTE: u8 = 20;
pub(super) const POLICY: u8 = 25;
pub(super) const RESOLVE: u8 = 29;
pub(super) const EGRESS: u8 = 50;

/// Pods 1 and 2 are local and on the switch; 3 and 4 on another node.
pub(super) fn ip(pod: u8) -> [u8; 4] {
    [10, 0, u8::from(pod > 2), pod]
}

pub(super) fn mac(pod: u8) -> [u8; 6] {
    [0x0a, 0, 0, 0, 1, pod]
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    pub(super) in_port: u32,
    pub(super) datapath: u64,
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) hop: u32,
    pub(super) macs: ([u8; 6], [u8; 6]),
    pub(super) pods: (u8, u8),
    pub(super) port: u16,
}

/// A condition on a packet's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Is {
    Datapath(u64),
    From(u32),
    To(u32),
    Hop(u8),
    Source(u8),
    Destination(u8),
    /// The prefix of the pods that are not local, or of the others.
    Net(bool),
    Sender(u8),
    Receiver(u8),
    Port(u16),
}

impl Is {
    fn holds(self, packet: &Packet) -> bool {
        match self {
            Self::Datapath(datapath) => packet.datapath == datapath,
            Self::From(port) => packet.from == port,
            Self::To(port) => packet.to == port,
            Self::Hop(pod) => packet.hop == u32::from_be_bytes(ip(pod)),
            Self::Source(pod) => packet.pods.0 == pod,
            Self::Destination(pod) => packet.pods.1 == pod,
            Self::Net(away) => (packet.pods.1 > 2) == away,
            Self::Sender(pod) => packet.macs.0 == mac(pod),
            Self::Receiver(pod) => packet.macs.1 == mac(pod),
            Self::Port(port) => packet.port == port,
        }
    }

    fn field(self) -> Vec<u8> {
        match self {
            Self::Datapath(datapath) => metadata(datapath),
            Self::From(port) => reg(14, port),
            Self::To(port) => reg(15, port),
            Self::Hop(pod) => reg(0, u32::from_be_bytes(ip(pod))),
            Self::Source(pod) => src(ip(pod)),
            Self::Destination(pod) => dst(ip(pod)),
            Self::Net(away) => dst_prefix([10, 0, u8::from(away), 0], [255, 255, 255, 0]),
            Self::Sender(pod) => dl_src(mac(pod)),
            Self::Receiver(pod) => dl_dst(mac(pod)),
            Self::Port(port) => tcp_dst(port),
        }
    }
}

/// What a flow does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Act {
    Next,
    Drop,
    To(u32),
    /// To a next hop that is not the destination.
    Hop(u8),
    Resolve(u8),
    Clause(u8),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rule {
    pub(super) table: u8,
    pub(super) priority: u16,
    pub(super) conditions: BTreeSet<Is>,
    /// The conjunction that must hold.
    pub(super) conjunction: bool,
    pub(super) act: Act,
}

impl Rule {
    pub(super) fn new(table: u8, priority: u16, conditions: impl IntoIterator<Item = Is>, act: Act) -> Self {
        Self { table, priority, conditions: conditions.into_iter().collect(), conjunction: false, act }
    }

    pub(super) fn key(&self) -> (u8, u16, BTreeSet<Is>, bool) {
        (self.table, self.priority, self.conditions.clone(), self.conjunction)
    }

    pub(super) fn flow(&self) -> Flow {
        let mut fields: Vec<_> = self.conditions.iter().map(|is| is.field()).collect();
        if self.conjunction {
            fields.push(conj_id(7));
        }
        let router = self.table == ROUTE;
        let actions = match self.act {
            Act::Next | Act::Drop => vec![],
            Act::To(port) if router => vec![dec_ttl(), copy((0x8000, 12), (1, 0)), set(&nxm_reg(15, port))],
            Act::To(port) => vec![set(&nxm_reg(15, port))],
            Act::Hop(pod) => vec![set(&nxm_reg(0, u32::from_be_bytes(ip(pod))))],
            Act::Resolve(pod) => vec![set(&dl_dst(mac(pod)))],
            Act::Clause(number) => vec![conjunction(7, number)],
        };
        let mut flow = Flow::new(self.table, &fields, &actions);
        flow.priority = self.priority;
        flow
    }
}

pub(super) type Rules = BTreeMap<(u8, u16, BTreeSet<Is>, bool), Act>;

/// The action of a table for a packet; the lowest key wins among equals.
fn act(rules: &Rules, table: u8, packet: &Packet) -> Option<Act> {
    let of = |conditions: &BTreeSet<Is>| conditions.iter().all(|is| is.holds(packet));
    let here: Vec<_> = rules.iter().filter(|((at, ..), _)| *at == table).collect();
    let clauses: BTreeSet<u8> = here
        .iter()
        .filter_map(|((_, _, conditions, _), act)| match act {
            Act::Clause(number) if of(conditions) => Some(*number),
            _ => None,
        })
        .collect();
    here.into_iter()
        .filter(|((_, _, conditions, conjunction), act)| {
            !matches!(act, Act::Clause(_)) && of(conditions) && (!conjunction || clauses.len() == 2)
        })
        .max_by_key(|((_, priority, ..), _)| *priority)
        .map(|(_, act)| *act)
}

/// Where a packet leaves and how; none: it does not.
pub(super) fn carry(rules: &Rules, mut packet: Packet) -> Option<(u32, Packet)> {
    let mut table = if packet.in_port == TUNNEL { EGRESS } else { INGRESS };
    loop {
        match act(rules, table, &packet)? {
            Act::Drop | Act::Clause(_) => return None,
            Act::Next => {}
            Act::To(port) => {
                packet.to = port;
                if table == ROUTE {
                    packet.hop = u32::from_be_bytes(ip(packet.pods.1));
                    packet.macs.0 = ROUTER_MAC;
                }
            }
            Act::Hop(pod) => packet.hop = u32::from_be_bytes(ip(pod)),
            Act::Resolve(pod) => packet.macs.1 = mac(pod),
        }
        table = match table {
            INGRESS => LOOKUP,
            LOOKUP | RESOLVE => EGRESS,
            ROUTE => POLICY,
            POLICY => RESOLVE,
            _ => match (packet.datapath, packet.to) {
                (SWITCH, port @ 1..=2) => return Some((port + 10, packet)),
                (ROUTER, AWAY) => return Some((TUNNEL, packet)),
                (SWITCH, TO_ROUTER) => {
                    packet = Packet { datapath: ROUTER, from: TO_SWITCH, to: 0, hop: 0, ..packet };
                    ROUTE
                }
                _ => return None,
            },
        };
    }
}
