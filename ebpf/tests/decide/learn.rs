//! Laws of [`ebpf::decide::learn`]: what is learned from a packet that comes out of OVS.

use ebpf::{
    Reason,
    decide::{
        Terms,
        forward::{Decision, Facts, decide},
        learn::{
            Compared, Learned, compare_egress, compare_ingress, confirm_egress, confirm_ingress, deadline,
            fill_egress, ingress_entry, is_agent_alive, judge, spend,
        },
        pending,
    },
    layout::{
        flow::{EgressFlow, GATE_LEARN, HEADER_WORDS, IngressFlow, NOTE_LIVE, Note, Tuple4},
        maps::{Budget, Config},
    },
    packet::{Flow, TCP, UDP},
};
use proptest::prelude::*;

use super::any::{config, few};

fn terms(config: &Config, epoch: u32, now: u32) -> Terms<'_> {
    Terms { config, gate: GATE_LEARN, epoch, now }
}

fn flow(ttl: u8, tos: u8) -> Flow<Tuple4> {
    Flow { tuple: Tuple4::default(), ttl, tos, flags: 0, length: 100, headers: 28 }
}

prop_compose! {
    /// A tunnel's header with two words that may differ, one of them that with the source port.
    fn egress()(
        epoch in few(), kind in 1_u8..3, (target, ttl_step) in (few(), 0_u8..2),
        macs in prop::array::uniform3(1_u32..3), dscp in prop_oneof![Just(0_u8), Just(8)],
        (port, word, at) in (0_u64..2, prop_oneof![3 => Just(0_u64), 1 => Just(1)], 0..HEADER_WORDS),
        (deadline, probing, active) in (any::<u32>(), 0_u8..2, 0_u8..2),
    ) -> EgressFlow {
        let mut header = [0; HEADER_WORDS];
        header[4] = port << 16;
        header[at] |= word;
        EgressFlow {
            epoch, kind, target, ttl_step, macs, dscp, header, deadline, probing, active, ..EgressFlow::default()
        }
    }
}

prop_compose! {
    fn ingress()(
        epoch in few(), (target, ttl_step) in (few(), 0_u8..2), dscp in prop_oneof![Just(0_u8), Just(8)],
        (macs, arrived) in (prop::array::uniform3(1_u32..3), prop::array::uniform3(1_u32..3)),
        (deadline, probing, active) in (any::<u32>(), 0_u8..2, 0_u8..2),
    ) -> IngressFlow {
        IngressFlow {
            epoch, target, ttl_step, dscp, macs, arrived, deadline, probing, active, ..IngressFlow::default()
        }
    }
}

