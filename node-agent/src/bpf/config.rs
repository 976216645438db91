//! Settings of the flow cache: conversion between the agent's and the programs' units.

use std::time::Duration;

use api::MacAddr;
use ebpf::{
    decide::age::holds,
    layout::{
        flow::{GATE_FORWARD, GATE_HOLD, GATE_LEARN, GATE_MORE_REMOTES, GATE_SERVICES, GATE_TCP, OVERHEAD},
        maps::{Config, SINGLE_NOTES},
    },
};

use super::clock::Tick;
use crate::flow_cache::{Gate, HOLD, Timing, Underlay};

/// Time after its deadline for which an unused entry is kept.
const OVERDUE: Duration = Duration::from_secs(1);
/// Maximum age of an in-flight record: how long a packet may be inside OVS and still create an entry.
const NOTE_AGE: Duration = Duration::from_millis(250);
/// How long the slot of an in-flight record is not used again.
const NOTE_REUSE: Duration = Duration::from_secs(1);
/// UDP is learned when two packets of a flow come within this time. An entry that is used less often would be due for a refresh, or overdue, most of the
/// time.
pub(super) const AGAIN: Duration = Duration::from_secs(1);
/// Learning stops after this time without a heartbeat.
const HEARTBEAT_LIMIT: Duration = Duration::from_secs(5);
/// Maximum jitter of a deadline; a sixteenth of the refresh interval if shorter.
const JITTER: Duration = Duration::from_millis(128);
/// Window of the rate limit for new entries.
const BUDGET_WINDOW: Duration = Duration::from_millis(128);

/// `config` with `timing`, converted to ticks of length `tick`.
pub(super) fn timed(config: Config, timing: Timing, tick: Tick) -> Config {
    let jitter = tick.count(JITTER.min(timing.refresh / 16));
    Config {
        refresh: tick.count(timing.refresh),
        jitter: jitter.checked_ilog2().map_or(0, |power| 1 << power),
        slack: tick.count(timing.slack),
        grace: tick.count(timing.grace),
        overdue: tick.count(OVERDUE),
        note_age: tick.count(NOTE_AGE),
        note_reuse: tick.count(NOTE_REUSE),
        heartbeat_limit: tick.count(HEARTBEAT_LIMIT),
        budget: timing.budget,
        budget_shift: tick.count(BUDGET_WINDOW).max(1).ilog2(),
        ..config
    }
}

/// Part of a CPU's records that packets of one pod may take.
const NOTE_SHARE: u32 = 4;
/// Fewest in-flight records that packets of a pod may take on a CPU in one window: a new connection takes a few.
const FEWEST_NOTES: u32 = 16;

/// In-flight records that packets of one pod may take on one CPU in a window of the rate limit, of those that are used again after
/// [`NOTE_REUSE`]. A quarter of them is for refreshes.
pub(super) fn note_budget(cpu_shift: u32, tick: Tick) -> u32 {
    let window = 1 << tick.count(BUDGET_WINDOW).max(1).ilog2();
    let share = u64::from(SINGLE_NOTES >> cpu_shift) * 3 / 4;
    let in_window = share * window / u64::from(tick.count(NOTE_REUSE).max(1)) / u64::from(NOTE_SHARE);
    u32::try_from(in_window).unwrap_or(u32::MAX).max(FEWEST_NOTES)
}

/// A MAC address in words, as in an Ethernet header.
fn mac_words(MacAddr([a, b, c, d, e, f]): MacAddr) -> [u32; 2] {
    // Two bytes read as a number, with nothing beside them.
    [u32::from_ne_bytes([a, b, c, d]), u16::from_ne_bytes([e, f]).into()]
}

/// `config` with tunnel endpoint `underlay`.
pub(super) fn with_underlay(config: Config, underlay: Option<Underlay>) -> Config {
    match underlay {
        Some(Underlay { address, mac, mtu }) => Config {
            local: address.octets(),
            mac: mac_words(mac),
            tunnel_mtu: mtu.saturating_sub(OVERHEAD).min(config.pod_mtu),
            ..config
        },
        None => Config { local: [0; 4], mac: [0; 2], tunnel_mtu: 0, ..config },
    }
}

