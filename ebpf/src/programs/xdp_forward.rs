//! What an entry says, done to a frame in front of the driver: the same bytes as `forward` makes of a packet at a TC hook. There are no
//! aggregates here and no checksums left to the hardware, so that the checksum of TCP and UDP is in the frame and is brought up to date
//! there.

use aya_ebpf::{
    bindings::xdp_action::{XDP_DROP, XDP_TX},
    helpers::bpf_xdp_adjust_head,
};
use ebpf::decide::tuple::Tuple as _;
use ebpf::{
    decide::{
        Terms, admit,
        forward::{self, Facts},
        xdp::{self, Ends},
    },
    layout::{
        flow::{Entry, HEADER_LEN, HEADER_WORDS, OVERHEAD, SIDE_TUNNEL},
        reason::Reason,
    },
    packet::{self, Flow, Packet as _, UDP, Window as _, wire::Amount},
};

use super::{
    count,
    family::Family,
    forward::{Arrival, used},
    frame::Frame,
    maps,
    skb::Front,
};

/// Sends the packet back out of the uplink if its entry says so. `None`: for TC, and the packet is as it was.
#[inline(always)]
pub(super) fn forward<F: Family, const AT: u32>(
    frame: Frame,
    packet: &Arrival<'_, F, AT>,
    uplink: u32,
    terms: &Terms<'_>,
) -> Option<u32> {
    let flow = packet.flow;
    let entry = F::flows().get_ptr_mut(&flow.tuple)?;
    // SAFETY: a map value, see `forward::forward`.
    let entry = unsafe { &mut *entry };
    let facts =
        Facts { way: packet.way, macs: packet.macs, dscp: flow.dscp(), ttl: flow.ttl, aggregate: false };
    let length = frame.len();
    let ends = Ends { tunnel: AT != 14, length, uplink };
    let side = entry.after.side();
    if !xdp::carries(entry, &facts, ends, terms)
        || !forward::fits((side, entry.target), flow.length, flow.headers, 0, terms.config)
    {
        return None;
    }
    let port = maps::port(uplink)?;
    if side != SIDE_TUNNEL && admit::receiver(Some(port), terms.epoch).is_err() {
        return None;
    }
    let amount = Amount { packets: 1, bytes: length.wrapping_sub(AT - 14).into() };
    let sent = if side == SIDE_TUNNEL {
        encapsulate::<F>(frame, entry, flow, amount, port.slot)?
    } else {
        plain::<F, AT>(frame, entry, amount, port.slot)?
    };
    if !sent {
        count::reason(Reason::DroppedChanged);
        return Some(XDP_DROP);
    }
    count::reason(Reason::XdpForwarded);
    Some(XDP_TX)
}

/// Into a tunnel. `None`: there is no room in front of the frame, and it is as it was. False: it is not as it should be.
#[inline(always)]
fn encapsulate<F: Family>(
    frame: Frame,
    entry: &mut Entry<F::Tuple>,
    flow: &Flow<F::Tuple>,
    amount: Amount,
    slot: u32,
) -> Option<bool> {
    if !moved(frame, -OVERHEAD.cast_signed()) {
        return None;
    }
    let front = frame.front();
    if !front.has(HEADER_LEN + F::HEADER + 8) {
        return Some(false);
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
    count::port(slot, amount, |counters| &mut counters.fast_from);
    count::tunnel(entry.slot_out.into(), amount.with_headers(OVERHEAD), |counters| &mut counters.fast_tx);
    Some(rewrite::<F>(&front, HEADER_LEN, entry))
}

/// Without a tunnel, out of one or not. The result is as that of [`encapsulate`].
#[inline(always)]
fn plain<F: Family, const AT: u32>(
    frame: Frame,
    entry: &mut Entry<F::Tuple>,
    amount: Amount,
    slot: u32,
) -> Option<bool> {
    if AT != 14 && !moved(frame, OVERHEAD.cast_signed()) {
        return None;
    }
    let front = frame.front();
    if !front.has(14 + F::HEADER + 8) {
        return Some(false);
    }
    let [first, second] = [entry.header[0], entry.header[1]];
    // SAFETY: inside the packet, as just checked.
    unsafe {
        *front.at::<u64>(0) = first;
        *front.at::<u32>(8) = packet::halves(second).0;
    }
    used(entry, amount);
    if AT == 14 {
        count::port(slot, amount, |counters| &mut counters.fast_from);
    } else {
        let amount = amount.with_headers(OVERHEAD);
        count::tunnel(entry.slot_in.into(), amount, |counters| &mut counters.fast_rx);
    }
    count::port(slot, amount, |counters| &mut counters.fast_to);
    Some(rewrite::<F>(&front, 14, entry))
}

/// TTL, addresses, ports and checksums from the IP header at `at` on, of which [`Family::HEADER`] and eight bytes more are known to be
/// there. False: the packet is shorter than its protocol's header.
#[inline(always)]
fn rewrite<F: Family>(front: &Front, at: u32, entry: &Entry<F::Tuple>) -> bool {
    if entry.ttl_step != 0 {
        F::lower_ttl(front, at, entry.ttl_step);
    }
    if entry.translated == 0 {
        return true;
    }
    F::translate(front, at, entry);
    let (addresses, ports) = (entry.address_difference, entry.port_difference);
    if entry.after.protocol() == UDP {
        let field = at + F::HEADER + 6;
        let sum = packet::translated(front.u16(field), addresses, ports, true);
        // SAFETY: inside the packet: the caller has checked, and the verifier makes sure.
        unsafe { *front.at::<u16>(field) = sum };
        return true;
    }
    let field = at + F::HEADER + 16;
    if !front.has(field + 2) {
        return false;
    }
    let sum = packet::translated(front.u16(field), addresses, ports, false);
    // SAFETY: inside the packet, as just checked.
    unsafe { *front.at::<u16>(field) = sum };
    true
}

/// Moves the front of the frame; false: the kernel refuses, and the frame is as it was.
#[inline(always)]
fn moved(frame: Frame, by: i32) -> bool {
    // SAFETY: the helper checks its arguments. Pointers into the frame are void afterwards.
    unsafe { bpf_xdp_adjust_head(frame.raw(), by) == 0 }
}
