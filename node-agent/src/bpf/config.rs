//! The flow cache's settings, from the agent's units to the programs' and back.

use std::time::Duration;

use ebpf::{
    flow::{GATE_FORWARD, GATE_HOLD, GATE_LEARN, GATE_TCP, ticks},
    maps::Config,
};

use crate::fast_path::{Gate, Timing, Underlay};

/// An entry that nobody used for this long after its deadline is learned anew.
const OVERDUE: u32 = ticks(1_000);
/// A packet is inside OVS no longer than this, or teaches nothing.
const NOTE_AGE: u32 = ticks(250);
/// A flow that OVS changes is not noted again for this time.
const NOTE_BACKOFF: u32 = ticks(1_000);
/// Without a sign of life from the agent nothing is learned after this time.
const HEARTBEAT_LIMIT: u32 = ticks(5_000);
/// Longest jitter of a deadline, a power of two; a sixteenth of the refresh time if that is shorter.
const JITTER: u32 = 128;

fn in_ticks(time: Duration) -> u32 {
    ticks(u32::try_from(time.as_millis()).unwrap_or(u32::MAX))
}

/// `config` with this timing.
pub(super) fn timed(config: Config, timing: Timing) -> Config {
    let refresh = in_ticks(timing.refresh);
    let jitter = match refresh / 16 {
        0 => 0,
        part => 1 << part.ilog2(),
    };
    Config {
        refresh,
        jitter: JITTER.min(jitter),
        slack: in_ticks(timing.slack),
        grace: in_ticks(timing.grace),
        overdue: OVERDUE,
        note_age: NOTE_AGE,
        note_backoff: NOTE_BACKOFF,
        heartbeat_limit: HEARTBEAT_LIMIT,
        budget: timing.budget,
        ..config
    }
}

/// `config` with this tunnel endpoint.
pub(super) fn with_underlay(config: Config, underlay: Option<Underlay>) -> Config {
    match underlay {
        Some(Underlay { address, mac, mtu }) => Config { local: address.octets(), mac: mac.0, mtu, ..config },
        None => Config { local: [0; 4], mac: [0; 6], mtu: 0, ..config },
    }
}

/// The gate as bits.
pub(super) fn gate_bits(gate: Gate) -> u32 {
    let bit = |on, bit| if on { bit } else { 0 };
    bit(gate.forward, GATE_FORWARD)
        | bit(gate.learn, GATE_LEARN)
        | bit(gate.tcp, GATE_TCP)
        | bit(gate.hold, GATE_HOLD)
}

/// The bits as a gate.
pub(super) fn gate_of(bits: u32) -> Gate {
    Gate {
        forward: bits & GATE_FORWARD != 0,
        learn: bits & GATE_LEARN != 0,
        tcp: bits & GATE_TCP != 0,
        hold: bits & GATE_HOLD != 0,
    }
}

/// The epoch after this one. 0 is none: entries of maps that were never written have it.
pub(super) const fn next_epoch(epoch: u32) -> u32 {
    match epoch.wrapping_add(1) {
        0 => 1,
        next => next,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_stale_no_later_than_refresh_slack_and_grace() {
        let config = timed(Config::default(), Timing::default());
        // Each was rounded up.
        let bound = config.refresh + config.slack + config.grace;
        assert!(bound <= ticks(2_400) + 3, "{config:?}");
        // The jitter makes deadlines earlier, never later.
        assert!(config.jitter.is_power_of_two() && config.jitter < config.refresh, "{config:?}");
    }

    #[test]
    fn refresh_0_sends_every_packet_through_ovs() {
        let timing = Timing { refresh: Duration::ZERO, ..Timing::default() };
        let config = timed(Config::default(), timing);
        assert_eq!((config.refresh, config.jitter), (0, 0));
    }

    #[test]
    fn every_gate_has_bits_of_its_own() {
        for bits in 0..16 {
            assert_eq!(gate_bits(gate_of(bits)), bits);
        }
    }

    #[test]
    fn the_epoch_is_never_0() {
        assert_eq!(next_epoch(1), 2);
        assert_eq!(next_epoch(u32::MAX), 1);
    }
}