/// `config` with mode bits `gate`. The end of the grace period is written when it starts and never extended, not even by a restarted
/// agent.
pub(super) fn gated(config: Config, gate: Gate, now: u32, tick: Tick) -> Config {
    let begins = gate.hold && config.gate & GATE_HOLD == 0;
    let hold_until = if begins { now.wrapping_add(tick.count(HOLD)) } else { config.hold_until };
    let kept = config.gate & (GATE_SERVICES | GATE_MORE_REMOTES);
    Config { gate: gate_bits(gate) | kept, hold_until, ..config }
}

/// `config` with the mode bit that says whether some service is kept off the cache. It is no part of [`Gate`].
pub(super) fn with_services(config: Config, some: bool) -> Config {
    let gate = if some { config.gate | GATE_SERVICES } else { config.gate & !GATE_SERVICES };
    Config { gate, ..config }
}

/// `config` with the mode bit that says whether the map of remote endpoints lacks some. It is no part of [`Gate`].
pub(super) fn with_remotes(config: Config, complete: bool) -> Config {
    let gate = if complete { config.gate & !GATE_MORE_REMOTES } else { config.gate | GATE_MORE_REMOTES };
    Config { gate, ..config }
}

/// Remaining grace period; zero when there is none.
pub(super) fn hold_left(config: Config, now: u32, tick: Tick) -> Duration {
    if config.gate & GATE_HOLD == 0 || !holds(now, config.hold_until) {
        return Duration::ZERO;
    }
    let ticks = i64::from(config.hold_until.wrapping_sub(now));
    Duration::from_millis(u64::try_from(tick.milliseconds(ticks)).unwrap_or_default())
}

/// Encodes the mode bits.
fn gate_bits(gate: Gate) -> u32 {
    let bit = |on, bit| if on { bit } else { 0 };
    bit(gate.forward, GATE_FORWARD)
        | bit(gate.learn, GATE_LEARN)
        | bit(gate.tcp, GATE_TCP)
        | bit(gate.hold, GATE_HOLD)
}

/// Decodes the mode bits.
pub(super) fn gate_of(bits: u32) -> Gate {
    Gate {
        forward: bits & GATE_FORWARD != 0,
        learn: bits & GATE_LEARN != 0,
        tcp: bits & GATE_TCP != 0,
        hold: bits & GATE_HOLD != 0,
    }
}

