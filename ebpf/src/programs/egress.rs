//! Out of a pod on the fast path: to another node through the tunnel, or to a pod of this node.

use aya_ebpf::{
    bindings::{
        BPF_F_ADJ_ROOM_ENCAP_L2_ETH, BPF_F_ADJ_ROOM_ENCAP_L3_IPV4, BPF_F_ADJ_ROOM_ENCAP_L4_UDP,
        BPF_F_ADJ_ROOM_FIXED_GSO, TC_ACT_SHOT, bpf_adj_room_mode::BPF_ADJ_ROOM_MAC,
    },
    helpers::{bpf_redirect, bpf_redirect_peer, bpf_skb_adjust_room},
};
use ebpf::{
    decide::tag,
    layout::flow::{
        EgressFlow, EgressKey, GATE_FORWARD, GATE_TCP, HEADER, HEADER_WORDS, KIND_LOCAL, Note, OVERHEAD,
    },
    layout::maps::{Config, PORT_FAST, PORT_INTERPOSED, Port},
    layout::reason::Reason,
    packet::wire::{self, Meta},
    packet::{self, Flow, Packet as _, Window as _},
};

use super::{
    conn, count,
    family::{Family, V4, V6},
    maps, note, refresh,
    skb::{self, Front, Skb},
};

/// What became of a packet: the verdict of one that is on its way, or one of two marks. A plain number, as one that is known at
/// the end of each way costs less than two to be put together.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Outcome(i32);

impl Outcome {
    /// To OVS. Its headers are in order.
    pub(super) const SLOW: Self = Self(-2);
    /// To OVS. It was not looked at, or not understood.
    pub(super) const UNREAD: Self = Self(-3);

    /// It is on its way. `verdict`: what the program returns; none of those that we use is negative but `TC_ACT_UNSPEC`, and
    /// that is none of a packet on its way.
    #[inline(always)]
    pub(super) const fn done(verdict: i32) -> Self {
        Self(verdict)
    }

    /// The verdict of a packet that is on its way.
    #[inline(always)]
    pub(super) const fn verdict(self) -> Option<i32> {
        if self.0 >= 0 { Some(self.0) } else { None }
    }
}

/// `BPF_F_ADJ_ROOM_ENCAP_L2(len)` of linux/bpf.h: length of the inner Ethernet header.
const fn encap_l2(len: u64) -> u64 {
    (len & 0xff) << 56
}

const ENCAPSULATE: u64 = (BPF_F_ADJ_ROOM_FIXED_GSO
    | BPF_F_ADJ_ROOM_ENCAP_L3_IPV4
    | BPF_F_ADJ_ROOM_ENCAP_L4_UDP
    | BPF_F_ADJ_ROOM_ENCAP_L2_ETH) as u64
    | encap_l2(14);

