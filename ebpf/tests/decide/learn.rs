//! Laws of [`ebpf::decide::learn`]: what is learned from a packet that comes out of OVS.

use ebpf::{
    Reason,
    decide::{
        Terms,
        forward::{Decision, Facts, decide},
        learn::{
            Compared, Learned, Out, Tie, compare, confirm, deadline, fill, is_agent_alive, judge, more_time,
            otherwise, repeats, soon, spend, template, template_sum,
        },
        note,
    },
    layout::{
        flow::{
            AGREEING, Entry, GATE_LEARN, GATE_SERVICES, GATE_TCP, HEADER_WORDS, KEPT_OFF, NOTE_LIVE,
            NOTE_SPENT, Note, PROBE_FIRST, PROBE_NONE, Print, SIDE_NODE, SIDE_OUTSIDE, SIDE_POD, SIDE_TUNNEL,
            STATE_ACTIVE, STATE_CLOSING, STATE_LIKELY, STATE_SLOW, STATE_WAITING, TRANSLATED, Tuple4, vlan,
        },
        maps::{Budget, Config},
        scope::CLOSED,
    },
    packet::{Flow, TCP, UDP, changed, fold},
};
use proptest::prelude::*;

use super::any::{config, few};

fn terms(config: &Config, epoch: u32, now: u32) -> Terms<'_> {
    Terms { config, gate: GATE_LEARN | GATE_TCP, epoch, change: 0, now }
}

fn flow(tuple: Tuple4, ttl: u8, tos: u8) -> Flow<Tuple4> {
    Flow { tuple, ttl, tos, flags: 0, length: 100, headers: 28, word: 0 }
}

/// A flow between two of a few addresses and ports.
fn side() -> impl Strategy<Value = u8> {
    prop::sample::select(vec![SIDE_POD, SIDE_TUNNEL, SIDE_OUTSIDE, SIDE_NODE])
}

fn tuple(side: u8, protocol: u8) -> impl Strategy<Value = Tuple4> {
    (0_u32..3, 0_u32..3, 0_u16..2, 0_u16..2).prop_map(
        move |(source, destination, source_port, destination_port)| Tuple4 {
            source,
            destination,
            source_port,
            destination_port,
            protocol,
            side,
            _pad: 0,
        },
    )
}

prop_compose! {
    /// A tunnel's header with two words that may differ, one of them that with the source port.
    fn entry()(
        epoch in few(), (target, ttl_step) in (few(), 0_u8..2), after in tuple(SIDE_TUNNEL, UDP),
        macs in prop::array::uniform3(1_u32..3), dscp in prop_oneof![Just(0_u8), Just(8)],
        (port, word, at) in (0_u64..2, prop_oneof![3 => Just(0_u64), 1 => Just(1)], 0..HEADER_WORDS),
        (deadline, probing, state, way) in (any::<u32>(), 0_u8..3, 0_u8..2, few()),
    ) -> Entry<Tuple4> {
        let mut header = [0; HEADER_WORDS];
        header[4] = port << 16;
        header[at] |= word;
        let way = [way, 0, 0];
        Entry {
            epoch, way, target, ttl_step, after, macs, dscp, header, deadline, probing, state, ..Entry::default()
        }
    }
}

