//! Laws of [`ebpf::decide::connection`]: when a TCP connection is fast. Segments of both directions go into OVS and come out of it, in
//! any order and number, and OVS may drop each of them. On one side of OVS addresses are translated.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ebpf::{
    Reason,
    decide::{
        Terms,
        connection::{Flows, change, teaches},
        forward::{Decision, Facts, decide, is_open},
        learn::{Out, deadline, fill, is_learnable, judge},
        note,
        tuple::Tuple as _,
    },
    layout::{
        flow::{Entry, GATE_FORWARD, GATE_LEARN, GATE_TCP, Note, Print, SIDE_POD, SIDE_TUNNEL, Tuple4},
        maps::Config,
    },
    packet::{ACK, FIN, Flow, RST, SYN, TCP},
};
use proptest::prelude::*;

use super::any::config;

const GATE: u32 = GATE_FORWARD | GATE_LEARN | GATE_TCP;

fn tuple(source: u32, destination: u32, side: u8) -> Tuple4 {
    Tuple4 { source, destination, source_port: 7, destination_port: 7, protocol: TCP, side, _pad: 0 }
}

/// A direction as it enters OVS and as it comes out: a pod asks a service, whose backend is on another node.
fn flow(back: bool) -> (Tuple4, Tuple4) {
    let (asked, answered) = ((1, 9), (5, 1));
    if back {
        (tuple(answered.0, answered.1, SIDE_TUNNEL), tuple(9, 1, SIDE_POD))
    } else {
        (tuple(asked.0, asked.1, SIDE_POD), tuple(1, 5, SIDE_TUNNEL))
    }
}

#[derive(Default, Debug)]
struct Table(BTreeMap<Tuple4, Entry<Tuple4>>);

impl Flows<Tuple4> for Table {
    fn entry(&mut self, key: &Tuple4) -> Option<&mut Entry<Tuple4>> {
        self.0.get_mut(key)
    }

    fn remove(&mut self, key: &Tuple4) {
        self.0.remove(key);
    }
}

/// A segment inside OVS.
struct Inside {
    back: bool,
    flags: u8,
    note: Option<Note<Tuple4>>,
    number: u32,
    /// No other segment was inside when it entered.
    alone: bool,
}

#[derive(Default)]
struct World {
    config: Config,
    table: Table,
    inside: VecDeque<Inside>,
    epoch: u32,
    number: u32,
    /// Number of the last segment that came out in each direction in this epoch, of those that may teach.
    out: [Option<u32>; 2],
    /// Directions whose entry met a FIN.
    ended: BTreeSet<bool>,
    /// Number of the last segment with SYN or RST that took its connection out of the cache while no other one was inside OVS.
    cut: Option<u32>,
    noted: u32,
    inserted: u32,
}

impl World {
    fn new() -> Self {
        Self { config: config(), epoch: 1, ..Self::default() }
    }

    /// A segment comes to the programs; true: the cache carried it.
    fn enters(&mut self, back: bool, flags: u8) -> bool {
        self.number += 1;
        let config = self.config;
        let terms = Terms { config: &config, gate: GATE, epoch: self.epoch, change: 0, now: 5 };
        let (key, _) = flow(back);
        let facts =
            Facts { way: [1 + u32::from(back), 0, 0], macs: [1, 2, 3], dscp: 0, ttl: 64, aggregate: false };
        let noted = if flags & (SYN | FIN | RST) != 0 {
            let known = self.table.0.contains_key(&key);
            change(&mut self.table, &key, flags, false);
            if flags & (SYN | RST) != 0 && known {
                self.cut = self.inside.is_empty().then_some(self.number);
            }
            if flags & (SYN | RST) != 0 {
                self.ended.clear();
            } else if self.table.0.contains_key(&key) {
                self.ended.insert(back);
            }
            teaches(flags, GATE)
        } else {
            let others = self.table.0.clone();
            let open =
                |entry: &Entry<Tuple4>| is_open(&key, others.get(&entry.partner()), terms.epoch, |_| true);
            match decide(self.table.entry(&key), &facts, &terms, |_| Ok(()), |_| true, open) {
                Decision::Forward(..) => {
                    self.check(back);
                    return true;
                }
                Decision::KeptOff(_) => panic!("no service is kept off"),
                Decision::Slow(Reason::Closing) => false,
                Decision::Slow(reason) => ebpf::decide::forward::is_noted(reason),
            }
        };
        let packet = Flow { tuple: key, ttl: 64, tos: 0, flags, length: 100, headers: 40, word: 0 };
        let note = noted.then(|| {
            let mut left = Note { tuple: key, ..Note::default() };
            note::fill(&mut left, &packet, (facts.way, facts.macs), Print::default(), 0, &terms);
            left
        });
        self.noted += u32::from(noted);
        self.inside.push_back(Inside {
            back,
            flags,
            note,
            number: self.number,
            alone: self.inside.is_empty(),
        });
        false
    }

