//! A small flow table that is carried out: whatever random changes do to it, a flow whose verdict changes has a scope of the
//! impact.

mod table;

use std::collections::{BTreeMap, BTreeSet};

use api::MacAddr;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};

use super::wire::Flow;
use super::*;
use table::*;

/// Packets of all kinds: between local pods, to another node, from there.
fn packets() -> Vec<Packet> {
    let mut packets = Vec::new();
    for (from, to) in [(1, 2), (2, 1), (1, 3), (1, 4), (2, 3), (2, 4), (3, 1), (4, 2)] {
        for port in [80, 443] {
            let local = from <= 2;
            let away = to > 2 || !local;
            let base = Packet {
                in_port: if local { u32::from(from) + 10 } else { TUNNEL },
                datapath: SWITCH,
                from: if local { from.into() } else { 40 },
                to: if local { 0 } else { to.into() },
                hop: 0,
                macs: (mac(from), if away { ROUTER_MAC } else { mac(to) }),
                pods: (from, to),
                port,
            };
            packets.push(if local { base } else { Packet { macs: (ROUTER_MAC, mac(to)), ..base } });
        }
    }
    packets
}

/// The scopes of an entry, as the cache would have them.
fn entry(before: &Packet, out: u32, after: &Packet) -> BTreeSet<Scope> {
    let mut scopes = BTreeSet::from([Scope::Mac(MacAddr(before.macs.0)), Scope::Mac(MacAddr(after.macs.1))]);
    scopes.extend([before.pods.0, before.pods.1].map(|pod| Scope::Address(ip(pod).into())));
    scopes.extend([before.in_port, out].into_iter().filter(|port| *port != TUNNEL).map(Scope::Port));
    if before.in_port == TUNNEL {
        scopes.extend([
            key(SWITCH, 40),
            key(SWITCH, u16::try_from(before.to).unwrap()),
            Scope::Datapath { vni: 1 },
        ]);
    }
    if out == TUNNEL {
        scopes.extend([key(ROUTER, 20), Scope::Datapath { vni: 2 }]);
    }
    scopes
}

/// Rules that are there in the beginning.
fn rules() -> Rules {
    let mut rules: Vec<Rule> =
        [INGRESS, POLICY, EGRESS].map(|table| Rule::new(table, 0, [], Act::Next)).into();
    for pod in 1..=4 {
        if pod <= 2 {
            rules.push(Rule::new(LOOKUP, 50, [Is::Datapath(SWITCH), Is::Receiver(pod)], Act::To(pod.into())));
        }
        let resolved = [Is::Datapath(ROUTER), Is::Hop(pod), Is::To(AWAY)];
        rules.push(Rule::new(RESOLVE, 50, resolved, Act::Resolve(pod)));
    }
    rules.push(Rule::new(LOOKUP, 1, [Is::Datapath(SWITCH)], Act::To(TO_ROUTER)));
    rules.push(Rule::new(ROUTE, 50, [Is::Datapath(ROUTER), Is::Net(true)], Act::To(AWAY)));
    rules.into_iter().map(|rule| (rule.key(), rule.act)).collect()
}

fn condition() -> impl Strategy<Value = Is> {
    let pod = 1..=4_u8;
    prop_oneof![
        pod.clone().prop_map(Is::Source),
        pod.clone().prop_map(Is::Destination),
        any::<bool>().prop_map(Is::Net),
        pod.clone().prop_map(Is::Sender),
        pod.prop_map(Is::Receiver),
        prop_oneof![Just(80), Just(443)].prop_map(Is::Port),
        prop_oneof![Just(1), Just(2), Just(40), Just(TO_ROUTER)].prop_map(Is::From),
        prop_oneof![Just(1), Just(2), Just(AWAY)].prop_map(Is::To),
        prop_oneof![Just(SWITCH), Just(ROUTER), Just(FAR)].prop_map(Is::Datapath),
    ]
}