prop_compose! {
    /// What comes out of OVS, into a tunnel, to a pod, or to a physical network.
    fn out()(
        tuple in prop_oneof![tuple(SIDE_TUNNEL, TCP), tuple(SIDE_POD, TCP), tuple(SIDE_OUTSIDE, TCP)],
        target in few(), ttl in 2_u8..60, tag in prop_oneof![Just(0), Just(vlan(0)), Just(vlan(100))],
    ) -> Out<Tuple4> {
        let vlan = if tuple.side == SIDE_OUTSIDE { tag } else { 0 };
        Out { vlan, physical: vlan != 0, tuple, target, ttl, tos: 0, print: Print::default(), index: 0, by_number: true }
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
    fn another_answer_in_the_same_epoch_is_a_divergence(old in entry(), change in 0..8, answer in entry()) {
        // Half of them differ in one thing at most.
        let answer = match change {
            0 => Entry { epoch: answer.epoch, ..old },
            1 => Entry { target: answer.target, ..old },
            2 => Entry { header: answer.header, ..old },
            3 => Entry { ttl_step: answer.ttl_step, ..old },
            4 => Entry { macs: answer.macs, dscp: answer.dscp, ..old },
            5 => Entry { after: answer.after, ..old },
            6 => Entry { way: answer.way, ..old },
            _ => answer,
        };
        let same_way = old.way == answer.way;
        let same_answer = old.target == answer.target
            && old.ttl_step == answer.ttl_step
            && old.after == answer.after
            && without_port(old.header) == without_port(answer.header);
        let same_question = same_way && old.macs == answer.macs && old.dscp == answer.dscp;
        let expected = match (old.epoch == answer.epoch, same_answer && same_way, same_question) {
            (true, true, _) => Compared::Same,
            (true, false, true) => Compared::Other,
            _ => Compared::New,
        };
        for tie in [Tie::Sure, Tie::Likely] {
            prop_assert_eq!(compare(&old, &answer, tie, true, true), expected);
            prop_assert_eq!(compare(&old, &answer, tie, false, true), Compared::New);
        }
        // Only the epoch counts where answers are not compared; those that may be another packet's always are.
        let unaudited = if old.epoch == answer.epoch { Compared::Same } else { Compared::New };
        prop_assert_eq!(compare(&old, &answer, Tie::Sure, true, false), unaudited);
        prop_assert_eq!(compare(&old, &answer, Tie::Likely, true, false), expected);
    }

    /// What OVS confirms is the answer: the entry stays as it is, but for its time and the packets that it is for.
    #[test]
    fn an_answer_that_is_confirmed_gives_the_entry_time_and_nothing_else(old in entry(), answer in entry()) {
        let mut header = old.header;
        header[4] ^= answer.header[4] & 0xffff_0000;
        let Entry { epoch, way, target, ttl_step, after, .. } = old;
        let answer = Entry { epoch, way, target, ttl_step, after, header, ..answer };
        prop_assert_eq!(compare(&old, &answer, Tie::Sure, true, true), Compared::Same);
        let mut confirmed = old;
        let config = config();
        let moved = confirm(&mut confirmed, &answer, Tie::Sure, &terms(&config, epoch, 0));
        prop_assert_eq!(moved, old.header != answer.header);
        prop_assert_eq!((confirmed.deadline, confirmed.probing), (answer.deadline, 0));
        let Entry { macs, dscp, header, deadline, .. } = answer;
        let Entry { checked, entered, .. } = answer;
        prop_assert_eq!(confirmed, Entry { macs, dscp, header, deadline, checked, entered, probing: 0, ..old });
    }

    /// An entry that repeats what is seen is confirmed by the long way too, and is the same entry afterwards.
    #[test]
    fn an_entry_that_repeats_what_is_seen_is_confirmed_as_by_the_long_way(
        key in tuple(SIDE_POD, TCP), out in out(), bytes in any::<[u64; HEADER_WORDS]>(), (macs, at, word) in (any::<[u32; 3]>(), 0..HEADER_WORDS, any::<u64>()),
        change in prop_oneof![3 => Just(8_u32), 1 => Just(9)], now in any::<u32>(), (off, tos) in (prop::bool::weighted(0.1), any::<u8>()), what in 0..16,
        entry_state in prop_oneof![Just(STATE_ACTIVE), STATE_LIKELY..STATE_LIKELY + AGREEING], tie in prop_oneof![Just(Tie::Sure), Just(Tie::Likely)],
    ) {
        let (config, epoch) = (config(), 5);
        let gate = GATE_LEARN | GATE_TCP | if off { GATE_SERVICES } else { 0 };
        let terms = Terms { gate, change, ..terms(&config, epoch, now) };
        let mut note = Note { epoch, change, when: now, tuple: key, way: [3, 0, 0], macs, ttl: out.ttl + 1, tos, ..Note::default() };
        let made = |note: &Note<Tuple4>, out: &Out<Tuple4>, dscp, bytes: [u64; HEADER_WORDS]| {
            let mut value = Entry::default();
            fill(&mut value, note, (out, Tie::Sure), dscp, &terms, deadline(&terms, 0), |_| false);
            value.header = bytes;
            if out.tuple.side == SIDE_TUNNEL {
                template(&mut value.header);
                value.checksum = template_sum(&value.header);
            } else {
                value.header[1] = value.header[1] & u64::from(u32::MAX) | u64::from(out.vlan) << 32;
                value.header[2..].fill(0);
            }
            value
        };
        let dscp = tos & 0xfc;
        let mut entry = made(&note, &out, dscp, bytes);
        (entry.probing, entry.state, entry.packets) = (1, entry_state, 7);
        let (mut later, mut seen, mut shown) = (out, bytes, dscp);
        // One thing is another one, or none.
        match what {
            0 => entry.epoch += 1,
            1 => entry.checked = 6,
            2 => note.change = 6,
            3 => entry.translated |= KEPT_OFF,
            4 => later.target += 1,
            5 => note.way[1] += 1,
            6 => note.macs[2] ^= 1,
            7 => shown ^= 4,
            8 => later.ttl -= 1,
            9 => entry.state = STATE_CLOSING,
            10 => later.tuple.destination_port ^= 1,
            11 => seen[at] ^= word,
            12 if later.tuple.side == SIDE_OUTSIDE => later.vlan ^= vlan(100),
            _ => {}
        }
        let answer = made(&note, &later, shown, seen);
        let repeated = repeats(&entry, &note, &later, shown, &terms, |at| seen[at]);
        let valid = entry.epoch == epoch && entry.checked == change && note.change == change && change & CLOSED == 0;
        let equal = entry.header == answer.header && entry.macs == answer.macs && entry.dscp == answer.dscp;
        let learns = entry.state != STATE_CLOSING && entry.translated & KEPT_OFF == 0 && !off;
        let same = valid && equal && learns && compare(&entry, &answer, tie, true, true) == Compared::Same;
        prop_assert_eq!(repeated, same);
        if repeated {
            let (mut short, mut long) = (entry, entry);
            more_time(&mut short, &note, answer.deadline, tie, &terms);
            prop_assert!(!confirm(&mut long, &answer, tie, &terms));
            prop_assert_eq!(short, long);
        }
    }

    /// The note decides: of this packet and this epoch, young, used once; OVS did what an entry can repeat, and not to its sender.
    #[test]
    fn only_a_young_note_of_this_packet_and_epoch_teaches_and_once(
        (note_epoch, epoch) in (few(), few()), age in 0_u32..500, now in any::<u32>(),
        state in 0_u8..3, (note_tos, tos) in (0_u8..3, 0_u8..3), (note_ttl, ttl) in (0_u8..4, 0_u8..4),
        learning in prop::bool::weighted(0.8), tcp in any::<bool>(),
        (entered, left) in (side().prop_flat_map(|side| tuple(side, 0)), side().prop_flat_map(|side| tuple(side, 0))),
        (from, to) in (few(), few()), (print, other) in (few(), prop::bool::weighted(0.1)),
        by_number in prop::bool::weighted(0.2),
    ) {
        let config = config();
        let protocol = if tcp { TCP } else { UDP };
        let (entered, left) = (Tuple4 { protocol, ..entered }, Tuple4 { protocol, ..left });
        let of = |first| Print { length: 60, first, second: 0 };
        let note = Note {
            epoch: note_epoch, when: now.wrapping_sub(age), state, tos: note_tos, ttl: note_ttl,
            tuple: entered, way: [from, 0, 0], print: of(print), ..Note::default()
        };
        let leaves = left.side == SIDE_OUTSIDE && to != config.uplink;
        let out = Out { vlan: 0, physical: leaves, tuple: left, target: to, ttl, tos, print: of(print + u32::from(other)), index: 0, by_number };
        let gate = GATE_TCP | if learning { GATE_LEARN } else { 0 };
        let judged = judge(&note, &out, &Terms { gate, ..terms(&config, epoch, now) });
        let source = (entered.source, entered.source_port) == (left.source, left.source_port);
        let destination =
            (entered.destination, entered.destination_port) == (left.destination, left.destination_port);
        let itself = entered.source == entered.destination || left.source == left.destination;
        let repeatable = note_tos == tos && ttl <= note_ttl;
        let sure = tcp || source || destination || by_number;
        // Into the tunnel and by the uplink there is one way each, to pods and to the node there are several ports.
        let several = matches!(left.side, SIDE_POD | SIDE_NODE);
        let back = entered.side == left.side && (!several || from == to);
        let physical = |side: u8, ifindex: u32| side == SIDE_OUTSIDE && ifindex != config.uplink;
        let across =
            (physical(entered.side, from) && left.side != SIDE_POD) || (leaves && entered.side != SIDE_POD);
        let teaches = state == NOTE_LIVE && !other && repeatable && !back && !itself && !across
            && learning && note_epoch == epoch && age <= config.note_age;
        let tie = if sure { Tie::Sure } else { Tie::Likely };
        prop_assert_eq!(judged.ok(), teaches.then_some(tie), "{:?}", judged);
        if state == NOTE_SPENT && !other {
            prop_assert_eq!(judged, Err(Reason::SeveralOut));
        }
    }

    /// The sums that an entry has for a translation make right checksums of right ones: in the header of IPv4, and in a full TCP or UDP
    /// checksum, which covers addresses and ports.
    #[test]
    fn an_entry_keeps_checksums_right(before in any::<[u32; 3]>(), after in any::<[u32; 3]>(), rest in any::<u16>()) {
        let tuple = |[source, destination, ports]: [u32; 3]| Tuple4 {
            source, destination,
            source_port: u16::from_ne_bytes([ports.to_ne_bytes()[0], ports.to_ne_bytes()[1]]),
            destination_port: u16::from_ne_bytes([ports.to_ne_bytes()[2], ports.to_ne_bytes()[3]]),
            protocol: TCP, side: 0, _pad: 0,
        };
        let halves = |word: u32| (word & 0xffff) + (word >> 16);
        let sum = |words: &[u32]| {
            u16::try_from(fold(words.iter().map(|word| halves(*word)).sum::<u32>() + u32::from(rest))).unwrap()
        };
        let note = Note { tuple: tuple(before), ..Note::default() };
        let out = Out {
            vlan: 0, physical: false,
            tuple: tuple(after), target: 1, ttl: 0, tos: 0, print: Print::default(), index: 0, by_number: false,
        };
        let config = config();
        let mut entry = Entry::default();
        fill(&mut entry, &note, (&out, Tie::Sure), 0, &terms(&config, 1, 0), 0, |_| false);
        prop_assume!(rest != 0);
        prop_assert_eq!(changed(!sum(&before[..2]), entry.address_difference), !sum(&after[..2]));
        let ported = changed(!sum(&before), entry.address_difference);
        prop_assert_eq!(changed(ported, entry.port_difference), !sum(&after));
        prop_assert_eq!(entry.translated & TRANSLATED != 0, before != after);
    }

    /// Answers to packets that may be others': the entry carries a packet when enough of them have agreed, one after the other and in time, and
    /// any other answer begins it again.
    #[test]
    fn answers_that_are_likely_carry_when_enough_of_them_agree(
        begin in any::<u32>(), answers in prop::collection::vec((prop::bool::weighted(0.15), 0_u32..40, prop::bool::weighted(0.1)), 1..60),
        audit in any::<bool>(),
    ) {
        let config = Config { refresh: 64, jitter: 1, ..config() };
        let key = Tuple4 { source: 1, destination: 2, protocol: UDP, ..Tuple4::default() };
        let note = |now| Note { epoch: 3, when: now, tuple: key, way: [4, 0, 0], state: NOTE_LIVE, ..Note::default() };
        let (mut entry, mut now) = (None::<Entry<Tuple4>>, begin);
        // Answers that agree, and when they began.
        let (mut agreeing, mut first) = (0_u8, begin);
        for (wrong, wait, sure) in answers {
            now = now.wrapping_add(wait);
            let terms = Terms { gate: GATE_LEARN, ..terms(&config, 3, now) };
            let tuple = Tuple4 { source: 7, destination: if wrong { 9 } else { 8 }, ..key };
            let out = Out { vlan: 0, physical: false, tuple, target: 5, ttl: 0, tos: 0, print: Print::default(), index: 0, by_number: sure };
            let tie = judge(&note(now), &out, &terms).unwrap();
            prop_assert_eq!(tie == Tie::Sure, sure);
            let mut value = Entry::default();
            fill(&mut value, &note(now), (&out, tie), 0, &terms, deadline(&terms, 0), |_| false);
            let before = entry.map(|entry| (entry, compare(&entry, &value, tie, true, audit)));
            entry = match before {
                Some((mut entry, Compared::Same)) => {
                    let carries = entry.state == STATE_ACTIVE;
                    prop_assert!(entry.after == tuple || (sure && !audit), "another answer was taken for the entry's");
                    confirm(&mut entry, &value, tie, &terms);
                    agreeing = if !carries && !sure && now.wrapping_sub(first) >= config.refresh { 1 } else { agreeing + 1 };
                    if agreeing == 1 {
                        first = now;
                    }
                    prop_assert_eq!(entry.state == STATE_ACTIVE, carries || sure || agreeing > AGREEING, "{} agree", agreeing);
                    Some(entry)
                }
                Some((_, compared)) => {
                    prop_assert_eq!(compared, Compared::Other);
                    prop_assert_eq!(otherwise(tie) == Learned::Diverged, sure);
                    None
                }
                None => {
                    (agreeing, first) = (1, now);
                    soon(&mut value, &config);
                    prop_assert_eq!(value.state == STATE_ACTIVE, sure);
                    Some(value)
                }
            };
        }
    }

    #[test]
    fn a_deadline_is_after_the_refresh_time_or_a_little_earlier(now in any::<u32>(), random in any::<u32>()) {
        let config = config();
        let after = deadline(&terms(&config, 1, now), random).wrapping_sub(now);
        prop_assert!(after <= config.refresh && after > config.refresh - config.jitter);
        let always = Config { refresh: 0, jitter: 0, ..config };
        prop_assert_eq!(deadline(&terms(&always, 1, now), random), now);
    }

    /// The first deadline is earlier than any that follows, and comes once.
    #[test]
    fn the_first_deadline_is_after_a_quarter_of_the_time(
        now in any::<u32>(), random in any::<u32>(), slow in any::<bool>(), confirmed in 0_u32..2_000,
    ) {
        let config = config();
        let deadline = |now| deadline(&terms(&config, 1, now), random);
        let mut entry = Entry::<Tuple4> { deadline: deadline(now), ..Entry::default() };
        entry.state = if slow { STATE_SLOW } else { STATE_WAITING };
        soon(&mut entry, &config);
        prop_assert_eq!(entry.probing == PROBE_FIRST, !slow);
        let after = entry.deadline.wrapping_sub(now);
        let longest = if slow { config.refresh } else { config.refresh / 4 };
        prop_assert!(after <= longest && after > longest - config.jitter);
        let later = now.wrapping_add(confirmed);
        let answer = Entry { deadline: deadline(later), ..entry };
        confirm(&mut entry, &answer, Tie::Sure, &terms(&config, 1, later));
        prop_assert!(entry.deadline.wrapping_sub(later) > config.refresh - config.jitter);
        prop_assert_eq!(entry.probing, PROBE_NONE);
        let mut always = Entry::<Tuple4> { deadline: now, ..Entry::default() };
        soon(&mut always, &Config { refresh: 0, jitter: 0, ..config });
        prop_assert_eq!(always.deadline, now);
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
            if spend(&mut budget, SIDE_POD, &terms(&config, 1, now)).is_ok() {
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
        translated in any::<bool>(),
    ) {
        let config = config();
        let learned = terms(&config, epoch, now);
        let key = Tuple4 { source: 1, destination: 2, protocol: if tcp { TCP } else { UDP }, ..Tuple4::default() };
        let print = Print { length: 100, first: 4, second: 5 };
        let came = flow(key, ttl, tos);
        let mut left = Note { tuple: key, ..Note::default() };
        note::fill(&mut left, &came, ([3, 0, 0], macs), print, 0, &learned);
        let tuple = Tuple4 { destination: if translated { 9 } else { 2 }, ..key };
        let out = Out { vlan: 0, physical: false, tuple, target: 7, ttl: ttl - step, tos, print, index: 0, by_number: false };
        prop_assert_eq!(judge(&left, &out, &learned), Ok(Tie::Sure));
        let mut entry = Entry { probing: 1, ..Entry::default() };
        fill(&mut entry, &left, (&out, Tie::Sure), came.dscp(), &learned, deadline(&learned, random), |_| false);
        prop_assert_eq!((entry.ttl_step, entry.translated & TRANSLATED != 0), (step, translated));
        let facts = Facts { way: [3, 0, 0], macs, dscp: tos & 0xfc, ttl, aggregate: false };
        let later = terms(&config, epoch, now.wrapping_add(after));
        let other = terms(&config, epoch + 1, now);
        let decision = decide(Some(&mut entry), &facts, &later, |_| Ok(()), |_| true, |_| false);
        prop_assert_eq!(matches!(decision, Decision::Forward(..)), !tcp, "{:?}", decision);
        let decision = decide(Some(&mut entry), &facts, &later, |_| Ok(()), |_| true, |_| true);
        prop_assert!(matches!(decision, Decision::Forward(..)), "{:?}", decision);
        let decision = decide(Some(&mut entry), &facts, &other, |_| Ok(()), |_| true, |_| true);
        prop_assert_eq!(decision, Decision::Slow(Reason::Stale));
    }
}

#[test]
fn what_was_learned_is_counted_by_its_own_reason() {
    use Learned::*;
    assert_eq!(
        [Nothing, Entry, KeptOff, Confirmed, Diverged].map(Learned::counter),
        [
            None,
            Some(Reason::Learned),
            Some(Reason::ServiceSlow),
            Some(Reason::Refreshed),
            Some(Reason::Diverged)
        ]
    );
}
