//! When an entry may be used, and when a packet of its flow must go through OVS.

use crate::layout::flow::{PROBE_FIRST, PROBE_SENT};

/// The times an entry is held to, in ticks: see [`crate::layout::maps::Config`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// How long a refresh that is due waits for a packet that is cheap to delay.
    pub slack: u32,
    /// An entry that nobody used for this long after its deadline is not trusted.
    pub overdue: u32,
    /// How much earlier than others the first deadline of an entry is, see [`early`].
    pub early: u32,
}

/// How much earlier the first deadline of an entry comes, so that OVS is soon asked what it does with the packets behind the first one.
#[inline(always)]
pub const fn early(refresh: u32) -> u32 {
    refresh - refresh / 4
}

/// How long after its deadline an unused entry is trusted. That its first deadline is early makes nothing older: what matters is when OVS
/// last had a packet of the flow.
#[inline(always)]
pub const fn trusted(probing: u8, times: Times) -> u32 {
    if probing == PROBE_FIRST { times.overdue.saturating_add(times.early) } else { times.overdue }
}

/// What the age of an entry asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// No refresh is due: use the entry.
    Fresh,
    /// Send this packet through OVS; the entry stays in use until it comes out, or until the grace is over.
    Probe,
    /// The last refresh packet did not come out of OVS in time: the entry is dead.
    Dead,
    /// Nobody used the entry for long: forget it, and learn it anew.
    Overdue,
}

/// Looks at an entry's deadline. While a probe is inside OVS, `deadline` is the end of its grace.
///
/// `probing`: as the entry has it; `cheap`: the packet can take a detour without harm (no aggregate).
#[inline(always)]
pub fn due(now: u32, deadline: u32, probing: u8, cheap: bool, times: Times) -> Due {
    let late = now.wrapping_sub(deadline).cast_signed();
    if late < 0 {
        return Due::Fresh;
    }
    if probing == PROBE_SENT {
        return Due::Dead;
    }
    let late = late.cast_unsigned();
    if late > trusted(probing, times) {
        return Due::Overdue;
    }
    if !cheap && late < times.slack {
        return Due::Fresh;
    }
    Due::Probe
}

/// The most ticks that a hold may still last. A later end is none: the clock has gone round since.
pub const LONGEST_HOLD: u32 = 1 << 14;

/// Whether a hold that ends at `until` still lasts.
#[inline(always)]
pub const fn holds(now: u32, until: u32) -> bool {
    until.wrapping_sub(now).wrapping_sub(1) < LONGEST_HOLD
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::flow::PROBE_NONE;

    #[test]
    fn a_hold_lasts_until_its_tick_and_does_not_come_back_when_the_clock_has_gone_round() {
        for until in [10_000, 5, u32::MAX] {
            let at = |before: u32| holds(until.wrapping_sub(before), until);
            assert!(at(10_000) && at(1));
            for after in [0, 1, 1 << 14, 1 << 31, u32::MAX - LONGEST_HOLD] {
                assert!(!holds(until.wrapping_add(after), until), "{after}");
            }
        }
    }

    const TIMES: Times = Times { slack: 200, overdue: 1000, early: 1500 };

    #[test]
    fn an_entry_is_used_until_its_deadline_also_where_the_clock_wraps() {
        for base in [0, 5_000, u32::MAX - 10] {
            let deadline = base.wrapping_add(2_000);
            assert_eq!(due(deadline.wrapping_sub(1), deadline, PROBE_NONE, true, TIMES), Due::Fresh);
            assert_eq!(due(deadline, deadline, PROBE_NONE, true, TIMES), Due::Probe);
        }
    }

    #[test]
    fn an_aggregate_is_the_probe_only_when_no_other_packet_came_within_the_slack() {
        assert_eq!(due(100, 0, PROBE_NONE, false, TIMES), Due::Fresh);
        assert_eq!(due(199, 0, PROBE_NONE, false, TIMES), Due::Fresh);
        assert_eq!(due(200, 0, PROBE_NONE, false, TIMES), Due::Probe);
        assert_eq!(due(100, 0, PROBE_NONE, true, TIMES), Due::Probe);
    }

    #[test]
    fn a_probe_that_does_not_come_out_kills_the_entry_however_cheap_the_packet() {
        for cheap in [true, false] {
            assert_eq!(due(199, 200, PROBE_SENT, cheap, TIMES), Due::Fresh);
            assert_eq!(due(200, 200, PROBE_SENT, cheap, TIMES), Due::Dead);
            assert_eq!(due(5_000, 200, PROBE_SENT, cheap, TIMES), Due::Dead);
        }
    }

    #[test]
    fn an_entry_left_alone_is_not_trusted_when_the_flow_comes_back() {
        assert_eq!(due(1_000, 0, PROBE_NONE, true, TIMES), Due::Probe);
        assert_eq!(due(1_001, 0, PROBE_NONE, true, TIMES), Due::Overdue);
    }

    #[test]
    fn an_entry_that_was_never_confirmed_is_due_early_and_trusted_as_long_as_others() {
        let refresh = 2_000;
        assert_eq!(early(refresh), TIMES.early);
        for learned in [7_000_u32, u32::MAX - 400] {
            let first = learned.wrapping_add(refresh - early(refresh));
            let at = |age: u32| due(learned.wrapping_add(age), first, PROBE_FIRST, true, TIMES);
            assert_eq!(
                (at(499), at(500), at(3_000), at(3_001)),
                (Due::Fresh, Due::Probe, Due::Probe, Due::Overdue)
            );
            let usual = learned.wrapping_add(refresh);
            let at = |age: u32| due(learned.wrapping_add(age), usual, PROBE_NONE, true, TIMES);
            assert_eq!((at(1_999), at(3_000), at(3_001)), (Due::Fresh, Due::Probe, Due::Overdue));
        }
        assert_eq!(early(0), 0);
    }
}