#[inline(always)]
pub(super) fn from_pod(skb: &Skb, port: &Port) -> Outcome {
    let Some(config) = maps::config() else { return Outcome::UNREAD };
    let (gate, epoch) = (maps::gate(config), maps::epoch(config));
    let closed = if gate & GATE_FORWARD == 0 {
        Some(Reason::GateClosed)
    } else if port.flags & PORT_FAST == 0 {
        Some(Reason::EndpointSlow)
    } else if port.diverged == epoch {
        Some(Reason::EndpointDiverged)
    } else {
        None
    };
    if let Some(reason) = closed {
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

/// What stays the same for one packet.
struct Pass<'a> {
    config: &'a Config,
    port: &'a Port,
    meta: Meta,
    gate: u32,
    epoch: u32,
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
    if !F::is_bound(&flow.tuple, pass.port) {
        count::reason(Reason::SourceMismatch);
        return Outcome::SLOW;
    }
    let key = EgressKey { ifindex: skb.ifindex(), tuple: flow.tuple };
    if flow.changes_connection() {
        if let Err(reason) = addressed(&macs(), &pass.port.mac) {
            count::reason(reason);
            return Outcome::SLOW;
        }
        count::reason(Reason::TcpHandshake);
        conn::close::<F>(&key, u32::from(flow.flags));
        return Outcome::SLOW;
    }
    if pass.gate & GATE_TCP == 0 && F::is_tcp(&flow.tuple) {
        count::reason(Reason::TcpGateClosed);
        return Outcome::SLOW;
    }
    let now = skb::now();
    // SAFETY: a map value. An LRU map may reuse it for another flow while we use it, only after as many new flows on this
    // CPU as a whole free list has; design 4.2 accepts that of LRU maps.
    let reason = match F::egress().get_ptr_mut(&key).map(|entry| unsafe { &mut *entry }) {
        None => Reason::Miss,
        Some(entry) => {
            if let Err(reason) = check::<F>(entry, &key, &macs(), flow.dscp(), pass.epoch) {
                reason
            } else if u32::from(flow.ttl) <= u32::from(entry.ttl_step) + 1 {
                count::reason(Reason::LowTtl);
                return Outcome::SLOW;
            } else {
                let EgressFlow { deadline, probing, .. } = entry;
                match refresh::check(deadline, probing, pass.config, pass.gate, pass.meta, now) {
                    Ok(()) => return carry::<F>(skb, front, entry, &flow, pass),
                    Err(reason) => reason,
                }
            }
        }
    };
    if matches!(reason, Reason::Dead | Reason::Overdue) {
        let _ = F::egress().remove(&key);
    }
    // Not before: an entry has the MACs of a packet that came this way.
    if let Err(reason) = addressed(&macs(), &pass.port.mac) {
        count::reason(reason);
        return Outcome::SLOW;
    }
    count::reason(reason);
    let left = Note {
        epoch: pass.epoch,
        when: now,
        last: now,
        ifindex: key.ifindex,
        macs: macs(),
        way: [0; 3],
        ttl: flow.ttl,
        tos: flow.tos,
        live: 1,
        more: 0,
    };
    note::leave::<F>(
        skb,
        pass.port,
        pass.config,
        pass.gate,
        &flow.tuple,
        left,
        matches!(reason, Reason::Probe),
    );
    Outcome::SLOW
}

/// Whether an entry may be made for packets with these MACs: the source is the port's own, the destination one
/// station.
#[inline(always)]
fn addressed(macs: &[u32; 3], own: &[u8; 6]) -> Result<(), Reason> {
    let [a, b, c, d, e, f] = *own;
    // Bytes 6 to 11 of the header.
    if macs[1] >> 16 != u32::from(u16::from_ne_bytes([a, b])) || macs[2] != u32::from_ne_bytes([c, d, e, f]) {
        return Err(Reason::SourceMismatch);
    }
    // The group bit of the first byte (IEEE 802, 8.2).
    if macs[0].to_ne_bytes()[0] & 1 != 0 {
        return Err(Reason::Multicast);
    }
    Ok(())
}

/// Whether the entry is valid, and for packets like this one.
#[inline(always)]
fn check<F: Family>(
    entry: &mut EgressFlow,
    key: &EgressKey<F::Tuple>,
    macs: &[u32; 3],
    dscp: u8,
    epoch: u32,
) -> Result<(), Reason> {
    // One branch for what nearly always holds.
    let stale = entry.epoch ^ epoch;
    let other = (entry.macs[0] ^ macs[0]) | (entry.macs[1] ^ macs[1]) | (entry.macs[2] ^ macs[2]);
    let marked = u32::from(entry.dscp ^ dscp);
    if stale | other | marked != 0 {
        return Err(if stale != 0 {
            Reason::Stale
        } else if other != 0 {
            Reason::MacMismatch
        } else {
            Reason::DscpMismatch
        });
    }
    if entry.active == 0 {
        if !conn::is_open::<F>(key, epoch) {
            return Err(Reason::Waiting);
        }
        entry.active = 1;
    }
    Ok(())
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
    // The size of the packet on the wire: the whole, or a full segment.
    let size =
        if pass.meta.gso_size == 0 { flow.length } else { flow.headers.wrapping_add(pass.meta.gso_size) };
    if entry.kind == KIND_LOCAL {
        if size > pass.config.pod_mtu {
            count::reason(Reason::TooLong);
            return Outcome::SLOW;
        }
        return deliver::<F>(skb, front, entry, amount, pass);
    }
    let total = flow.length.wrapping_add(OVERHEAD);
    if total > 65_535 || size > pass.config.tunnel_mtu {
        count::reason(Reason::TooLong);
        return Outcome::SLOW;
    }
    if !make_room(skb) {
        count::reason(Reason::RoomRefused);
        return Outcome::SLOW;
    }
    let front = skb.front_as_is();
    if !front.has(HEADER as u32 + 20) {
        count::reason(Reason::DroppedChanged);
        return Outcome::done(TC_ACT_SHOT);
    }
    let mut at = 0;
    while at < HEADER_WORDS {
        // SAFETY: inside the packet, as just checked.
        unsafe { *front.at::<u64>(at as u32 * 8) = entry.header[at] };
        at += 1;
    }
    let length = (total as u16).to_be();
    let datagram = (total.wrapping_sub(20) as u16).to_be();
    let ecn = flow.outer_ecn();
    let sum = packet::fold(entry.checksum + u32::from(length) + u32::from(u16::from(ecn).to_be()));
    // SAFETY: as above.
    unsafe {
        *front.at::<u8>(15) = front.u8(15) | ecn;
        *front.at::<u16>(16) = length;
        *front.at::<u16>(24) = !(sum as u16);
        *front.at::<u16>(38) = datagram;
    }
    if entry.ttl_step != 0 {
        F::lower_ttl(&front, HEADER as u32, entry.ttl_step);
    }
    entry.packets = entry.packets.wrapping_add(amount.packets);
    count::port(pass.port.slot, amount, |counters| &mut counters.fast_from);
    count::tunnel(u32::from(entry.slot), amount.with_headers(OVERHEAD), |counters| &mut counters.fast_tx);
    if pass.port.flags & PORT_INTERPOSED == 0 {
        skb.set_tag(tag::FAST);
    }
    // SAFETY: the helper only records the target; flags 0 = egress of that interface.
    Outcome::done(unsafe { bpf_redirect(entry.target, 0) as i32 })
}

/// Makes room for the outer headers. False: the kernel refuses, and the packet is as it was.
#[inline(always)]
pub(super) fn make_room(skb: &Skb) -> bool {
    // SAFETY: the helper checks its arguments.
    unsafe { bpf_skb_adjust_room(skb.raw(), OVERHEAD.cast_signed(), BPF_ADJ_ROOM_MAC, ENCAPSULATE) == 0 }
}

#[inline(always)]
fn deliver<F: Family>(
    skb: &Skb,
    front: &Front,
    entry: &mut EgressFlow,
    amount: wire::Amount,
    pass: &Pass<'_>,
) -> Outcome {
    let target = entry.target;
    let slot = match maps::port(target) {
        Some(receiver) if receiver.flags & PORT_FAST != 0 && receiver.diverged != pass.epoch => receiver.slot,
        _ => {
            count::reason(Reason::EndpointSlow);
            return Outcome::SLOW;
        }
    };
    if !front.has(14 + 20) {
        return Outcome::SLOW;
    }
    // SAFETY: inside the packet, as just checked.
    unsafe {
        *front.at::<u64>(0) = entry.header[0];
        *front.at::<u32>(8) = entry.header[1] as u32;
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
    // SAFETY: the helper only records the target.
    Outcome::done(unsafe { bpf_redirect_peer(target, 0) as i32 })
}