/// The header without the outer UDP source port, bytes 34 and 35.
fn without_port(header: [u64; HEADER_WORDS]) -> Vec<u8> {
    let mut bytes: Vec<u8> = header.iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes[34..36].fill(0);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// In one epoch another answer to the same question is a divergence, and nothing else is.
    #[test]
    fn another_answer_in_the_same_epoch_is_a_divergence(entry in egress(), change in 0..7, answer in egress()) {
        // Half of them differ in one thing at most.
        let answer = match change {
            0 => EgressFlow { epoch: answer.epoch, ..entry },
            1 => EgressFlow { target: answer.target, ..entry },
            2 => EgressFlow { header: answer.header, ..entry },
            3 => EgressFlow { ttl_step: answer.ttl_step, kind: answer.kind, ..entry },
            4 => EgressFlow { macs: answer.macs, dscp: answer.dscp, ..entry },
            _ => answer,
        };
        let same_answer = entry.kind == answer.kind
            && entry.target == answer.target
            && entry.ttl_step == answer.ttl_step
            && without_port(entry.header) == without_port(answer.header);
        let same_question = entry.macs == answer.macs && entry.dscp == answer.dscp;
        let expected = match (entry.epoch == answer.epoch, same_answer, same_question) {
            (true, true, _) => Compared::Same,
            (true, false, true) => Compared::Other,
            _ => Compared::New,
        };
        prop_assert_eq!(compare_egress(&entry, &answer, true), expected);
        // Only the epoch counts where answers are not compared.
        let unaudited = if entry.epoch == answer.epoch { Compared::Same } else { Compared::New };
        prop_assert_eq!(compare_egress(&entry, &answer, false), unaudited);
    }

    #[test]
    fn from_the_tunnel_too(entry in ingress(), change in 0..6, answer in ingress()) {
        let answer = match change {
            0 => IngressFlow { epoch: answer.epoch, ..entry },
            1 => IngressFlow { target: answer.target, ttl_step: answer.ttl_step, ..entry },
            2 => IngressFlow { macs: answer.macs, ..entry },
            3 => IngressFlow { arrived: answer.arrived, dscp: answer.dscp, ..entry },
            _ => answer,
        };
        let same_answer =
            entry.target == answer.target && entry.ttl_step == answer.ttl_step && entry.macs == answer.macs;
        let (same_macs, same_dscp) = (entry.arrived == answer.arrived, entry.dscp == answer.dscp);
        let expected = match (entry.epoch == answer.epoch, same_answer && same_macs, same_macs && same_dscp) {
            (true, true, _) => Compared::Same,
            (true, false, true) => Compared::Other,
            _ => Compared::New,
        };
        prop_assert_eq!(compare_ingress(&entry, &answer, true), expected);
    }

    /// What OVS confirms is the answer: the entry stays as it is, but for its time and the packets that it is for.
    #[test]
    fn an_answer_that_is_confirmed_gives_the_entry_time_and_nothing_else(entry in egress(), answer in egress()) {
        let mut header = entry.header;
        header[4] ^= answer.header[4] & 0xffff_0000;
        let EgressFlow { epoch, kind, target, ttl_step, .. } = entry;
        let answer = EgressFlow { epoch, kind, target, ttl_step, header, ..answer };
        prop_assert_eq!(compare_egress(&entry, &answer, true), Compared::Same);
        let mut confirmed = entry;
        let moved = confirm_egress(&mut confirmed, &answer);
        prop_assert_eq!(moved, entry.header != answer.header);
        prop_assert_eq!((confirmed.deadline, confirmed.probing), (answer.deadline, 0));
        let EgressFlow { macs, dscp, header, deadline, .. } = answer;
        prop_assert_eq!(confirmed, EgressFlow { macs, dscp, header, deadline, probing: 0, ..entry });
    }

    #[test]
    fn also_from_the_tunnel(entry in ingress(), answer in ingress()) {
        let IngressFlow { epoch, target, ttl_step, macs, arrived, .. } = entry;
        let answer = IngressFlow { epoch, target, ttl_step, macs, arrived, ..answer };
        prop_assert_eq!(compare_ingress(&entry, &answer, true), Compared::Same);
        let mut confirmed = entry;
        confirm_ingress(&mut confirmed, &answer);
        let IngressFlow { dscp, deadline, .. } = answer;
        prop_assert_eq!(confirmed, IngressFlow { dscp, deadline, probing: 0, ..entry });
    }

    /// The note decides: live, of this epoch, young, and of a packet that OVS left as it was but for its TTL.
    #[test]
    fn only_a_young_live_note_of_this_epoch_teaches(
        (note_epoch, epoch) in (few(), few()), age in 0_u32..500, now in any::<u32>(),
        live in 0_u8..4, (note_tos, tos) in (0_u8..3, 0_u8..3), (note_ttl, ttl) in (0_u8..4, 0_u8..4),
        learning in prop::bool::weighted(0.8),
    ) {
        let config = config();
        let note = Note {
            epoch: note_epoch, when: now.wrapping_sub(age), live, tos: note_tos, ttl: note_ttl, ..Note::default()
        };
        let gate = if learning { GATE_LEARN } else { 0 };
        let judged = judge(&note, tos, ttl, &Terms { gate, ..terms(&config, epoch, now) });
        let right = live == NOTE_LIVE && note_tos == tos && ttl <= note_ttl;
        let expected = if !right {
            Err(Reason::NoteMissing)
        } else if !learning {
            Err(Reason::LearningOff)
        } else if note_epoch != epoch {
            Err(Reason::NoteOldEpoch)
        } else if age > config.note_age {
            Err(Reason::NoteExpired)
        } else {
            Ok(())
        };
        prop_assert_eq!(judged, expected);
    }

    #[test]
    fn a_deadline_is_after_the_refresh_time_or_a_little_earlier(now in any::<u32>(), random in any::<u32>()) {
        let config = config();
        let after = deadline(&terms(&config, 1, now), random).wrapping_sub(now);
        prop_assert!(after <= config.refresh && after > config.refresh - config.jitter);
        let always = Config { refresh: 0, jitter: 0, ..config };
        prop_assert_eq!(deadline(&terms(&always, 1, now), random), now);
    }

    #[test]
    fn no_window_has_more_new_entries_than_the_budget(
        begin in any::<u32>(), steps in prop::collection::vec(0_u32..6, 1..200),
    ) {
        let config = config();
        let (mut budget, mut now) = (Budget::default(), begin);
        let mut windows = std::collections::BTreeMap::new();
        for step in steps {
            now = now.wrapping_add(step);
            if spend(&mut budget, &terms(&config, 1, now)).is_ok() {
                *windows.entry(now >> config.budget_shift).or_insert(0) += 1;
            }
        }
        // The clock's window 0 is the one of an untouched budget, and others get what they are owed.
        prop_assert!(windows.values().all(|used| *used <= config.budget), "{:?}", windows);
        prop_assert!(!windows.is_empty());
    }

    #[test]
    fn nothing_is_added_when_the_agent_was_silent_for_too_long(now in any::<u32>(), silence in -2_i32..2_000) {
        let config = config();
        let heartbeat = now.wrapping_sub(silence.cast_unsigned());
        let alive = is_agent_alive(heartbeat, &terms(&config, 1, now)).is_ok();
        prop_assert_eq!(alive, silence <= config.heartbeat_limit.cast_signed());
    }

    /// What is learned from a packet carries the next one like it, and not in another epoch.
    #[test]
    fn a_new_entry_carries_the_packet_that_taught_it(
        now in any::<u32>(), after in 0_u32..400, epoch in few(), random in any::<u32>(),
        macs in any::<[u32; 3]>(), (tos, ttl, step) in (any::<u8>(), 10_u8.., 0_u8..3), tcp in any::<bool>(),
    ) {
        let config = config();
        let learned = terms(&config, epoch, now);
        let note = pending::entered(&flow(ttl, tos), 3, macs, [0; 3], NOTE_LIVE, &learned);
        let out = flow(ttl - step, tos);
        prop_assert_eq!(judge(&note, out.tos, out.ttl, &learned), Ok(()));
        let protocol = if tcp { TCP } else { UDP };
        let mut entry = EgressFlow { probing: 1, packets: 9, ..EgressFlow::default() };
        fill_egress(&mut entry, &note, &out, protocol, &learned, deadline(&learned, random));
        prop_assert_eq!((entry.packets, entry.ttl_step), (0, step));
        let mut arrived =
            ingress_entry(&note, &out, protocol, (3, [1, 2, 3]), 5, &learned, deadline(&learned, random));
        let facts = Facts { macs, dscp: tos & 0xfc, ttl, aggregate: false };
        let later = terms(&config, epoch, now.wrapping_add(after));
        let other = terms(&config, epoch + 1, now);
        let decision = decide(Some(&mut entry), &facts, &later, |_| Ok(()), |_| false);
        prop_assert_eq!(matches!(decision, Decision::Forward(..)), !tcp, "{:?}", decision);
        let decision = decide(Some(&mut arrived), &facts, &later, |_| Ok(()), |_| true);
        prop_assert!(matches!(decision, Decision::Forward(..)), "{:?}", decision);
        let decision = decide(Some(&mut arrived), &facts, &other, |_| Ok(()), |_| true);
        prop_assert_eq!(decision, Decision::Slow(Reason::Stale));
    }
}

#[test]
fn what_was_learned_is_counted_by_its_own_reason() {
    use Learned::*;
    assert_eq!(
        [Nothing, Entry, Confirmed, Diverged].map(Learned::counter),
        [None, Some(Reason::Learned), Some(Reason::Refreshed), Some(Reason::Diverged)]
    );
}
