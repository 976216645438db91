//! Packets on their way to OVS: from a pod, from a tunnel, from the uplink without one, and from the node. What the flow cache knows is forwarded; of the rest what may teach is
//! noted.

use ebpf::decide::tuple::Tuple as _;
use ebpf::{
    decide::{
        admit::{self, Next, Outside},
        connection, forward,
    },
    layout::{
        flow::{HEADER_LEN, SIDE_NODE, SIDE_OUTSIDE, SIDE_POD, SIDE_TUNNEL, Way},
        maps::{Config, Port, SLOT_OUTSIDE},
        reason::Reason,
    },
    packet::{self, Flow, Outer, Packet as _, TCP, UDP, Window as _},
};

use super::{
    conn, count,
    family::{Family, V4, V6},
    forward::{Arrival, forward as cached},
    learn::is_geneve,
    maps, note,
    pass::{Outcome, Pass, Slow},
    peer, seen,
    skb::{self, Front, Skb},
};

/// Looks at a packet that a pod sent.
#[inline(always)]
pub(super) fn from_pod(skb: &Skb, port: &Port) -> Outcome {
    let Some(config) = maps::config() else { return Outcome::UNREAD };
    let (gate, epoch, change) = (maps::gate(config), maps::epoch(config), maps::change(config));
    if let Err(reason) = admit::endpoint(gate, port, epoch) {
        count::reason(reason);
        return Outcome::UNREAD;
    }
    let meta = skb.meta();
    if meta.vlan_beside {
        count::reason(Reason::Vlan);
        return Outcome::UNREAD;
    }
    let front = skb.front(14 + 20 + 20);
    // The shortest packet that the flow cache carries: IPv4 and UDP.
    if !front.has(14 + 28) {
        return Outcome::UNREAD;
    }
    let pass = Pass { config, port, meta, gate, epoch, change, payer: port.slot, at_egress: false };
    let ethertype = u16::from_be(front.u16(12));
    let outcome = if ethertype == V4::TYPE {
        pod::<V4>(skb, &front, &pass)
    } else if ethertype == V6::TYPE {
        pod::<V6>(skb, &skb.front(14 + 40 + 20), &pass)
    } else {
        count::reason(Reason::NotIp);
        return Outcome::UNREAD;
    };
    outcome.unwrap_or_else(|(reason, outcome)| {
        count::numbered(reason);
        outcome
    })
}

#[inline(always)]
fn pod<F: Family>(skb: &Skb, front: &Front, pass: &Pass<'_>) -> Result<Outcome, (u32, Outcome)> {
    let mut flow = F::parse(front, 14, skb.len().wrapping_sub(14))
        .map_err(|reason| (reason.index(), Outcome::UNREAD))?;
    let (bound, tcp) = (F::is_bound(&flow.tuple, pass.port), flow.tuple.protocol() == TCP);
    let next = admit::pod_packet(pass.gate, bound, tcp, flow.changes_connection());
    if let Next::Slow(reason) = next {
        return Err((reason.index(), Outcome::SLOW));
    }
    let macs = [front.u32(0), front.u32(4), front.u32(8)];
    flow.tuple.enter(SIDE_POD);
    let packet = Arrival::<F, 14> { flow: &flow, way: [skb.ifindex(), 0, 0], macs };
    // Not before: an entry has the MACs of a packet that came this way.
    carry_or_note(skb, front, &packet, pass, next, |_| admit::addressed(&macs, &pass.port.mac))
}

/// Carries the packet, or notes it if an entry made of it could carry the next one. `next`: whether it changes its connection; `may`:
/// whether the cache may have anything to do with it; it gets the reason why no entry carries this packet.
///
/// # Errors
/// The index of the reason why the packet goes slow, which is still to be counted, and what became of it.
#[inline(always)]
fn carry_or_note<F: Family, const AT: u32>(
    skb: &Skb,
    front: &Front,
    packet: &Arrival<'_, F, AT>,
    pass: &Pass<'_>,
    next: Next,
    may: impl FnOnce(Slow) -> Result<(), Reason>,
) -> Result<Outcome, (u32, Outcome)> {
    let (changes, flags) = (next == Next::Change, packet.flow.flags);
    let reason = if changes {
        Reason::TcpHandshake
    } else {
        match cached(skb, front, packet, pass) {
            Ok(outcome) => return Ok(outcome),
            Err(reason) if !forward::is_noted(reason) => return Err((reason.index(), Outcome::SLOW)),
            Err(reason) => reason,
        }
    };
    let slow = Slow::of(reason, changes).forgotten(skb);
    may(slow).map_err(|reason| (reason.index(), Outcome::SLOW))?;
    if slow.changes() {
        conn::change::<F>(&packet.flow.tuple, flags, false);
        if !connection::teaches(flags, pass.gate) {
            return Err((slow.reason(), Outcome::SLOW));
        }
    } else if slow.is_miss() && is_first::<F>(packet.flow, pass) {
        count::reason(Reason::FirstPacket);
        return Err((slow.reason(), Outcome::SLOW));
    }
    let outcome = note::leave(skb, front, packet, pass, slow.is_urgent());
    Err((slow.reason(), outcome))
}

