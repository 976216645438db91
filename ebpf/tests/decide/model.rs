//! Decisions one after another: a flow of a pod, an OVS that changes its mind, and a clock.
//!
//! What must hold is that every packet on the fast path goes the way on which OVS sent another one of the flow since the agent last saw a change that concerns it, and not
//! long ago: within the refresh time and the slack, or within the grace of a packet that went to ask OVS.

use std::collections::BTreeMap;

use ebpf::{
    decide::{
        Terms,
        forward::{Decision, Facts, decide, forget, forgets, is_noted},
        learn::{Compared, Out, compare, confirm, deadline, fill, judge, soon, spend},
        note,
        scope::{is_current, may_learn},
    },
    layout::{
        flow::{Entry, GATE_FORWARD, GATE_LEARN, Note, PROBE_SENT, Print, SIDE_POD, Tuple4},
        maps::{Budget, Config},
        scope::{self, CLOSED, STEP},
    },
    packet::{Flow, UDP},
};
use proptest::prelude::*;

use super::any::config;

/// The flow that the pod sends.
const KEY: Tuple4 = Tuple4 {
    source: 1,
    destination: 2,
    source_port: 0,
    destination_port: 0,
    protocol: UDP,
    side: 0,
    _pad: 0,
};

/// What happens next.
#[derive(Clone, Debug)]
enum Event {
    /// Time goes by.
    Wait(u32),
    /// The pod sends a packet; `true`: an aggregate.
    Send(bool),
    /// The oldest packet inside OVS comes out.
    ComesOut,
    /// The oldest packet inside OVS is dropped.
    Dropped,
    /// OVS sends the flow elsewhere from now on.
    Moves(Seen),
    /// The agent saw a change that concerns other flows; `true`: nothing is learned of them for now.
    Elsewhere(bool),
    /// The agent takes a change that it saw for finished.
    Opens,
}

/// How the agent sees a change.
#[derive(Clone, Copy, Debug)]
enum Seen {
    Not,
    /// A change that may concern everything: another epoch.
    Everything,
    /// A change of the receiver's address, of which nothing is learned for now.
    Scope,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (0_u32..60).prop_map(Event::Wait),
        1 => (60_u32..3_000).prop_map(Event::Wait),
        6 => any::<bool>().prop_map(Event::Send),
        4 => Just(Event::ComesOut),
        1 => Just(Event::Dropped),
        1 => prop::sample::select(vec![Seen::Not, Seen::Everything, Seen::Scope]).prop_map(Event::Moves),
        1 => any::<bool>().prop_map(Event::Elsewhere),
        1 => Just(Event::Opens),
    ]
}

#[derive(Debug, Default)]
struct World {
    config: Config,
    epoch: u32,
    change: u32,
    buckets: BTreeMap<u32, u32>,
    now: u32,
    /// Where OVS sends the flow.
    ovs: u32,
    entry: Option<Entry<Tuple4>>,
    /// Where OVS sent the flow when the epoch began. Each later place has a higher number.
    of_epoch: u32,
    /// Packets inside OVS, and where OVS sends each, which is decided when it enters: the earliest that may be.
    inside: std::collections::VecDeque<(Note<Tuple4>, u32)>,
    budget: Budget,
    /// Epoch in which the endpoint was taken off the fast path.
    diverged: u32,
    /// What OVS did last in each epoch that a packet entered and left in: epoch, target and tick.
    confirmed: Option<(u32, u32, u32)>,
    /// Tick at which a packet last went to ask OVS about a valid entry.
    asked: Option<u32>,
    forwarded: u32,
}

impl World {
    fn step(&mut self, event: &Event) {
        match *event {
            Event::Wait(ticks) => self.now = self.now.wrapping_add(ticks),
            Event::Send(aggregate) => self.send(aggregate),
            Event::ComesOut => self.comes_out(),
            Event::Dropped => drop(self.inside.pop_front()),
            Event::Moves(seen) => {
                self.ovs += 1;
                match seen {
                    Seen::Not => return,
                    Seen::Everything => self.epoch += 1,
                    Seen::Scope => self.bump(scope::address4(KEY.destination), true),
                }
                self.of_epoch = self.ovs;
            }
            Event::Elsewhere(closed) => self.bump(scope::address4(99), closed),
            Event::Opens => self.bump(scope::address4(KEY.destination), false),
        }
    }

    /// What the agent does when a scope changes.
    fn bump(&mut self, bucket: u32, closed: bool) {
        let next = (self.change & !CLOSED).wrapping_add(STEP);
        self.buckets.insert(bucket, next | u32::from(closed));
        self.change = next | u32::from(self.buckets.values().any(|value| value & CLOSED != 0));
    }

