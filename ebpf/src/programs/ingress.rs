//! From the tunnel into a pod on the fast path.

use aya_ebpf::{
    bindings::{BPF_F_ADJ_ROOM_FIXED_GSO, TC_ACT_SHOT, bpf_adj_room_mode::BPF_ADJ_ROOM_MAC},
    helpers::{bpf_redirect, bpf_redirect_peer, bpf_skb_adjust_room},
};
use ebpf::{
    decide::tag,
    layout::flow::{
        EgressKey, GATE_FORWARD, GATE_TCP, HEADER, IngressFlow, IngressKey, NOTE_LIVE, NOTE_MARK, Note,
        OVERHEAD,
    },
    layout::maps::{Config, PORT_FAST, PORT_INTERPOSED, Port},
    layout::reason::Reason,
    packet::wire::{self, Meta},
    packet::{self, Flow, Outer, Packet as _, Window as _},
};

use super::{
    conn, count,
    egress::Outcome,
    family::{Family, V4, V6},
    maps, note, refresh,
    skb::{self, Front, Skb},
};

/// Looks at a packet on the uplink whose outer headers are Geneve's.
#[inline(always)]
pub(super) fn from_uplink(
    skb: &Skb,
    front: &Front,
    outer: &Outer,
    config: &Config,
    port: &Port,
    meta: Meta,
) -> Outcome {
    let gate = maps::gate(config);
    let ours = is_ours(front, outer, config);
    if gate & GATE_FORWARD == 0
        || meta.vlan_beside
        || !ours
        || !outer.plain
        || !packet::outer_sum_is_right(front)
    {
        // Which of them is asked only then: kept apart, the way of nearly all packets has no part in it.
        let reason = if gate & GATE_FORWARD == 0 {
            Reason::GateClosed
        } else if meta.vlan_beside {
            Reason::Vlan
        } else if !ours {
            Reason::OtherDestination
        } else if !outer.plain {
            Reason::OuterChecksum
        } else {
            Reason::OuterHeader
        };
        count::reason(reason);
        if matches!(reason, Reason::OuterChecksum) {
            let pass = Pass { config, port, outer, meta, gate, epoch: maps::epoch(config) };
            return summed(skb, &pass);
        }
        return Outcome::SLOW;
    }
    let pass = Pass { config, port, outer, meta, gate, epoch: maps::epoch(config) };
    if outer.inner == V4::TYPE {
        return family::<V4>(skb, front, &pass);
    }
    if outer.inner == V6::TYPE {
        return family::<V6>(skb, &skb.front(HEADER as u32 + 40 + 20), &pass);
    }
    count::reason(Reason::NotIp);
    Outcome::SLOW
}

/// A packet with an outer UDP checksum, which OVS may let through.
#[inline(always)]
fn summed(skb: &Skb, pass: &Pass<'_>) -> Outcome {
    #[inline(always)]
    fn mark<F: Family>(skb: &Skb, front: &Front, pass: &Pass<'_>) -> Outcome {
        match F::parse(front, HEADER as u32, skb.len().wrapping_sub(HEADER as u32)) {
            Ok(flow) => enters::<F>(skb, inner_macs(front), pass, &flow, NOTE_MARK, false),
            Err(_) => Outcome::SLOW,
        }
    }
    if pass.port.flags & PORT_INTERPOSED == 0 {
        Outcome::SLOW
    } else if pass.outer.inner == V4::TYPE {
        mark::<V4>(skb, &skb.front(HEADER as u32 + 20 + 20), pass)
    } else if pass.outer.inner == V6::TYPE {
        mark::<V6>(skb, &skb.front(HEADER as u32 + 40 + 20), pass)
    } else {
        Outcome::SLOW
    }
}

/// Whether the packet is for this node's tunnel endpoint, by MAC and address.
#[inline(always)]
fn is_ours(front: &Front, outer: &Outer, config: &Config) -> bool {
    let local = u32::from_ne_bytes(config.local);
    let other = (outer.destination ^ local)
        | (front.u32(0) ^ config.mac[0])
        | (u32::from(front.u16(4)) ^ config.mac[1]);
    other == 0 && local != 0
}

/// What stays the same for one packet.
struct Pass<'a> {
    config: &'a Config,
    port: &'a Port,
    outer: &'a Outer,
    meta: Meta,
    gate: u32,
    epoch: u32,
}

