//! Laws of [`ebpf::decide::forward`]: when an entry carries a packet.

use ebpf::decide::tuple::Tuple as _;
use ebpf::{
    Reason,
    decide::age::early,
    decide::forward::{Decision, decide, fits, forgets, is_noted, is_open, is_urgent},
    layout::flow::{
        AGREEING, Entry, GATE_HOLD, PROBE_FIRST, PROBE_NONE, PROBE_SENT, SIDE_OUTSIDE, SIDE_POD, SIDE_TUNNEL,
        STATE_ACTIVE, STATE_CLOSING, STATE_LIKELY, STATE_WAITING, Tuple4,
    },
};
use proptest::{prelude::*, test_runner::TestCaseResult};

use super::any::{Case, case, config, few, valid};

/// The reason why the packet goes slow, if it does, and the entry afterwards.
fn decided(case: &Case) -> (Option<Reason>, Entry<Tuple4>) {
    let mut entry = case.entry;
    let receiver = |_: &Entry<Tuple4>| if case.receives { Ok(7) } else { Err(Reason::EndpointSlow) };
    let reason = match decide(
        Some(&mut entry),
        &case.facts,
        &case.terms(),
        receiver,
        |_| case.is_current,
        |_| case.is_open,
    ) {
        Decision::Forward(_, slot) => {
            assert_eq!(slot, 7);
            None
        }
        Decision::KeptOff(_) => Some(Reason::ServiceSlow),
        Decision::Slow(reason) => Some(reason),
    };
    (reason, entry)
}

/// Holds if the packet is not forwarded.
fn never(case: &Case) -> TestCaseResult {
    let (reason, _) = decided(case);
    prop_assert!(reason.is_some(), "forwarded");
    Ok(())
}

#[test]
fn without_an_entry_nothing_is_forwarded() {
    let case = Case { receives: true, is_open: true, ..fresh() };
    let none: Option<&mut Entry<Tuple4>> = None;
    let decision = decide(none, &case.facts, &case.terms(), |_| Ok(()), |_| true, |_| true);
    assert_eq!(decision, Decision::Slow(Reason::Miss));
}

/// A case in which the packet is forwarded.
fn fresh() -> Case {
    let entry =
        Entry { epoch: 1, checked: 4, deadline: 100, state: STATE_ACTIVE, ttl_step: 1, ..Entry::default() };
    let facts =
        ebpf::decide::forward::Facts { way: [0; 3], macs: [0; 3], dscp: 0, ttl: 64, aggregate: false };
    Case {
        entry,
        facts,
        config: config(),
        gate: 1,
        epoch: 1,
        change: 4,
        now: 99,
        receives: true,
        is_open: false,
        is_current: true,
    }
}

