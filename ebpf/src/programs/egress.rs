//! Out of a pod on the fast path: to another node through the tunnel, or to a pod of this node.

use aya_ebpf::bindings::TC_ACT_SHOT;
use ebpf::{
    decide::{
        admit::{self, Next},
        forward::{self, Decision, Facts, Leaves},
        pending, tag,
    },
    layout::{
        flow::{EgressFlow, EgressKey, HEADER_LEN, HEADER_WORDS, KIND_LOCAL, NOTE_LIVE, OVERHEAD},
        maps::{PORT_INTERPOSED, Port},
        reason::Reason,
    },
    packet::{
        self, Flow, Packet as _, Window as _,
        wire::{self, Amount},
    },
};

use super::{
    conn, count,
    family::{Family, V4, V6},
    maps, note,
    pass::{Outcome, Pass},
    room,
    skb::{Front, Skb, redirect, redirect_peer},
};

/// Looks at a packet that a pod sent.
#[inline(always)]
pub(super) fn from_pod(skb: &Skb, port: &Port) -> Outcome {
    let Some(config) = maps::config() else { return Outcome::UNREAD };
    let (gate, epoch) = (maps::gate(config), maps::epoch(config));
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
    let pass = Pass { config, port, meta, gate, epoch };
    let ethertype = u16::from_be(front.u16(12));
    if ethertype == V4::TYPE {
        return family::<V4>(skb, &front, &pass);
    }
    if ethertype == V6::TYPE {
        return family::<V6>(skb, &skb.front(14 + 40 + 20), &pass);
    }
    count::reason(Reason::NotIp);
    Outcome::UNREAD
}

#[inline(always)]
fn family<F: Family>(skb: &Skb, front: &Front, pass: &Pass<'_>) -> Outcome {
    let flow = match F::parse(front, 14, skb.len().wrapping_sub(14)) {
        Ok(flow) => flow,
        Err(reason) => {
            count::reason(reason);
            return Outcome::UNREAD;
        }
    };
    // Read where they are needed: what is kept over the call of a helper goes through memory.
    let macs = || [front.u32(0), front.u32(4), front.u32(8)];
    let (bound, tcp) = (F::is_bound(&flow.tuple, pass.port), F::is_tcp(&flow.tuple));
    let next = admit::pod_packet(pass.gate, bound, tcp, flow.changes_connection());
    if let Next::Slow(reason) = next {
        count::reason(reason);
        return Outcome::SLOW;
    }
    let key = EgressKey { ifindex: skb.ifindex(), tuple: flow.tuple };
    if next == Next::Close {
        if let Err(reason) = admit::addressed(&macs(), &pass.port.mac) {
            count::reason(reason);
            return Outcome::SLOW;
        }
        count::reason(Reason::TcpHandshake);
        conn::close::<F>(&key, u32::from(flow.flags));
        return Outcome::SLOW;
    }
    let terms = pass.terms();
    // SAFETY: a map value, whose memory stays the map's. An LRU map may give it to another flow while it is in use here, which takes
    // as many new flows on this CPU as a whole free list has; then what is read or written is that flow's entry, for one packet.
    let entry = F::egress().get_ptr_mut(&key).map(|entry| unsafe { &mut *entry });
    let facts = Facts { macs: macs(), dscp: flow.dscp(), ttl: flow.ttl, aggregate: pass.meta.gso_size != 0 };
    let is_open = |_: &EgressFlow| conn::is_open::<F>(&key, terms.epoch);
    let reason = match forward::decide(entry, &facts, &terms, |_| Ok(()), is_open) {
        Decision::Forward(entry, ()) => return carry::<F>(skb, front, entry, &flow, pass),
        Decision::Slow(reason) => reason,
    };
    if forward::forgets(reason) {
        let _ = F::egress().remove(&key);
    }
    if forward::pod_leaves(reason) == Leaves::Nothing {
        count::reason(reason);
        return Outcome::SLOW;
    }
    // Not before: an entry has the MACs of a packet that came this way.
    if let Err(reason) = admit::addressed(&macs(), &pass.port.mac) {
        count::reason(reason);
        return Outcome::SLOW;
    }
    count::reason(reason);
    let left = pending::entered(&flow, key.ifindex, macs(), [0; 3], NOTE_LIVE, &terms);
    note::leave::<F>(skb, pass.port, &terms, &flow.tuple, left, forward::is_urgent(reason));
    Outcome::SLOW
}

#[inline(always)]
fn carry<F: Family>(
    skb: &Skb,
    front: &Front,
    entry: &mut EgressFlow,
    flow: &Flow<F::Tuple>,
    pass: &Pass<'_>,
) -> Outcome {
    let amount = wire::amount(skb.len(), 14 + flow.headers, pass.meta);
    if !forward::fits(entry.kind, flow.length, flow.headers, pass.meta.gso_size, pass.config) {
        count::reason(Reason::TooLong);
        return Outcome::SLOW;
    }
    if entry.kind == KIND_LOCAL {
        return deliver::<F>(skb, front, entry, amount, pass);
    }
    if !room::make(skb) {
        count::reason(Reason::RoomRefused);
        return Outcome::SLOW;
    }
    let front = skb.front_as_is();
    if !front.has(HEADER_LEN + 20) {
        count::reason(Reason::DroppedChanged);
        return Outcome::done(TC_ACT_SHOT);
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
    if entry.ttl_step != 0 {
        F::lower_ttl(&front, HEADER_LEN, entry.ttl_step);
    }
    entry.packets = entry.packets.wrapping_add(amount.packets);
    count::port(pass.port.slot, amount, |counters| &mut counters.fast_from);
    count::tunnel(u32::from(entry.slot), amount.with_headers(OVERHEAD), |counters| &mut counters.fast_tx);
    if pass.port.flags & PORT_INTERPOSED == 0 {
        skb.set_tag(tag::FAST);
    }
    Outcome::done(redirect(entry.target))
}

#[inline(always)]
fn deliver<F: Family>(
    skb: &Skb,
    front: &Front,
    entry: &mut EgressFlow,
    amount: Amount,
    pass: &Pass<'_>,
) -> Outcome {
    let target = entry.target;
    let Ok(slot) = admit::receiver(maps::port(target), pass.epoch) else {
        count::reason(Reason::EndpointSlow);
        return Outcome::SLOW;
    };
    if !front.has(14 + 20) {
        return Outcome::SLOW;
    }
    let [first, second] = [entry.header[0], entry.header[1]];
    // SAFETY: inside the packet, as just checked.
    unsafe {
        *front.at::<u64>(0) = first;
        *front.at::<u32>(8) = packet::halves(second).0;
    }
    if entry.ttl_step != 0 {
        F::lower_ttl(front, 14, entry.ttl_step);
    }
    entry.packets = entry.packets.wrapping_add(amount.packets);
    count::port(pass.port.slot, amount, |counters| &mut counters.fast_from);
    count::port(slot, amount, |counters| &mut counters.fast_to);
    if skb.mark() != 0 {
        skb.set_mark(0);
    }
    Outcome::done(redirect_peer(target))
}