#[inline(always)]
fn family<F: Family>(skb: &Skb, front: &Front, pass: &Pass<'_>) -> Outcome {
    let flow = match F::parse(front, HEADER as u32, skb.len().wrapping_sub(HEADER as u32)) {
        Ok(flow) => flow,
        Err(reason) => {
            count::reason(reason);
            return Outcome::SLOW;
        }
    };
    let reason = 'slow: {
        if pass.outer.ecn != flow.outer_ecn() {
            break 'slow Reason::CongestionMark;
        }
        if pass.gate & GATE_TCP == 0 && F::is_tcp(&flow.tuple) {
            count::reason(Reason::TcpGateClosed);
            return Outcome::SLOW;
        }
        let Outer { vni, option, source, .. } = *pass.outer;
        let key = IngressKey { vni, option, remote: source, tuple: flow.tuple };
        let entry = F::ingress().get_ptr_mut(&key);
        if flow.changes_connection() {
            count::reason(Reason::TcpHandshake);
            if let Some(entry) = entry {
                // SAFETY: a map value, see `egress`.
                let ifindex = unsafe { (*entry).target };
                conn::close::<F>(
                    &EgressKey { ifindex, tuple: F::reverse(&flow.tuple) },
                    u32::from(flow.flags),
                );
            }
            return Outcome::SLOW;
        }
        // SAFETY: as above.
        match entry.map(|entry| unsafe { &mut *entry }) {
            None => Reason::Miss,
            Some(entry) => {
                // One branch for what nearly always holds.
                let (stale, macs) = (entry.epoch ^ pass.epoch, inner_macs(front));
                let [first, second, third] = entry.arrived;
                let other = (first ^ macs[0]) | (second ^ macs[1]) | (third ^ macs[2]);
                let marked = u32::from(entry.dscp ^ flow.dscp());
                if stale | other | marked != 0 {
                    break 'slow if stale != 0 {
                        Reason::Stale
                    } else if other != 0 {
                        Reason::MacMismatch
                    } else {
                        Reason::DscpMismatch
                    };
                }
                let slot = match receiver(entry.target, pass.epoch) {
                    Ok(slot) => slot,
                    Err(reason) => break 'slow reason,
                };
                if !is_active::<F>(entry, &key, pass.epoch) {
                    break 'slow Reason::Waiting;
                }
                if u32::from(flow.ttl) <= u32::from(entry.ttl_step) + 1 {
                    break 'slow Reason::LowTtl;
                }
                let IngressFlow { deadline, probing, .. } = entry;
                match refresh::check(deadline, probing, pass.config, pass.gate, pass.meta, skb::now()) {
                    Ok(()) => return deliver::<F>(skb, entry, slot, &flow, pass),
                    Err(reason) => {
                        if matches!(reason, Reason::Dead | Reason::Overdue) {
                            let _ = F::ingress().remove(&key);
                        }
                        reason
                    }
                }
            }
        }
    };
    count::reason(reason);
    let live = if teaches(reason) { NOTE_LIVE } else { NOTE_MARK };
    enters::<F>(skb, inner_macs(front), pass, &flow, live, matches!(reason, Reason::Probe))
}

/// Whether the packet's way through OVS may teach an entry. Not that of one that the entry could not carry.
#[inline(always)]
const fn teaches(reason: Reason) -> bool {
    !matches!(
        reason,
        Reason::CongestionMark | Reason::LowTtl | Reason::EndpointSlow | Reason::EndpointDiverged
    )
}

/// The packet goes to OVS and leaves a note, or a mark if nothing is to be learned from it: otherwise it would be credited with the
/// note that a packet of another node or network left. What OVS has no tunnel for leaves nothing, as OVS drops it.
#[inline(always)]
fn enters<F: Family>(
    skb: &Skb,
    macs: [u32; 3],
    pass: &Pass<'_>,
    flow: &Flow<F::Tuple>,
    live: u8,
    urgent: bool,
) -> Outcome {
    if live == NOTE_MARK && pass.port.flags & PORT_INTERPOSED == 0 {
        return Outcome::SLOW;
    }
    let Outer { vni, option, source, .. } = *pass.outer;
    let now = skb::now();
    if !maps::is_remote(source) {
        count::reason(Reason::UnknownRemote);
        return Outcome::SLOW;
    }
    let left = Note {
        epoch: pass.epoch,
        when: now,
        last: now,
        ifindex: 0,
        macs,
        way: [vni, option, source],
        ttl: flow.ttl,
        tos: flow.tos,
        live,
        more: 0,
    };
    note::leave::<F>(skb, pass.port, pass.config, pass.gate, &flow.tuple, left, urgent);
    Outcome::SLOW
}

