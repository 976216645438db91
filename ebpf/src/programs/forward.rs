//! The fast path: one look into the table of flows, and what its entry says.

use aya_ebpf::{
    bindings::{BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR, TC_ACT_SHOT},
    helpers::bpf_l4_csum_replace,
};
use ebpf::decide::tuple::Tuple as _;
use ebpf::{
    decide::{
        admit,
        forward::{self, Decision, Facts},
        tag,
    },
    layout::{
        flow::{Entry, HEADER_LEN, HEADER_WORDS, OVERHEAD, SIDE_NODE, SIDE_POD, SIDE_TUNNEL, Way},
        maps::PORT_INTERPOSED,
        reason::Reason,
    },
    packet::{
        self, Flow, Packet as _, UDP, Window as _,
        wire::{self, Amount},
    },
};

use super::{
    conn, count,
    family::Family,
    maps,
    pass::{Outcome, Pass},
    room::{self, Stripped},
    skb::{Front, Skb, redirect, redirect_ingress, redirect_peer},
};

/// A packet in front of the table. `AT`: offset of its IP header, 14, or [`HEADER_LEN`] in a tunnel.
pub(super) struct Arrival<'a, F: Family, const AT: u32> {
    /// The flow, with the side on which it comes.
    pub(super) flow: &'a Flow<F::Tuple>,
    pub(super) way: Way,
    /// Destination and source MAC; in a tunnel those of the inner frame.
    pub(super) macs: [u32; 3],
}

/// Carries the packet if there is an entry for it.
///
/// # Errors
/// Why it takes the slow path.
#[inline(always)]
pub(super) fn forward<F: Family, const AT: u32>(
    skb: &Skb,
    front: &Front,
    packet: &Arrival<'_, F, AT>,
    pass: &Pass<'_>,
) -> Result<Outcome, Reason> {
    let terms = pass.terms();
    // SAFETY: a map value, whose memory stays the map's. An LRU map may give it to another flow while it is in use here, which takes
    // as many new flows on this CPU as a whole free list has; then what is read or written is that flow's entry, for one packet.
    let entry = F::flows().get_ptr_mut(&packet.flow.tuple).map(|entry| unsafe { &mut *entry });
    let facts = Facts {
        way: packet.way,
        macs: packet.macs,
        dscp: packet.flow.dscp(),
        ttl: packet.flow.ttl,
        aggregate: pass.meta.gso_size != 0,
    };
    let receiver = |entry: &Entry<F::Tuple>| {
        if entry.after.side() == SIDE_TUNNEL {
            Ok(0)
        } else {
            admit::receiver(maps::port(entry.target), terms.epoch)
        }
    };
    let key = &packet.flow.tuple;
    let is_current = |entry: &Entry<F::Tuple>| conn::is_current::<F>(key, entry, terms.change);
    let is_open = |entry: &Entry<F::Tuple>| conn::is_open::<F>(key, entry, &terms);
    match forward::decide(entry, &facts, &terms, receiver, is_current, is_open) {
        Decision::Forward(entry, slot) => carry::<F, AT>(skb, front, entry, slot, packet.flow, pass),
        Decision::KeptOff(entry) => {
            let flow = packet.flow;
            let amount = wire::amount(skb.len().wrapping_sub(AT - 14), 14 + flow.headers, pass.meta);
            used(entry, amount);
            Err(Reason::ServiceSlow)
        }
        Decision::Slow(reason) => {
            if forward::forgets(reason) {
                conn::forget::<F>(&packet.flow.tuple);
            }
            Err(reason)
        }
    }
}

#[inline(always)]
fn carry<F: Family, const AT: u32>(
    skb: &Skb,
    front: &Front,
    entry: &mut Entry<F::Tuple>,
    slot: u32,
    flow: &Flow<F::Tuple>,
    pass: &Pass<'_>,
) -> Result<Outcome, Reason> {
    let (from_tunnel, to_tunnel) = (AT != 14, entry.after.side() == SIDE_TUNNEL);
    if from_tunnel && to_tunnel {
        return Err(Reason::SentBack);
    }
    let amount = wire::amount(skb.len().wrapping_sub(AT - 14), 14 + flow.headers, pass.meta);
    let out = (entry.after.side(), entry.target);
    if !forward::fits(out, flow.length, flow.headers, pass.meta.gso_size, pass.config) {
        return Err(Reason::TooLong);
    }
    if to_tunnel {
        return encapsulate::<F>(skb, entry, flow, amount, pass);
    }
    if from_tunnel {
        decapsulate::<F>(skb, entry, slot, amount, pass)
    } else {
        local::<F>(skb, front, entry, slot, amount, pass)
    }
}

/// From a port into a tunnel.
#[inline(always)]
fn encapsulate<F: Family>(
    skb: &Skb,
    entry: &mut Entry<F::Tuple>,
    flow: &Flow<F::Tuple>,
    amount: Amount,
    pass: &Pass<'_>,
) -> Result<Outcome, Reason> {
    if !room::make(skb) {
        return Err(Reason::RoomRefused);
    }
    let front = skb.front_as_is();
    if !front.has(HEADER_LEN + F::HEADER + 4) {
        return Ok(dropped());
    }
    let mut at = 0;
    while at < HEADER_WORDS {
        // SAFETY: inside the packet, as just checked.
        unsafe { *front.word(at) = entry.header[at] };
        at += 1;
    }
    let ecn = flow.outer_ecn();
    let fields = packet::fields(entry.checksum, flow.length.wrapping_add(OVERHEAD), ecn);
    // SAFETY: inside the packet, as checked above.
    unsafe {
        *front.at::<u8>(15) = front.u8(15) | ecn;
        *front.at::<u16>(16) = fields.length;
        *front.at::<u16>(24) = fields.checksum;
        *front.at::<u16>(38) = fields.datagram;
    }
    used(entry, amount);
    count::port(pass.port.slot, amount, |counters| &mut counters.fast_from);
    count::tunnel(entry.slot_out.into(), amount.with_headers(OVERHEAD), |counters| &mut counters.fast_tx);
    if !rewrite::<F>(skb, &front, HEADER_LEN, entry) {
        return Ok(dropped());
    }
    if pass.port.flags & PORT_INTERPOSED == 0 {
        skb.set_tag(tag::FAST);
    }
    Ok(Outcome::done(redirect(entry.target)))
}