#[test]
fn a_valid_entry_carries_a_packet_until_its_deadline() {
    assert_eq!(decided(&fresh()).0, None);
    assert_eq!(decided(&Case { now: 100, ..fresh() }).0, Some(Reason::Probe));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn an_entry_of_another_epoch_is_never_used(case in valid(), other in few()) {
        let case = Case { epoch: case.epoch + other, ..case };
        let (reason, entry) = decided(&case);
        prop_assert_eq!(reason, Some(Reason::Stale));
        prop_assert_eq!(entry, case.entry);
    }

    #[test]
    fn an_entry_is_looked_at_once_after_a_change_and_not_used_if_it_is_concerned(
        case in valid(), later in few(), is_current in any::<bool>(),
    ) {
        let mut case = Case { is_current, ..case };
        case.entry.checked = case.change;
        let used = decided(&case).0;
        prop_assert_ne!(used, Some(Reason::ScopeChanged), "nothing has changed");
        case.change += later;
        let (reason, entry) = decided(&case);
        if is_current {
            prop_assert_eq!(reason, used);
            prop_assert_eq!(entry.checked, case.change);
        } else {
            prop_assert_eq!(reason, Some(Reason::ScopeChanged));
            prop_assert_eq!(entry, case.entry);
        }
    }

    #[test]
    fn an_expired_entry_is_never_used(case in valid()) {
        let case = case.without_hold();
        let late = case.late();
        let expired = if case.entry.probing == PROBE_SENT {
            late >= 0
        } else {
            // An aggregate is costly to send through OVS, and waits for a single packet to be the one.
            late >= if case.facts.aggregate { case.config.slack.cast_signed() } else { 0 }
        };
        prop_assert_eq!(decided(&case).0.is_some(), expired);
    }

    #[test]
    fn an_entry_is_used_only_for_packets_like_the_one_that_taught_it(
        case in valid(), word in 0_usize..7, bit in 0..32,
    ) {
        let mut case = case;
        match word {
            0..3 => case.facts.macs[word] ^= 1_u32 << bit,
            3..6 => case.facts.way[word - 3] ^= 1_u32 << bit,
            _ => case.facts.dscp ^= 4_u8 << (bit % 6),
        }
        never(&case)?;
    }

    #[test]
    fn nothing_goes_to_a_receiver_that_takes_no_part(case in valid()) {
        let case = Case { receives: false, ..case };
        prop_assert_eq!(decided(&case).0, Some(Reason::EndpointSlow));
    }

    #[test]
    fn tcp_waits_for_both_directions(case in valid(), is_open in any::<bool>()) {
        let mut case = Case { is_open, ..case };
        case.entry.state = STATE_WAITING;
        let (reason, entry) = decided(&case);
        prop_assert_eq!(reason == Some(Reason::Waiting), !is_open);
        prop_assert_eq!(entry.state == STATE_ACTIVE, is_open);
    }

    #[test]
    fn a_packet_whose_ttl_ends_on_the_way_is_for_ovs(case in valid(), ttl in 0_u8..8) {
        let mut case = case;
        case.facts.ttl = ttl;
        let left = ttl.saturating_sub(case.entry.ttl_step);
        prop_assert_eq!(decided(&case).0 == Some(Reason::LowTtl), left <= 1);
    }

    #[test]
    fn a_refresh_is_asked_when_due(case in valid(), is_first in any::<bool>()) {
        let mut case = case.without_hold();
        case.entry.probing = if is_first { PROBE_FIRST } else { PROBE_NONE };
        case.facts.aggregate = false;
        let trusted = case.config.overdue + if is_first { early(case.config.refresh) } else { 0 };
        let due = (0..=trusted.cast_signed()).contains(&case.late());
        let (reason, entry) = decided(&case);
        prop_assert_eq!(reason == Some(Reason::Probe), due);
        if due {
            prop_assert_eq!((entry.probing, entry.deadline), (PROBE_SENT, case.now.wrapping_add(case.config.grace)));
            prop_assert!(is_urgent(Reason::Probe));
        }
    }

    #[test]
    fn while_ovs_has_the_refresh_packet_others_are_forwarded_until_the_grace_is_over(
        case in valid(), late in 0_u32..2_500, after in 0_u32..200, aggregate in any::<bool>(),
    ) {
        let mut case = case.without_hold();
        case.entry.probing = PROBE_NONE;
        case.entry.deadline = case.now.wrapping_sub(late);
        case.facts.aggregate = false;
        let (reason, entry) = decided(&case);
        prop_assert_eq!(reason, Some(Reason::Probe));
        let mut next = Case { entry, now: case.now.wrapping_add(after), ..case };
        next.facts.aggregate = aggregate;
        let expected = if after < next.config.grace { None } else { Some(Reason::Dead) };
        prop_assert_eq!(decided(&next).0, expected);
    }

    #[test]
    fn while_ovs_is_away_a_valid_entry_is_used_and_is_not_asked_about(case in valid(), left in 1_u32..16_384) {
        let mut case = Case { gate: case.gate | GATE_HOLD, ..case };
        case.config.hold_until = case.now.wrapping_add(left);
        let (reason, entry) = decided(&case);
        prop_assert_eq!(reason, None);
        prop_assert_eq!((entry.deadline, entry.probing), (case.entry.deadline, case.entry.probing));
    }

    #[test]
    fn a_hold_that_is_over_keeps_nothing_in_use(case in valid(), ago in 0_u32..100_000) {
        let mut case = Case { gate: case.gate | GATE_HOLD, ..case };
        case.config.hold_until = case.now.wrapping_sub(ago);
        prop_assert_eq!(decided(&case), decided(&case.clone().without_hold()));
    }

    /// What a decision writes is that the entry is active and was found current, and that a refresh packet is on its way.
    #[test]
    fn a_decision_leaves_the_answer_alone(case in case()) {
        let (reason, mut entry) = decided(&case);
        if reason == Some(Reason::Probe) {
            entry.deadline = case.entry.deadline;
            entry.probing = case.entry.probing;
        }
        if entry.state != case.entry.state {
            prop_assert!(case.is_open && (case.entry.state, entry.state) == (STATE_WAITING, STATE_ACTIVE));
            entry.state = STATE_WAITING;
        }
        if entry.checked != case.entry.checked {
            prop_assert!(case.is_current && entry.checked == case.change);
            entry.checked = case.entry.checked;
        }
        prop_assert_eq!(entry, case.entry);
    }

    #[test]
    fn an_entry_that_is_likely_only_carries_nothing_whatever_else_is_so(case in valid(), agreed in 0..AGREEING) {
        let mut case = case;
        case.entry.state = STATE_LIKELY + agreed;
        let (reason, entry) = decided(&case);
        prop_assert_eq!(reason, Some(Reason::Likely));
        prop_assert_eq!(entry, Entry { checked: entry.checked, ..case.entry });
    }

    /// Until the next SYN, with which both entries are removed.
    #[test]
    fn an_entry_that_is_closed_carries_nothing(case in valid(), broken in any::<bool>()) {
        let mut case = case;
        case.entry.state = STATE_CLOSING;
        if broken {
            case.entry.epoch = 0;
            prop_assert!(!is_open(&case.entry.partner(), Some(&case.entry), case.epoch, |_| true));
        }
        never(&case)?;
        prop_assert_eq!(decided(&case).0, Some(Reason::Closing));
    }

    /// Whatever there is of the other direction.
    #[test]
    fn a_connection_is_open_when_the_other_direction_came_out_in_this_epoch(
        epoch in few(), other in few(), state in 0_u8..3, (source, destination) in (few(), few()),
        is_current in any::<bool>(),
    ) {
        let key = Tuple4 { source: 1, destination: 2, side: SIDE_TUNNEL, ..Tuple4::default() };
        let after = Tuple4 { source, destination, side: SIDE_TUNNEL, ..Tuple4::default() };
        let partner = Entry { epoch: other, state, after, ..Entry::default() };
        let expected = is_current && other == epoch && after.reversed() == key;
        prop_assert_eq!(is_open(&key, Some(&partner), epoch, |_| is_current), expected);
        prop_assert!(!is_open(&key, None, epoch, |_| true));
    }

    #[test]
    fn what_is_forwarded_fits_the_interface(
        length in prop_oneof![0_u32..2_000, 65_400_u32..65_600], headers in 28_u32..80, gso in 0_u32..2_000) {
        let config = config();
        let segment = if gso == 0 { length } else { headers + gso };
        prop_assert_eq!(fits((SIDE_POD, 5), length, headers, gso, &config), segment <= config.pod_mtu);
        let outside = |target| fits((SIDE_OUTSIDE, target), length, headers, gso, &config);
        prop_assert_eq!(outside(config.uplink), segment <= config.uplink_mtu.into());
        prop_assert_eq!(outside(config.uplink + 1), segment <= config.pod_mtu, "a physical network");
        let fits = fits((SIDE_TUNNEL, config.uplink), length, headers, gso, &config);
        prop_assert_eq!(fits, segment <= config.tunnel_mtu && length + 58 <= 65_535);
    }
}

/// A packet is noted exactly where an entry that is made or confirmed by it could carry the next packet like this one.
#[test]
fn whether_a_packet_is_noted_follows_from_why_it_goes_slow() {
    use Reason::*;
    let teach = [
        Miss,
        Stale,
        ScopeChanged,
        OtherWay,
        MacMismatch,
        DscpMismatch,
        Waiting,
        Likely,
        Probe,
        Dead,
        Overdue,
    ];
    for reason in Reason::ALL {
        assert_eq!(is_noted(reason), teach.contains(&reason), "{reason:?}");
        assert_eq!(forgets(reason), matches!(reason, Dead | Overdue), "{reason:?}");
        assert_eq!(is_urgent(reason), reason == Probe, "{reason:?}");
    }
}
