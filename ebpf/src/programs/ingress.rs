//! From the tunnel into a pod on the fast path.

use aya_ebpf::bindings::TC_ACT_SHOT;
use ebpf::{
    decide::{
        admit::{self, Next, Outside},
        forward::{self, Decision, Facts, Leaves},
        pending, tag,
    },
    layout::{
        flow::{EgressKey, HEADER_LEN, IngressFlow, IngressKey, NOTE_LIVE, NOTE_MARK, OVERHEAD},
        maps::PORT_INTERPOSED,
        reason::Reason,
    },
    packet::{self, Flow, Outer, Packet as _, Window as _, wire},
};

use super::{
    conn, count,
    family::{Family, V4, V6},
    maps, note,
    pass::{Outcome, Pass},
    room::{self, Way},
    skb::{Front, Skb, redirect, redirect_peer},
};

/// Looks at a packet on the uplink whose outer headers are Geneve's.
#[inline(always)]
pub(super) fn from_uplink(skb: &Skb, front: &Front, outer: &Outer, pass: &Pass<'_>) -> Outcome {
    let outside = Outside {
        vlan: pass.meta.vlan_beside,
        ours: admit::is_for_node([front.u32(0), front.u16(4).into()], outer.destination, pass.config),
        plain: outer.plain,
        sum_is_right: packet::outer_sum_is_right(front),
    };
    if let Err(reason) = admit::tunnel(pass.gate, outside) {
        count::reason(reason);
        return if reason == Reason::OuterChecksum { summed(skb, outer, pass) } else { Outcome::SLOW };
    }
    if outer.inner == V4::TYPE {
        return family::<V4>(skb, front, outer, pass);
    }
    if outer.inner == V6::TYPE {
        return family::<V6>(skb, &skb.front(HEADER_LEN + 40 + 20), outer, pass);
    }
    count::reason(Reason::NotIp);
    Outcome::SLOW
}

/// A packet with an outer UDP checksum, which OVS may let through.
#[inline(always)]
fn summed(skb: &Skb, outer: &Outer, pass: &Pass<'_>) -> Outcome {
    #[inline(always)]
    fn mark<F: Family>(skb: &Skb, front: &Front, outer: &Outer, pass: &Pass<'_>) -> Outcome {
        match F::parse(front, HEADER_LEN, skb.len().wrapping_sub(HEADER_LEN)) {
            Ok(flow) => enters::<F>(skb, inner_macs(front), outer, pass, &flow, Reason::OuterChecksum),
            Err(_) => Outcome::SLOW,
        }
    }
    if pass.port.flags & PORT_INTERPOSED == 0 {
        Outcome::SLOW
    } else if outer.inner == V4::TYPE {
        mark::<V4>(skb, &skb.front(HEADER_LEN + 20 + 20), outer, pass)
    } else if outer.inner == V6::TYPE {
        mark::<V6>(skb, &skb.front(HEADER_LEN + 40 + 20), outer, pass)
    } else {
        Outcome::SLOW
    }
}

#[inline(always)]
fn family<F: Family>(skb: &Skb, front: &Front, outer: &Outer, pass: &Pass<'_>) -> Outcome {
    let flow = match F::parse(front, HEADER_LEN, skb.len().wrapping_sub(HEADER_LEN)) {
        Ok(flow) => flow,
        Err(reason) => {
            count::reason(reason);
            return Outcome::SLOW;
        }
    };
    let same_ecn = outer.ecn == flow.outer_ecn();
    let reason =
        match admit::tunnel_packet(pass.gate, same_ecn, F::is_tcp(&flow.tuple), flow.changes_connection()) {
            Next::Slow(reason) => reason,
            next => {
                let Outer { vni, option, source, .. } = *outer;
                let key = IngressKey { vni, option, remote: source, tuple: flow.tuple };
                // SAFETY: a map value that an LRU map may reuse, as in `egress`.
                let entry = F::ingress().get_ptr_mut(&key).map(|entry| unsafe { &mut *entry });
                if next == Next::Close {
                    count::reason(Reason::TcpHandshake);
                    if let Some(IngressFlow { target, .. }) = entry {
                        let pod = EgressKey { ifindex: *target, tuple: F::reverse(&flow.tuple) };
                        conn::close::<F>(&pod, u32::from(flow.flags));
                    }
                    return Outcome::SLOW;
                }
                let terms = pass.terms();
                let facts = Facts {
                    macs: inner_macs(front),
                    dscp: flow.dscp(),
                    ttl: flow.ttl,
                    aggregate: pass.meta.gso_size != 0,
                };
                let receiver = |entry: &IngressFlow| admit::receiver(maps::port(entry.target), terms.epoch);
                let is_open = |entry: &IngressFlow| {
                    let pod = EgressKey { ifindex: entry.target, tuple: F::reverse(&flow.tuple) };
                    conn::is_open::<F>(&pod, terms.epoch)
                };
                match forward::decide(entry, &facts, &terms, receiver, is_open) {
                    Decision::Forward(entry, slot) => return deliver::<F>(skb, entry, slot, &flow, pass),
                    Decision::Slow(reason) => {
                        if forward::forgets(reason) {
                            let _ = F::ingress().remove(&key);
                        }
                        reason
                    }
                }
            }
        };
    count::reason(reason);
    enters::<F>(skb, inner_macs(front), outer, pass, &flow, reason)
}

/// The packet goes to OVS for this reason and leaves what it leaves. What OVS has no tunnel for leaves nothing, as OVS drops it.
#[inline(always)]
fn enters<F: Family>(
    skb: &Skb,
    macs: [u32; 3],
    outer: &Outer,
    pass: &Pass<'_>,
    flow: &Flow<F::Tuple>,
    reason: Reason,
) -> Outcome {
    let live = match forward::tunnel_leaves(reason) {
        Leaves::Nothing => return Outcome::SLOW,
        // By its tag a packet finds its own note only.
        Leaves::Mark if pass.port.flags & PORT_INTERPOSED == 0 => return Outcome::SLOW,
        Leaves::Mark => NOTE_MARK,
        Leaves::Note => NOTE_LIVE,
    };
    let Outer { vni, option, source, .. } = *outer;
    let terms = pass.terms();
    if !maps::is_remote(source) {
        count::reason(Reason::UnknownRemote);
        return Outcome::SLOW;
    }
    let left = pending::entered(flow, 0, macs, [vni, option, source], live, &terms);
    note::leave::<F>(skb, pass.port, &terms, &flow.tuple, left, forward::is_urgent(reason));
    Outcome::SLOW
}

/// Destination and source MAC of the inner frame.
#[inline(always)]
fn inner_macs(front: &Front) -> [u32; 3] {
    const AT: u32 = HEADER_LEN - 14;
    [front.u32(AT), front.u32(AT + 4), front.u32(AT + 8)]
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
    let Some(way) = room::strip::<F>(skb) else {
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
            Outcome::done(redirect_peer(entry.target))
        }
        Way::Egress => {
            skb.set_tag(tag::FAST);
            Outcome::done(redirect(entry.target))
        }
    }
}
