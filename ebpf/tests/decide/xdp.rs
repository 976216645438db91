//! Laws of [`ebpf::decide::xdp`]: what the XDP program carries the TC programs would carry too, and nothing is decided twice.

use ebpf::{
    decide::{
        forward::{Decision, decide},
        xdp::{Ends, SHORTEST, carries, may_drop},
    },
    layout::flow::{
        Entry, GATE_FORWARD, GATE_HOLD, GATE_LEARN, GATE_MORE_REMOTES, GATE_TCP, SIDE_NODE, SIDE_OUTSIDE,
        SIDE_POD, SIDE_TUNNEL, STATE_ACTIVE, STATE_CLOSING, STATE_LIKELY, STATE_SLOW, STATE_WAITING, Tuple4,
    },
};
use proptest::prelude::*;

use super::any::{Case, case, config, valid};

const UPLINK: u32 = 7;
const ENDS: Ends = Ends { tunnel: false, length: 100, uplink: UPLINK };

fn leads_out(case: Case, side: u8, target: u32) -> Case {
    let after = Tuple4 { side, ..case.entry.after };
    Case { entry: Entry { target, after, ..case.entry }, ..case }
}

fn sent(case: &Case, ends: Ends) -> bool {
    carries(&case.entry, &case.facts, ends, &case.terms())
}

/// What the TC program makes of a packet whose scopes are not looked at, nor its other direction; and the entry afterwards.
fn by_tc(case: &Case) -> (bool, Entry<Tuple4>) {
    let mut entry = case.entry;
    let terms = case.terms();
    let decision = decide(Some(&mut entry), &case.facts, &terms, |_| Ok(()), |_| false, |_| false);
    let forwarded = matches!(decision, Decision::Forward(..));
    (forwarded, entry)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn what_it_carries_the_tc_program_would_carry_and_leave_the_entry_as_it_is(
        case in prop_oneof![case(), valid()], side in 0_u8..4, target in 6_u32..8, tunnel in any::<bool>(),
    ) {
        let mut case = leads_out(case, side, target);
        case.facts.aggregate = false;
        let (forwarded, after) = by_tc(&case);
        let out = match side {
            SIDE_TUNNEL => !tunnel,
            SIDE_OUTSIDE => true,
            _ => false,
        };
        let ends = Ends { tunnel, length: 200, uplink: UPLINK };
        prop_assert_eq!(sent(&case, ends), forwarded && out && target == UPLINK);
        if sent(&case, ends) {
            prop_assert_eq!(after, case.entry);
        }
    }
}

fn fresh() -> Case {
    let entry =
        Entry { epoch: 1, checked: 4, deadline: 100, state: STATE_ACTIVE, ttl_step: 1, ..Entry::default() };
    let facts =
        ebpf::decide::forward::Facts { way: [0; 3], macs: [0; 3], dscp: 0, ttl: 64, aggregate: false };
    let case = Case {
        entry,
        facts,
        config: config(),
        gate: GATE_FORWARD,
        epoch: 1,
        change: 4,
        now: 99,
        receives: true,
        is_open: false,
        is_current: true,
    };
    leads_out(case, SIDE_TUNNEL, UPLINK)
}

#[test]
fn a_refresh_that_is_due_is_left_to_the_tc_program_but_not_in_a_hold() {
    assert!(sent(&fresh(), ENDS));
    let due = Case { now: 100, ..fresh() };
    assert!(!sent(&due, ENDS));
    let mut hold = Case { gate: due.gate | GATE_HOLD, ..due };
    hold.config.hold_until = 101;
    assert!(sent(&hold, ENDS));
    hold.config.hold_until = 100;
    assert!(!sent(&hold, ENDS));
}

#[test]
fn only_what_leaves_by_the_uplink_is_sent_back() {
    for side in [SIDE_POD, SIDE_NODE] {
        assert!(!sent(&leads_out(fresh(), side, UPLINK), ENDS));
    }
    assert!(!sent(&leads_out(fresh(), SIDE_OUTSIDE, UPLINK + 1), ENDS));
    assert!(sent(&leads_out(fresh(), SIDE_OUTSIDE, UPLINK), ENDS));
    assert!(!sent(&fresh(), Ends { tunnel: true, ..ENDS }), "from a tunnel into a tunnel");
}

#[test]
fn every_state_but_active_and_every_change_is_left_to_the_tc_program() {
    for state in [STATE_WAITING, STATE_CLOSING, STATE_SLOW, STATE_LIKELY, STATE_LIKELY + 2] {
        let case = fresh();
        assert!(!sent(&Case { entry: Entry { state, ..case.entry }, ..case }, ENDS));
    }
    assert!(!sent(&Case { epoch: 2, ..fresh() }, ENDS));
    assert!(!sent(&Case { change: 6, ..fresh() }, ENDS), "the scopes have to be looked at");
    for ttl in [1, 2] {
        let mut case = fresh();
        case.facts.ttl = ttl;
        assert!(!sent(&case, ENDS));
    }
}

#[test]
fn a_frame_that_a_driver_would_have_to_fill_up_is_left_to_the_kernel() {
    for (tunnel, headers) in [(false, 0), (true, 58)] {
        let case = leads_out(fresh(), SIDE_OUTSIDE, UPLINK);
        let ends = |length| Ends { tunnel, length, uplink: UPLINK };
        assert!(sent(&case, ends(SHORTEST + headers)));
        assert!(!sent(&case, ends(SHORTEST + headers - 1)));
    }
    assert!(sent(&fresh(), Ends { length: 42, ..ENDS }), "in a tunnel it is longer");
}

#[test]
fn strangers_are_dropped_only_while_every_address_of_a_tunnel_is_known() {
    for gate in 0..64 {
        let known = gate & (GATE_FORWARD | GATE_HOLD | GATE_MORE_REMOTES) == GATE_FORWARD;
        assert_eq!(may_drop(gate, true), known, "{gate:#b}");
        assert!(!may_drop(gate, false));
    }
    assert!(may_drop(GATE_FORWARD | GATE_LEARN | GATE_TCP, true));
}