    fn send(&mut self, aggregate: bool) {
        let flow = Flow { tuple: KEY, ttl: 64, tos: 0, flags: 0, length: 100, headers: 28, word: 0 };
        if self.diverged == self.epoch {
            return;
        }
        let (config, buckets) = (self.config, self.buckets.clone());
        let terms = self.terms(&config);
        let bucket = |number| Some(buckets.get(&number).copied().unwrap_or_default());
        let is_current = |entry: &Entry<Tuple4>| is_current(&KEY, entry, terms.change, bucket);
        let facts = Facts { way: [1, 0, 0], macs: [1, 2, 3], dscp: 0, ttl: 64, aggregate };
        let reason = match decide(self.entry.as_mut(), &facts, &terms, |_| Ok(()), is_current, |_| false) {
            Decision::Forward(entry, ()) => {
                let target = entry.target - 10;
                return self.check(target);
            }
            Decision::KeptOff(_) => panic!("no service is kept off"),
            Decision::Slow(reason) => reason,
        };
        if forgets(reason) {
            self.entry.as_mut().into_iter().for_each(forget);
        }
        if self.entry.is_some_and(|entry| entry.probing == PROBE_SENT) {
            self.asked = Some(self.now);
        }
        assert!(is_noted(reason));
        let mut left = Note { tuple: KEY, ..Note::default() };
        note::fill(&mut left, &flow, (facts.way, facts.macs), Print::default(), 0, &terms);
        self.inside.push_back((left, self.ovs));
    }

    fn terms<'a>(&self, config: &'a Config) -> Terms<'a> {
        let Self { epoch, change, now, .. } = *self;
        Terms { config, gate: GATE_FORWARD | GATE_LEARN, epoch, change, now }
    }

    /// Checks a packet that was forwarded.
    fn check(&mut self, target: u32) {
        self.forwarded += 1;
        let (epoch, answer, at) = self.confirmed.unwrap();
        assert_eq!((epoch, answer), (self.epoch, target), "not what OVS did in this epoch");
        assert!(target >= self.of_epoch, "what OVS did before the change that began this epoch");
        let since = |at: u32| self.now.wrapping_sub(at);
        let young = since(at) < self.config.refresh + self.config.slack;
        let asked = self.asked.is_some_and(|at| since(at) < self.config.grace);
        assert!(young || asked, "OVS said so {} ticks ago, and was not asked since", since(at));
    }

    fn comes_out(&mut self) {
        let Some((note, answer)) = self.inside.pop_front() else { return };
        let (config, buckets) = (self.config, self.buckets.clone());
        let terms = self.terms(&config);
        let bucket = |number| Some(buckets.get(&number).copied().unwrap_or_default());
        let out = Out {
            vlan: 0,
            physical: false,
            tuple: KEY,
            target: 10 + answer,
            ttl: 64,
            tos: 0,
            print: Print::default(),
            index: 0,
            by_number: false,
        };
        let Ok(tie) = judge(&note, &out, &terms) else { return };
        if self.diverged == self.epoch {
            return;
        }
        let mut value = Entry::default();
        fill(&mut value, &note, (&out, tie), 0, &terms, deadline(&terms, self.now), |_| false);
        if may_learn(&KEY, &value, terms.change, bucket).is_err() {
            return;
        }
        let compared = |entry: &Entry<Tuple4>| {
            compare(entry, &value, tie, is_current(&KEY, entry, terms.change, bucket), true)
        };
        match self.entry.as_mut().map(|entry| (compared(entry), entry)) {
            Some((Compared::Same, entry)) => {
                confirm(entry, &value, tie, &terms);
            }
            Some((Compared::Other, _)) => {
                self.entry = None;
                self.diverged = self.epoch;
                return;
            }
            None | Some((Compared::New, _)) => {
                if spend(&mut self.budget, SIDE_POD, &terms).is_err() {
                    return;
                }
                soon(&mut value, &config);
                self.entry = Some(value);
            }
        }
        self.confirmed = Some((self.epoch, answer, self.now));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_fast_path_repeats_what_ovs_did_in_this_epoch_and_not_long_ago(
        begin in any::<u32>(), events in prop::collection::vec(event(), 1..120),
    ) {
        let mut world = World { config: config(), epoch: 1, now: begin, ..World::default() };
        for event in &events {
            world.step(event);
        }
    }
}

/// The test above would hold if nothing were ever forwarded.
#[test]
fn most_packets_of_a_busy_flow_are_forwarded() {
    let mut world = World { config: config(), epoch: 1, ..World::default() };
    for _ in 0..1_000 {
        world.step(&Event::Send(false));
        world.step(&Event::ComesOut);
        world.step(&Event::Wait(5));
    }
    assert!(world.forwarded > 980, "{}", world.forwarded);
}