/// Whether it is UDP of which there was no other packet lately. An aggregate is several.
#[inline(always)]
fn is_first<F: Family>(flow: &Flow<F::Tuple>, pass: &Pass<'_>) -> bool {
    let window = pass.config.again;
    flow.tuple.protocol() == UDP
        && window != 0
        && pass.meta.gso_size == 0
        && seen::again::<F>(&flow.tuple, skb::now(), window) == 0
}

/// Looks at a packet that comes by the uplink and is no Geneve packet as OVN sends them.
#[inline(always)]
pub(super) fn from_outside(skb: &Skb, front: &Front, tunnels: &Pass<'_>) -> Outcome {
    let Pass { config, port, meta, gate, epoch, change, .. } = *tunnels;
    let pass = Pass { config, port, meta, gate, epoch, change, payer: SLOT_OUTSIDE, at_egress: false };
    plain(skb, front, &pass, SIDE_OUTSIDE, untagged(&pass), |macs| admit::for_node(macs, &port.mac))
}

/// Looks at a packet that comes from a physical network, whose stations all may be meant.
#[inline(always)]
pub(super) fn from_physical(skb: &Skb, config: &Config, port: &Port) -> Outcome {
    let (gate, epoch, change) = (maps::gate(config), maps::epoch(config), maps::change(config));
    let meta = skb.meta();
    let pass = Pass { config, port, meta, gate, epoch, change, payer: port.slot, at_egress: false };
    plain(skb, &skb.front(14 + 20 + 20), &pass, SIDE_OUTSIDE, skb.vlan(), admit::one_station)
}

/// Looks at a packet that the node sends by its port of a bridge.
#[inline(always)]
pub(super) fn from_node(skb: &Skb, config: &Config, port: &Port) -> Outcome {
    let (gate, epoch, change) = (maps::gate(config), maps::epoch(config), maps::change(config));
    let pass =
        Pass { config, port, meta: skb.meta(), gate, epoch, change, payer: port.slot, at_egress: true };
    plain(skb, &skb.front(14 + 20 + 20), &pass, SIDE_NODE, untagged(&pass), admit::one_station)
}

/// What [`plain`] needs where a packet with a VLAN tag is none of the flow cache's.
#[inline(always)]
fn untagged(pass: &Pass<'_>) -> Option<u32> {
    if pass.meta.vlan_beside { None } else { Some(0) }
}

/// `vlan`: the tag, as in [`Way`]; none: such packets are not carried. `station`: whether packets to the destination are, see
/// [`admit::one_station`].
#[inline(always)]
fn plain(
    skb: &Skb,
    front: &Front,
    pass: &Pass<'_>,
    side: u8,
    vlan: Option<u32>,
    station: impl FnOnce(&[u32; 3]) -> Result<(), Reason>,
) -> Outcome {
    let outcome = if let Err(reason) = admit::endpoint(pass.gate, pass.port, pass.epoch) {
        Err((reason.index(), Outcome::UNREAD))
    } else if let Some(vlan) = vlan
        && front.has(14 + 28)
    {
        let macs = [front.u32(0), front.u32(4), front.u32(8)];
        let way = [skb.ifindex(), vlan, 0];
        let ethertype = u16::from_be(front.u16(12));
        if let Err(reason) = station(&macs) {
            Err((reason.index(), Outcome::UNREAD))
        } else if ethertype == V4::TYPE {
            plain_packet::<V4>(skb, front, (macs, way), pass, side)
        } else if ethertype == V6::TYPE {
            plain_packet::<V6>(skb, &skb.front(14 + 40 + 20), (macs, way), pass, side)
        } else {
            Err((Reason::NotIp.index(), Outcome::UNREAD))
        }
    } else if vlan.is_none() {
        Err((Reason::Vlan.index(), Outcome::UNREAD))
    } else {
        Err((Reason::TruncatedIp.index(), Outcome::UNREAD))
    };
    outcome.unwrap_or_else(|(reason, outcome)| {
        count::numbered(reason);
        outcome
    })
}