    /// Checks that both directions came out of OVS in this epoch; this one's entry is of a packet that entered after the last SYN or RST,
    /// or was in OVS then.
    fn check(&self, back: bool) {
        assert!(self.out.iter().all(Option::is_some), "fast before both directions came out in this epoch");
        let (key, _) = flow(back);
        assert_eq!(self.table.0[&key].after, flow(back).1);
    }

    /// A segment leaves OVS: the one at this place of those inside.
    fn comes_out(&mut self, at: usize, dropped: bool) {
        let Some(one) = self.inside.remove(at % self.inside.len().max(1)) else { return };
        if dropped {
            return;
        }
        let config = self.config;
        let terms = Terms { config: &config, gate: GATE, epoch: self.epoch, change: 0, now: 6 };
        let (key, after) = flow(one.back);
        if one.flags & (SYN | FIN | RST) != 0 {
            change(&mut self.table, &after.reversed(), one.flags, true);
            if one.flags & (SYN | RST) != 0 {
                self.ended.clear();
                self.cut = if one.alone { self.cut.max(Some(one.number)) } else { self.cut };
            }
        }
        let Some(note) = one.note else { return };
        let target = 20 + u32::from(one.back);
        let print = Print::default();
        let out = Out {
            vlan: 0,
            physical: false,
            tuple: after,
            target,
            ttl: 63,
            tos: 0,
            print,
            index: 0,
            by_number: false,
        };
        let Ok(tie) = judge(&note, &out, &terms) else { return };
        let mut value = Entry::default();
        fill(&mut value, &note, (&out, tie), 0, &terms, deadline(&terms, 0), |_| true);
        self.out[usize::from(one.back)] = Some(one.number);
        if self
            .table
            .0
            .get(&key)
            .is_some_and(|entry| is_learnable(entry).is_err() || entry.epoch == self.epoch)
        {
            return;
        }
        self.inserted += 1;
        self.table.0.insert(key, value);
    }

    /// A segment that OVS lets through at once; true: the cache carried it.
    fn passes(&mut self, back: bool, flags: u8) -> bool {
        let fast = self.enters(back, flags);
        if !fast {
            self.comes_out(self.inside.len() - 1, false);
        }
        fast
    }

    fn moves(&mut self) {
        self.epoch += 1;
        self.out = [None; 2];
    }
}

const KINDS: [u8; 8] = [SYN, SYN | ACK, ACK, ACK, ACK, FIN | ACK, RST, RST | ACK];

#[derive(Clone, Debug)]
enum Event {
    Enters(bool, u8),
    ComesOut(usize, bool),
    Moves,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (any::<bool>(), prop::sample::select(KINDS.to_vec())).prop_map(|(back, flags)| Event::Enters(back, flags)),
        8 => (0_usize..4, prop::bool::weighted(0.2)).prop_map(|(at, dropped)| Event::ComesOut(at, dropped)),
        1 => Just(Event::Moves),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// In any order: nothing is carried before both directions came out in this epoch, nor in a direction that has ended; and after a SYN
    /// or RST that OVS let through, or whose direction was cached, nothing is carried before both came out again.
    #[test]
    fn a_connection_is_carried_only_while_it_is_open(events in prop::collection::vec(event(), 1..150)) {
        let mut world = World::new();
        for event in &events {
            match *event {
                Event::Enters(back, flags) => {
                    let ended = world.ended.contains(&back);
                    let fast = world.enters(back, flags);
                    prop_assert!(!(fast && ended), "carried after its FIN");
                    if let (true, Some(cut)) = (fast, world.cut) {
                        prop_assert!(world.out.iter().all(|out| out.is_some_and(|out| out >= cut)), "of what was before a SYN or RST");
                    }
                }
                Event::ComesOut(at, dropped) => world.comes_out(at, dropped),
                Event::Moves => world.moves(),
            }
        }
    }

    /// Whoever knocks: as long as nothing but SYN, and RST as the answer, comes out of OVS, there is no entry, and no note is made.
    #[test]
    fn a_scan_of_closed_ports_leaves_nothing(
        knocks in prop::collection::vec((any::<bool>(), prop::sample::select(vec![SYN, RST, RST | ACK, FIN | ACK]), any::<bool>()), 1..50),
    ) {
        let mut world = World::new();
        for (back, flags, dropped) in knocks {
            world.enters(back, flags);
            world.comes_out(0, dropped);
        }
        prop_assert!(world.table.0.is_empty());
        prop_assert_eq!(world.noted, 0);
    }