fn change() -> impl Strategy<Value = Rule> {
    let conditions = || proptest::collection::btree_set(condition(), 1..4);
    let datapath = || prop_oneof![4 => Just(Some(SWITCH)), 2 => Just(Some(ROUTER)), 1 => Just(None)];
    let plain = (
        prop_oneof![Just(INGRESS), Just(EGRESS), Just(POLICY), Just(LOOKUP)],
        1..90_u16,
        conditions(),
        datapath(),
        prop_oneof![3 => Just(Act::Drop), 1 => Just(Act::Next)],
    );
    let plain = plain.prop_map(|(table, priority, mut conditions, datapath, act)| {
        conditions.extend(datapath.map(Is::Datapath));
        Rule::new(table, priority, conditions, act)
    });
    let clause = (conditions(), 0..2_u8);
    let clause = clause.prop_map(|(mut conditions, number)| {
        conditions.insert(Is::Datapath(SWITCH));
        Rule::new(EGRESS, 70, conditions, Act::Clause(number))
    });
    // So few matches that a clause and a flow that acts by itself take each other's place.
    let same = prop_oneof![Just(Is::Net(false)), Just(Is::Port(80))];
    let turns = prop_oneof![Just(Act::Drop), Just(Act::Clause(0)), Just(Act::Clause(1))];
    let turns = (same, turns).prop_map(|(is, act)| Rule::new(EGRESS, 70, [Is::Datapath(SWITCH), is], act));
    let acts = Just(Rule { conjunction: true, ..Rule::new(EGRESS, 70, [Is::Datapath(SWITCH)], Act::Drop) });
    let hop = (conditions(), 1..=4_u8).prop_map(|(mut conditions, pod)| {
        conditions.insert(Is::Datapath(ROUTER));
        Rule::new(POLICY, 80, conditions, Act::Hop(pod))
    });
    let resolve = (1..=4_u8, 1..=4_u8).prop_map(|(hop, pod)| {
        Rule::new(RESOLVE, 50, [Is::Datapath(ROUTER), Is::Hop(hop), Is::To(AWAY)], Act::Resolve(pod))
    });
    prop_oneof![5 => plain, 3 => clause, 1 => turns, 1 => acts, 1 => hop, 1 => resolve]
}

type Burst = Vec<(Rule, bool)>;

fn bursts() -> impl Strategy<Value = Vec<Burst>> {
    proptest::collection::vec(proptest::collection::vec((change(), any::<bool>()), 1..6), 1..12)
}

/// The first packet whose verdict changed outside of the impact.
fn missed(classifier: Classifier, bursts: Vec<Burst>) -> Result<(), TestCaseError> {
    let mut table = Table::with(classifier);
    let mut rules = rules();
    let mut flows: BTreeMap<_, Flow> = BTreeMap::new();
    for (key, act) in &rules {
        let (at, priority, conditions, conjunction) = key.clone();
        let rule = Rule { table: at, priority, conditions, conjunction, act: *act };
        table.classifier.take(&rule.flow().present(), table.now);
        flows.insert(key.clone(), rule.flow());
    }
    table.classifier.impact();
    prop_assert_eq!(table.classifier.lint(), None);
    for burst in bursts {
        let before: Vec<_> = packets().into_iter().map(|packet| carry(&rules, packet)).collect();
        for (rule, add) in burst {
            let key = rule.key();
            if add {
                // An action of another kind for the same match is a modification.
                rules.insert(key.clone(), rule.act);
                table.classifier.take(&rule.flow().present(), table.now);
                flows.insert(key, rule.flow());
            } else if let Some(flow) = flows.remove(&key) {
                rules.remove(&key);
                table.classifier.take(&flow.removed(), table.now);
            }
        }
        let impact = table.classifier.impact();
        for (packet, before) in packets().iter().zip(before) {
            let Some((out, after)) = before else { continue };
            let now = carry(&rules, *packet).map(|(out, after)| (out, after.macs));
            if now != Some((out, after.macs)) && impact.everything.is_none() && out != packet.in_port {
                let scopes = entry(packet, out, &after);
                prop_assert!(
                    !impact.scopes.is_disjoint(&scopes),
                    "{packet:?} of {scopes:?} is not in {impact:?}"
                );
            }
        }
    }
    Ok(())
}

fn run(cases: u32, classifier: impl Fn() -> Classifier) -> Result<(), TestError<Vec<Burst>>> {
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 0, ..Config::default() };
    TestRunner::new(config).run(&bursts(), |bursts| missed(classifier(), bursts))
}

#[test]
fn whatever_changes_is_in_the_impact() {
    run(400, Classifier::default).unwrap();
}

#[test]
fn without_any_one_of_the_rules_something_is_missed() {
    use super::super::Rule as By;
    // The model has no groups, no copies of the original destination, and nothing on datapaths that are not near.
    let rules =
        By::CONCERNING.into_iter().filter(|rule| ![By::Group, By::Original, By::FarDatapath].contains(rule));
    for rule in rules {
        let outcome = run(20_000, || Classifier::without(rule));
        assert!(matches!(outcome, Err(TestError::Fail(..))), "{rule:?}: {outcome:?}");
    }
}