/// Destination and source MAC of the inner frame.
#[inline(always)]
fn inner_macs(front: &Front) -> [u32; 3] {
    const AT: u32 = HEADER as u32 - 14;
    [front.u32(AT), front.u32(AT + 4), front.u32(AT + 8)]
}

/// The counter slot of the pod that gets the packet, if it takes part.
#[inline(always)]
fn receiver(target: u32, epoch: u32) -> Result<u32, Reason> {
    let Some(port) = maps::port(target) else { return Err(Reason::EndpointSlow) };
    if port.flags & PORT_FAST == 0 {
        return Err(Reason::EndpointSlow);
    }
    if port.diverged == epoch {
        return Err(Reason::EndpointDiverged);
    }
    Ok(port.slot)
}

/// Whether both directions of the flow are known, as far as it needs them.
#[inline(always)]
fn is_active<F: Family>(entry: &mut IngressFlow, key: &IngressKey<F::Tuple>, epoch: u32) -> bool {
    if entry.active == 0 {
        let reverse = EgressKey { ifindex: entry.target, tuple: F::reverse(&key.tuple) };
        if !conn::is_open::<F>(&reverse, epoch) {
            return false;
        }
        entry.active = 1;
    }
    true
}

#[inline(always)]
fn deliver<F: Family>(
    skb: &Skb,
    entry: &mut IngressFlow,
    slot: u32,
    flow: &Flow<F::Tuple>,
    pass: &Pass<'_>,
) -> Outcome {
    let amount = wire::amount(skb.len().wrapping_sub(OVERHEAD), 14 + flow.headers, pass.meta);
    let Some(way) = strip::<F>(skb) else {
        count::reason(Reason::RoomRefused);
        return Outcome::SLOW;
    };
    let front = skb.front_as_is();
    if !front.has(14 + 20) {
        count::reason(Reason::DroppedChanged);
        return Outcome::done(TC_ACT_SHOT);
    }
    // SAFETY: inside the packet, as just checked. What was in front of the IP header is the outer header's rest.
    unsafe {
        *front.at::<u32>(0) = entry.macs[0];
        *front.at::<u32>(4) = entry.macs[1];
        *front.at::<u32>(8) = entry.macs[2];
        *front.at::<u16>(12) = F::TYPE.to_be();
    }
    if entry.ttl_step != 0 {
        F::lower_ttl(&front, 14, entry.ttl_step);
    }
    entry.packets = entry.packets.wrapping_add(amount.packets);
    count::port(slot, amount, |counters| &mut counters.fast_to);
    count::tunnel(entry.slot, amount.with_headers(OVERHEAD), |counters| &mut counters.fast_rx);
    match way {
        Way::Peer => {
            if skb.mark() != 0 {
                skb.set_mark(0);
            }
            // SAFETY: the helper only records the target.
            Outcome::done(unsafe { bpf_redirect_peer(entry.target, 0) as i32 })
        }
        Way::Egress => {
            skb.set_tag(tag::FAST);
            // SAFETY: as above; flags 0 = egress of that interface.
            Outcome::done(unsafe { bpf_redirect(entry.target, 0) as i32 })
        }
    }
}

/// How a packet without its outer headers gets into the pod.
enum Way {
    /// Handed to the pod's end of the veth.
    Peer,
    /// Sent out of the host's end, which finds out the protocol anew.
    Egress,
}

/// `BPF_F_ADJ_ROOM_DECAP_L3_IPV6` of linux/bpf.h: the packet is IPv6 from now on. Linux 6.3.
const DECAP_L3_IPV6: u64 = 1 << 8;

/// Takes the outer headers away, all but an Ethernet header.
#[inline(always)]
fn strip<F: Family>(skb: &Skb) -> Option<Way> {
    if F::VERSION == 4 {
        return if take_room(skb, 0) { Some(Way::Peer) } else { None };
    }
    // The outer packet is IPv4, and the kernel keeps a packet's protocol beside it.
    if take_room(skb, DECAP_L3_IPV6) {
        return Some(Way::Peer);
    }
    if take_room(skb, 0) { Some(Way::Egress) } else { None }
}

/// Takes the room of the outer headers away. `more`: flags. False: the kernel refuses, and the packet is as it was.
#[inline(always)]
pub(super) fn take_room(skb: &Skb, more: u64) -> bool {
    let flags = u64::from(BPF_F_ADJ_ROOM_FIXED_GSO) | more;
    // SAFETY: the helper checks its arguments.
    unsafe { bpf_skb_adjust_room(skb.raw(), -OVERHEAD.cast_signed(), BPF_ADJ_ROOM_MAC, flags) == 0 }
}