    /// OVS drops a made-up SYN-ACK: nothing is learned of it.
    #[test]
    fn a_syn_ack_that_ovs_drops_teaches_nothing(count in 1_u32..20, back in any::<bool>()) {
        let mut world = World::new();
        for _ in 0..count {
            world.enters(back, SYN | ACK);
            world.comes_out(0, true);
        }
        prop_assert!(world.table.0.is_empty());
    }
}

/// The handshake of a connection that the pod opens, or the other end.
fn shaken(world: &mut World, back: bool) {
    for (direction, flags) in [(back, SYN), (!back, SYN | ACK), (back, ACK)] {
        assert!(!world.passes(direction, flags), "{flags:#x} is for OVS");
    }
}

#[test]
fn after_the_handshake_request_and_answer_are_carried() {
    for back in [false, true] {
        let mut world = World::new();
        shaken(&mut world, back);
        assert!(world.passes(back, ACK) && world.passes(!back, ACK));
        assert_eq!((world.noted, world.inserted), (2, 2));
    }
}

#[test]
fn a_syn_ack_alone_opens_nothing_and_a_repeated_one_waits_for_another_ack() {
    let mut world = World::new();
    world.passes(false, SYN);
    world.passes(true, SYN | ACK);
    assert!(!world.enters(true, ACK), "TCP Fast Open: data before the handshake's ACK");
    world.comes_out(0, false);
    world.passes(true, SYN | ACK);
    assert!(!world.passes(false, ACK));
    assert!(world.passes(false, ACK));
    world.passes(true, SYN | ACK);
    assert!(!world.passes(false, ACK), "the answer to it");
    assert!(world.passes(false, ACK) && world.passes(true, ACK));
}

#[test]
fn a_simultaneous_open_is_carried_when_both_have_said_something() {
    let mut world = World::new();
    for (back, flags) in [(false, SYN), (true, SYN), (false, SYN | ACK), (true, SYN | ACK)] {
        assert!(!world.passes(back, flags));
    }
    assert!(!world.passes(false, ACK));
    assert!(world.passes(true, ACK) && world.passes(false, ACK));
}

#[test]
fn a_scan_of_an_open_port_leaves_nothing() {
    // The scanner breaks the connection instead of opening it, or right after it was opened.
    for opened in [false, true] {
        for (back, who) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut world = World::new();
            world.passes(back, SYN);
            world.passes(!back, SYN | ACK);
            assert_eq!(world.table.0.len(), 1);
            if opened {
                world.passes(back, ACK);
            }
            world.passes(who, RST);
            assert!(world.table.0.is_empty(), "{:?}", world.table);
        }
    }
}

#[test]
fn a_fin_ends_its_own_direction_and_a_rst_both() {
    for back in [false, true] {
        let mut world = World::new();
        shaken(&mut world, false);
        assert!(world.passes(false, ACK) && world.passes(true, ACK));
        assert!(!world.passes(back, FIN | ACK));
        assert!(!world.passes(back, ACK), "it has ended");
        assert!(world.passes(!back, ACK), "it goes on");
        assert!(!world.passes(!back, FIN | ACK));
        assert!(!world.passes(!back, ACK) && !world.passes(back, ACK));
        assert_eq!(world.inserted, 2, "the last ACKs make no entry");
        // The next connection between the same ends.
        shaken(&mut world, true);
        assert!(world.passes(true, ACK) && world.passes(false, ACK));
        assert!(!world.passes(back, RST));
        for direction in [false, true] {
            assert!(!world.passes(direction, ACK) && !world.passes(direction, ACK));
        }
    }
}

#[test]
fn an_answer_that_begins_after_the_fin_of_the_request_is_carried() {
    let mut world = World::new();
    shaken(&mut world, false);
    world.passes(false, FIN | ACK);
    assert!(world.passes(true, ACK));
    world.moves();
    assert!(!world.passes(true, ACK), "of another epoch");
    assert!(!world.passes(true, ACK), "the other direction was not seen in this one");
}

#[test]
fn what_comes_out_ends_what_was_not_seen_to_enter() {
    // A FIN with a mark of congestion, say, is not looked at where it enters.
    for (flags, fast) in [(FIN | ACK, [false, true]), (RST, [false, false]), (SYN, [false, false])] {
        let mut world = World::new();
        shaken(&mut world, false);
        assert!(world.passes(false, ACK) && world.passes(true, ACK));
        change(&mut world.table, &flow(false).1.reversed(), flags, true);
        assert_eq!([false, true].map(|back| world.enters(back, ACK)), fast, "{flags:#x}");
    }
}

#[test]
fn only_a_segment_that_accepts_a_connection_teaches() {
    for flags in 0..=u8::MAX {
        let accepts = flags & SYN != 0 && flags & ACK != 0 && flags & (FIN | RST) == 0;
        assert_eq!(teaches(flags, GATE), accepts, "{flags:#x}");
        assert!(!teaches(flags, GATE & !GATE_TCP));
    }
}