/// Next epoch. Skips 0, the epoch of map entries that were never written.
pub(super) const fn next_epoch(epoch: u32) -> u32 {
    match epoch.wrapping_add(1) {
        0 => 1,
        next => next,
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// Ticks of all lengths that kernels are built with, in nanoseconds.
    fn kernels() -> impl Iterator<Item = Tick> {
        [1_000_000, 3_333_333, 4_000_000, 10_000_000].into_iter().map(|length| Tick::new(length).unwrap())
    }

    #[test]
    fn entries_are_stale_no_later_than_refresh_slack_and_grace() {
        for tick in kernels() {
            let config = timed(Config::default(), Timing::default(), tick);
            // Each was rounded up.
            let bound = config.refresh + config.slack + config.grace;
            assert!(bound <= tick.count(Duration::from_millis(2_400)) + 3, "{config:?}");
            // The jitter makes deadlines earlier, never later.
            assert!(config.jitter.is_power_of_two() && config.jitter < config.refresh, "{config:?}");
        }
    }

    #[test]
    fn the_budget_is_for_about_an_eighth_of_a_second_on_every_kernel() {
        for tick in kernels() {
            let config = timed(Config::default(), Timing::default(), tick);
            let window = tick.milliseconds(1 << config.budget_shift);
            assert!((64..=128).contains(&window), "{tick:?}: {window} ms");
        }
    }

    #[test]
    fn no_pod_takes_more_than_a_quarter_of_the_records_and_each_has_some() {
        for tick in kernels() {
            for (shift, at_most) in [(0, 24_576 / 4), (1, 12_288 / 4), (6, 384 / 4)] {
                // Windows in the time after which a record's slot is used again.
                let windows = tick.count(NOTE_REUSE) >> tick.count(BUDGET_WINDOW).ilog2();
                let taken = note_budget(shift, tick) * windows;
                assert!(taken <= at_most.max(FEWEST_NOTES * windows), "{tick:?}, {shift}: {taken}");
                assert!(note_budget(shift, tick) >= FEWEST_NOTES);
            }
        }
    }

    #[test]
    fn refresh_0_sends_every_packet_through_ovs() {
        let timing = Timing { refresh: Duration::ZERO, ..Timing::default() };
        for tick in kernels() {
            let config = timed(Config::default(), timing, tick);
            assert_eq!((config.refresh, config.jitter), (0, 0));
        }
    }

    #[test]
    fn the_tunnel_takes_what_the_uplink_has_room_for_and_no_more_than_pods_may_send() {
        let underlay = |mtu| Underlay { address: Ipv4Addr::LOCALHOST, mac: MacAddr([2; 6]), mtu };
        let pods = Config { pod_mtu: 1_400, ..Config::default() };
        for (mtu, longest) in [(9_000, 1_400), (1_458, 1_400), (1_457, 1_399), (57, 0)] {
            assert_eq!(with_underlay(pods, Some(underlay(mtu))).tunnel_mtu, longest, "MTU {mtu}");
        }
        assert_eq!(with_underlay(pods, None).tunnel_mtu, 0);
    }

    #[test]
    fn every_gate_has_bits_of_its_own() {
        for bits in 0..16 {
            assert_eq!(gate_bits(gate_of(bits)), bits);
        }
    }

    #[test]
    fn the_gate_and_the_services_leave_each_other_alone() {
        let open = Gate { forward: true, learn: true, tcp: true, hold: false };
        for tick in kernels() {
            let config = with_services(gated(Config::default(), open, 1, tick), true);
            assert_eq!((gate_of(config.gate), config.gate & GATE_SERVICES), (open, GATE_SERVICES));
            let shut = gated(config, Gate::default(), 2, tick);
            assert_eq!(shut.gate, GATE_SERVICES);
            assert_eq!(with_services(shut, false).gate, 0);
        }
    }

    #[test]
    fn the_end_of_a_hold_is_written_once_and_no_agent_puts_it_off() {
        let open = Gate { forward: true, learn: true, tcp: true, hold: false };
        let hold = Gate { learn: false, hold: true, ..open };
        for tick in kernels() {
            let start = u32::MAX - 5;
            let at = |time| start.wrapping_add(tick.count(time));
            let left = |config, time| hold_left(config, at(time), tick);
            let config = gated(Config::default(), open, start, tick);
            assert_eq!(left(config, Duration::ZERO), Duration::ZERO);
            let mut config = gated(config, hold, start, tick);
            let until = config.hold_until;
            assert!(holds(start, until) && left(config, Duration::ZERO) > HOLD - Duration::from_millis(20));
            // The same agent, or restarted ones.
            for seconds in [1, 5, 9] {
                config =
                    gated(config, Gate { tcp: seconds == 5, ..hold }, at(Duration::from_secs(seconds)), tick);
                assert_eq!(config.hold_until, until);
                let rest = HOLD.saturating_sub(Duration::from_secs(seconds));
                assert!(left(config, Duration::from_secs(seconds)) <= rest + Duration::from_millis(20));
            }
            assert_eq!(left(config, HOLD + Duration::from_millis(20)), Duration::ZERO);
            // Changes of OVS were seen in between: this is another hold.
            let opened = gated(config, open, at(HOLD), tick);
            assert_eq!(
                gated(opened, hold, at(HOLD), tick).hold_until,
                at(HOLD).wrapping_add(tick.count(HOLD))
            );
        }
    }

    #[test]
    fn the_epoch_is_never_0() {
        assert_eq!(next_epoch(1), 2);
        assert_eq!(next_epoch(u32::MAX), 1);
    }
}
