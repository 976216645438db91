//! What happens when OVS answers otherwise than an entry says: the agent is told, and endpoints are taken off the fast path.

use ebpf::layout::{
    flow::{Answer, Divergence, EgressFlow, HEADER_WORDS, IngressFlow},
    reason::Reason,
};

use super::super::{count, family::Family, maps};

/// Takes an endpoint off the fast path for this epoch.
#[inline(always)]
pub(super) fn suspend(ifindex: u32, epoch: u32) {
    if let Some(port) = maps::port_mut(ifindex) {
        // SAFETY: a map value; a store of one word.
        unsafe { (*port).diverged = epoch };
    }
}

/// Tells the agent, with both answers, which `answers` puts in.
#[inline(always)]
pub(super) fn report<F: Family>(
    what: u32,
    ifindex: u32,
    tuple: &F::Tuple,
    epoch: u32,
    answers: impl FnOnce(&mut Divergence),
) {
    let Some(mut room) = maps::EVENTS.reserve::<Divergence>(0) else {
        count::reason(Reason::EventLost);
        return;
    };
    // SAFETY: reserved for a `Divergence`, and every field is written.
    let record = unsafe { &mut *room.as_mut_ptr() };
    record.what = what;
    record.ifindex = ifindex;
    record.epoch = epoch;
    record.family = F::VERSION;
    record.tuple = F::wide(tuple);
    answers(record);
    room.submit(0);
}

/// The answer that an ingress entry has.
#[inline(always)]
pub(super) fn ingress_answer(flow: &IngressFlow) -> Answer {
    let mut header = [0; HEADER_WORDS];
    [header[0], header[1]] = front(flow.macs);
    Answer { target: flow.target, kind: 0, ttl_step: flow.ttl_step, _pad: [0; 2], header }
}

/// The answer that an egress entry has.
#[inline(always)]
pub(super) fn egress_answer(flow: &EgressFlow) -> Answer {
    Answer {
        target: flow.target,
        kind: flow.kind,
        ttl_step: flow.ttl_step,
        _pad: [0; 2],
        header: flow.header,
    }
}

/// The MACs as the first words of a header.
#[inline(always)]
pub(super) fn front(macs: [u32; 3]) -> [u64; 2] {
    [u64::from(macs[0]) | u64::from(macs[1]) << 32, u64::from(macs[2])]
}