/// From a port to another one, or to the uplink without a tunnel, or between a pod and a physical network.
#[inline(always)]
fn local<F: Family>(
    skb: &Skb,
    front: &Front,
    entry: &mut Entry<F::Tuple>,
    slot: u32,
    amount: Amount,
    pass: &Pass<'_>,
) -> Result<Outcome, Reason> {
    if !front.has(14 + F::HEADER + 4) {
        return Err(Reason::TruncatedIp);
    }
    let [first, second] = [entry.header[0], entry.header[1]];
    // SAFETY: inside the packet, as just checked.
    unsafe {
        *front.at::<u64>(0) = first;
        *front.at::<u32>(8) = packet::halves(second).0;
    }
    used(entry, amount);
    count::port(pass.port.slot, amount, |counters| &mut counters.fast_from);
    count::port(slot, amount, |counters| &mut counters.fast_to);
    if !rewrite::<F>(skb, front, 14, entry) || !skb.retag(pass.meta.vlan_beside, packet::halves(second).1) {
        return Ok(dropped());
    }
    Ok(hand_over(skb, entry.after.side(), entry.target, !pass.at_egress, pass))
}

/// From a tunnel to a port, or to the uplink without a tunnel.
#[inline(always)]
fn decapsulate<F: Family>(
    skb: &Skb,
    entry: &mut Entry<F::Tuple>,
    slot: u32,
    amount: Amount,
    pass: &Pass<'_>,
) -> Result<Outcome, Reason> {
    match room::strip::<F>(skb) {
        Stripped::Gone => {}
        Stripped::Refused => return Err(Reason::RoomRefused),
        Stripped::Broken => return Ok(dropped()),
    }
    let front = skb.front_as_is();
    if !front.has(14 + F::HEADER + 4) {
        return Ok(dropped());
    }
    let [first, second] = [entry.header[0], entry.header[1]];
    // SAFETY: inside the packet, as just checked. What was in front of the IP header is the outer header's rest.
    unsafe {
        *front.at::<u64>(0) = first;
        *front.at::<u32>(8) = packet::halves(second).0;
        *front.at::<u16>(12) = F::TYPE.to_be();
    }
    used(entry, amount);
    count::port(slot, amount, |counters| &mut counters.fast_to);
    count::tunnel(entry.slot_in.into(), amount.with_headers(OVERHEAD), |counters| &mut counters.fast_rx);
    if !rewrite::<F>(skb, &front, 14, entry) {
        return Ok(dropped());
    }
    Ok(hand_over(skb, entry.after.side(), entry.target, true, pass))
}

/// Sends a packet that is as OVS would have given it out to where it goes. `peer`: a pod's can be handed to its end of the veth.
#[inline(always)]
fn hand_over(skb: &Skb, side: u8, target: u32, peer: bool, pass: &Pass<'_>) -> Outcome {
    if side == SIDE_NODE {
        // The priority is lost on the way, the mark is not.
        skb.set_mark(tag::FAST);
        return Outcome::done(redirect_ingress(target));
    }
    if side == SIDE_POD {
        if skb.mark() != 0 {
            skb.set_mark(0);
        }
        if peer {
            return Outcome::done(redirect_peer(target));
        }
    }
    if pass.port.flags & PORT_INTERPOSED == 0 {
        skb.set_tag(tag::FAST);
    }
    Outcome::done(redirect(target))
}

#[inline(always)]
pub(super) fn used<T>(entry: &mut Entry<T>, amount: Amount) {
    entry.packets = entry.packets.wrapping_add(amount.packets);
    entry.bytes = entry.bytes.wrapping_add(amount.bytes);
}

/// TTL, addresses and ports of the IP header at `at`, of which [`Family::HEADER`] and four bytes more are known to be there. False: a
/// helper failed, and the packet is not as it should be. The front is not to be used afterwards.
#[inline(always)]
fn rewrite<F: Family>(skb: &Skb, front: &Front, at: u32, entry: &Entry<F::Tuple>) -> bool {
    if entry.ttl_step != 0 {
        F::lower_ttl(front, at, entry.ttl_step);
    }
    if entry.translated == 0 {
        return true;
    }
    F::translate(front, at, entry);
    let (field, zero) = if entry.after.protocol() == UDP {
        // 0 says that there is none (RFC 768), and stays.
        (6, u64::from(BPF_F_MARK_MANGLED_0))
    } else {
        (16, 0)
    };
    let offset = at + F::HEADER + field;
    // A checksum that is left to the hardware covers the addresses only: the kernel has to know which is which.
    checksum(skb, offset, entry.address_difference, zero | u64::from(BPF_F_PSEUDO_HDR))
        && checksum(skb, offset, entry.port_difference, zero)
}

#[inline(always)]
fn checksum(skb: &Skb, offset: u32, difference: u32, flags: u64) -> bool {
    // SAFETY: the helper checks its arguments.
    unsafe { bpf_l4_csum_replace(skb.raw(), offset, 0, difference.into(), flags) == 0 }
}

#[inline(always)]
fn dropped() -> Outcome {
    count::reason(Reason::DroppedChanged);
    Outcome::done(TC_ACT_SHOT)
}