#[inline(always)]
fn plain_packet<F: Family>(
    skb: &Skb,
    front: &Front,
    (macs, way): ([u32; 3], Way),
    pass: &Pass<'_>,
    side: u8,
) -> Result<Outcome, (u32, Outcome)> {
    let mut flow = F::parse(front, 14, skb.len().wrapping_sub(14))
        .map_err(|reason| (reason.index(), Outcome::UNREAD))?;
    let protocol = flow.tuple.protocol();
    let geneve = is_geneve(&flow.tuple, pass.config);
    flow.tuple.enter(side);
    let next = admit::plain_packet(pass.gate, geneve, protocol == TCP, flow.changes_connection());
    if let Next::Slow(reason) = next {
        return Err((reason.index(), if geneve { Outcome::UNREAD } else { Outcome::SLOW }));
    }
    let packet = Arrival::<F, 14> { flow: &flow, way, macs };
    carry_or_note(skb, front, &packet, pass, next, |_| Ok(()))
}

/// Looks at a packet on the uplink whose outer headers are Geneve's.
#[inline(always)]
pub(super) fn from_tunnel(skb: &Skb, front: &Front, outer: &Outer, pass: &Pass<'_>) -> Outcome {
    let outside = Outside {
        vlan: pass.meta.vlan_beside,
        ours: admit::is_for_node([front.u32(0), front.u16(4).into()], outer.destination, pass.config),
        plain: outer.plain,
        sum_is_right: packet::outer_sum_is_right(front),
    };
    let outcome = match admit::tunnel(pass.gate, outside) {
        Err(reason) => Err((reason.index(), Outcome::SLOW)),
        Ok(()) if outer.inner == V4::TYPE => tunnelled::<V4>(skb, front, outer, pass),
        Ok(()) if outer.inner == V6::TYPE => {
            tunnelled::<V6>(skb, &skb.front(HEADER_LEN + 40 + 20), outer, pass)
        }
        Ok(()) => Err((Reason::NotIp.index(), Outcome::SLOW)),
    };
    outcome.unwrap_or_else(|(reason, outcome)| {
        count::numbered(reason);
        outcome
    })
}

#[inline(always)]
fn tunnelled<F: Family>(
    skb: &Skb,
    front: &Front,
    outer: &Outer,
    pass: &Pass<'_>,
) -> Result<Outcome, (u32, Outcome)> {
    let slow = |reason: Reason| (reason.index(), Outcome::SLOW);
    let mut flow = F::parse(front, HEADER_LEN, skb.len().wrapping_sub(HEADER_LEN)).map_err(slow)?;
    let (same_ecn, tcp) = (outer.ecn == flow.outer_ecn(), flow.tuple.protocol() == TCP);
    flow.tuple.enter(SIDE_TUNNEL);
    let next = admit::tunnel_packet(pass.gate, same_ecn, tcp, flow.changes_connection());
    if let Next::Slow(reason) = next {
        return Err((reason.index(), Outcome::SLOW));
    }
    let way = [outer.vni, outer.option, outer.source];
    let packet = Arrival::<F, HEADER_LEN> { flow: &flow, way, macs: inner_macs(front) };
    carry_or_note(skb, front, &packet, pass, next, |reason| {
        // What OVS has no tunnel for changes nothing, as OVS drops it.
        if peer::find(outer.source, outer.vni, pass.epoch).is_remote() {
            return Ok(());
        }
        count::numbered(reason.reason());
        Err(Reason::UnknownRemote)
    })
}

/// Destination and source MAC of the inner frame.
#[inline(always)]
fn inner_macs(front: &Front) -> [u32; 3] {
    const AT: u32 = HEADER_LEN - 14;
    [front.u32(AT), front.u32(AT + 4), front.u32(AT + 8)]
}
