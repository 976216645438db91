//! When a packet that could use an entry goes through OVS all the same.

use ebpf::{
    decide::age::{Due, Times, due, holds},
    layout::flow::GATE_HOLD,
    layout::maps::Config,
    layout::reason::Reason,
    packet::wire::Meta,
};

/// Looks at an entry's deadline. The packet takes the fast path, or the reason says why it does not; after
/// [`Reason::Dead`] and [`Reason::Overdue`] the entry must go.
#[inline(always)]
pub(super) fn check(
    deadline: &mut u32,
    probing: &mut u8,
    config: &Config,
    gate: u32,
    meta: Meta,
    now: u32,
) -> Result<(), Reason> {
    let times = Times { slack: config.slack, overdue: config.overdue };
    match due(now, *deadline, *probing != 0, meta.gso_size == 0, times) {
        Due::Fresh => Ok(()),
        // OVS is away. The end is in the kernel, so that it comes without the agent too.
        _ if gate & GATE_HOLD != 0 && holds(now, config.hold_until) => Ok(()),
        Due::Probe => {
            *deadline = now.wrapping_add(config.grace);
            *probing = 1;
            Err(Reason::Probe)
        }
        Due::Dead => Err(Reason::Dead),
        Due::Overdue => Err(Reason::Overdue),
    }
}
