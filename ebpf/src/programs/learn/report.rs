//! What happens when OVS answers otherwise than an entry says: the agent is told, and endpoints are taken off the fast path.

use ebpf::decide::tuple::Tuple as _;
use ebpf::layout::{
    flow::{Answer, Divergence, Entry, SIDE_TUNNEL},
    reason::Reason,
};

use super::super::{count, family::Family, maps};

/// Takes an endpoint off the fast path for this epoch.
#[inline(always)]
fn suspend(ifindex: u32, epoch: u32) {
    if let Some(port) = maps::port_mut(ifindex) {
        // SAFETY: a map value; a store of one word.
        unsafe { (*port).diverged = epoch };
    }
}

/// The ports that take part in an entry leave the fast path for this epoch, and the agent is told both answers.
#[inline(never)]
pub(super) fn diverged<F: Family>(
    key: &F::Tuple,
    entry: &Entry<F::Tuple>,
    answer: &Entry<F::Tuple>,
    epoch: u32,
) -> u32 {
    for target in [entry, answer] {
        if target.after.side() != SIDE_TUNNEL {
            suspend(target.target, epoch);
        }
    }
    let sender = key.side() != SIDE_TUNNEL;
    if sender {
        suspend(answer.way[0], epoch);
    }
    let Some(mut room) = maps::EVENTS.reserve::<Divergence>(0) else {
        count::reason(Reason::EventLost);
        return 0;
    };
    // SAFETY: reserved for a `Divergence`, and every field is written.
    let record = unsafe { &mut *room.as_mut_ptr() };
    record.ifindex = if sender { answer.way[0] } else { entry.target };
    record.epoch = epoch;
    record.family = F::VERSION;
    record._pad = 0;
    record.tuple = F::wide(key);
    record.remembered = of::<F>(entry);
    record.ovs = of::<F>(answer);
    room.submit(0);
    1
}

/// The answer that an entry has.
#[inline(always)]
fn of<F: Family>(entry: &Entry<F::Tuple>) -> Answer {
    Answer {
        target: entry.target,
        ttl_step: entry.ttl_step.into(),
        after: F::wide(&entry.after),
        header: entry.header,
    }
}
