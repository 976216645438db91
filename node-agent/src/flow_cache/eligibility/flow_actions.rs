//! Flows of br-int that log, sample, shape or queue packets, or decide by what packets of one flow differ in, and whose packets
//! these are. No I/O.
//!
//! Such packets must all reach OVS. Where a flow matches one logical port of OVN that has a port of the bridge, as those of an ACL
//! or QoS rule for a pod do, what comes from or goes to that port takes the slow path. A flow that matches a conjunction (a port
//! group and an address set) concerns the ports of that one of its dimensions which consists of ports alone. Where neither can be
//! told, no packet of the node may be fast.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::ovs::openflow::{Deeds, Effect, Key, LogicalPort, Part, Update};

/// Who must not use the fast path because of br-int's flows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Effects {
    /// Why nobody may.
    pub node: Option<String>,
    /// OpenFlow ports whose packets may not, and why.
    pub ports: BTreeMap<u32, String>,
}

/// Table, priority and match.
type Name = (u8, u16, Box<[u8]>);

/// The flows as the monitor told of them. For each flow that is part of a conjunction about 150 bytes are kept.
#[derive(Debug)]
pub(in crate::flow_cache) struct Ledger {
    effects: HashMap<Name, Effect>,
    parts: HashMap<Name, Vec<Part>>,
    /// First table: which logical port the packets of a port of the bridge come from.
    origins: HashMap<Name, (u32, LogicalPort)>,
    changed: bool,
}

impl Default for Ledger {
    /// No flows; that is news.
    fn default() -> Self {
        Self { effects: HashMap::new(), parts: HashMap::new(), origins: HashMap::new(), changed: true }
    }
}

fn name(key: &Key<'_>) -> Name {
    (key.table, key.priority, key.fields.into())
}

/// Keeps `value` under `name`, or nothing; true when that was otherwise before.
fn put<T: PartialEq>(map: &mut HashMap<Name, T>, key: &Key<'_>, value: Option<T>) -> bool {
    match value {
        Some(value) => {
            map.get(&name(key)) != Some(&value) && {
                map.insert(name(key), value);
                true
            }
        }
        None if map.is_empty() => false,
        None => map.remove(&name(key)).is_some(),
    }
}

impl Ledger {
    /// Takes what the monitor told.
    pub(in crate::flow_cache) fn take(&mut self, update: Update<'_>) {
        let (key, deeds, there) = match update {
            Update::Present { key, deeds } => (key, deeds, true),
            Update::Removed(key) => (key, Deeds::default(), false),
            Update::Paused(_) | Update::Unknown => return,
        };
        let fields = key.read();
        let origin = fields.in_port.zip(deeds.sets.source()).filter(|_| key.table == 0);
        let differs = (there && fields.differs).then_some(Effect::Differs);
        self.changed |= put(&mut self.effects, &key, deeds.effect.or(differs));
        self.changed |= put(&mut self.origins, &key, origin);
        self.changed |= put(&mut self.parts, &key, Some(deeds.parts).filter(|parts| !parts.is_empty()));
    }

    /// Whom they concern, if anything has changed since the last call.
    pub(in crate::flow_cache) fn changes(&mut self) -> Option<Effects> {
        std::mem::take(&mut self.changed).then(|| self.sum())
    }

    fn sum(&self) -> Effects {
        let mut effects = Effects::default();
        if self.effects.is_empty() {
            return effects;
        }
        let mut ports: HashMap<LogicalPort, BTreeSet<u32>> = HashMap::new();
        for (port, logical) in self.origins.values() {
            ports.entry(*logical).or_default().insert(*port);
        }
        let conjunctions = self.conjunctions(&ports);
        let (mut everybody, mut some) = (Vec::new(), BTreeMap::<u32, Vec<(Effect, u8)>>::new());
        for (name, effect) in &self.effects {
            let told = (*effect, name.0);
            match concerned(name, &ports, &conjunctions) {
                Some(ports) => ports.into_iter().for_each(|port| some.entry(port).or_default().push(told)),
                None => everybody.push(told),
            }
        }
        let why = |told: &[(Effect, u8)], whose: &str| {
            let (effect, table) = told.iter().min()?;
            Some(format!("{} flows of br-int {}{whose} (table {table})", told.len(), effect.verb()))
        };
        effects.node = why(&everybody, "");
        effects.ports =
            some.iter().filter_map(|(port, told)| Some((*port, why(told, " of this port")?))).collect();
        effects
    }

    /// By table and number: the ports of a conjunction that matches, if they can be told.
    fn conjunctions(&self, ports: &HashMap<LogicalPort, BTreeSet<u32>>) -> HashMap<(u8, u32), Concerned> {
        let fields = |name: &Name| key(name).read();
        let wanted: HashSet<(u8, u32)> =
            self.effects.keys().filter_map(|name| Some((name.0, fields(name).conjunction?))).collect();
        // Each dimension with its ports.
        let mut dimensions: BTreeMap<(u8, u32, u8), Concerned> = BTreeMap::new();
        for (name, parts) in &self.parts {
            for part in parts.iter().filter(|part| wanted.contains(&(name.0, part.id))) {
                let all =
                    dimensions.entry((name.0, part.id, part.clause)).or_insert_with(|| Some(BTreeSet::new()));
                match (direct(name, ports), &mut *all) {
                    (Some(one), Some(all)) => all.extend(one),
                    _ => *all = None,
                }
            }
        }
        // Without any part it never matches.
        let mut found: HashMap<_, Concerned> =
            wanted.into_iter().map(|id| (id, Some(BTreeSet::new()))).collect();
        let mut known = HashSet::new();
        for ((table, id, _), ports) in dimensions {
            let first = !known.contains(&(table, id));
            if let (Some(entry), true) = (found.get_mut(&(table, id)), first) {
                if ports.is_some() {
                    known.insert((table, id));
                }
                *entry = ports;
            }
        }
        found
    }
}

/// Ports of the bridge; `None` where they cannot be told.
type Concerned = Option<BTreeSet<u32>>;

fn key(name: &Name) -> Key<'_> {
    Key { table: name.0, priority: name.1, fields: &name.2 }
}

/// The ports of a flow that matches a logical port.
fn direct(name: &Name, ports: &HashMap<LogicalPort, BTreeSet<u32>>) -> Concerned {
    let fields = key(name).read();
    let known = |logical: Option<LogicalPort>| ports.get(&logical?).cloned();
    known(fields.source()).or_else(|| known(fields.destination()))
}

fn concerned(
    name: &Name,
    ports: &HashMap<LogicalPort, BTreeSet<u32>>,
    conjunctions: &HashMap<(u8, u32), Concerned>,
) -> Concerned {
    direct(name, ports).or_else(|| {
        let id = key(name).read().conjunction?;
        conjunctions.get(&(name.0, id))?.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ovs::openflow::Fields;

    const DATAPATH: u8 = 3;
    const TABLE: u8 = 51;

    /// A match on fields, each with its header and value.
    fn matched(fields: &[&[u8]]) -> Vec<u8> {
        [&[0, 1, 0, 0], fields.concat().as_slice()].concat()
    }

    fn datapath() -> Vec<u8> {
        vec![0x80, 0, 4, 8, 0, 0, 0, 0, 0, 0, 0, DATAPATH]
    }

    /// Register 14 (`from`) or 15.
    fn register(from: bool, port: u8) -> Vec<u8> {
        vec![0, 1, if from { 28 } else { 30 }, 4, 0, 0, 0, port]
    }

    fn conjunction(id: u8) -> Vec<u8> {
        vec![0, 1, 37 << 1, 4, 0, 0, 0, id]
    }

    fn address(last: u8) -> Vec<u8> {
        vec![0x80, 0, 11 << 1, 4, 10, 0, 0, last]
    }

    struct Flows(Ledger);

    impl Flows {
        /// Port `number` of the bridge is the logical port `port`.
        fn with(ports: &[(u8, u8)]) -> Self {
            let mut flows = Self(Ledger::default());
            for (number, port) in ports {
                let (datapath, from) = (Some(DATAPATH.into()), Some((*port).into()));
                let sets = Fields { datapath, from, ..Fields::default() };
                let fields = matched(&[&[0x80, 0, 0, 4, 0, 0, 0, *number]]);
                flows.put(0, &fields, Deeds { sets, ..Deeds::default() });
            }
            flows
        }

        fn put(&mut self, table: u8, fields: &[u8], deeds: Deeds) {
            self.0.take(Update::Present { key: Key { table, priority: 1, fields }, deeds });
        }

        fn logs(&mut self, fields: &[&[u8]]) {
            self.put(TABLE, &matched(fields), Deeds { effect: Some(Effect::Log), ..Deeds::default() });
        }

        fn part(&mut self, id: u32, clause: u8, fields: &[&[u8]]) {
            let parts = vec![Part { id, clause }];
            self.put(TABLE, &matched(fields), Deeds { parts, ..Deeds::default() });
        }

        /// Whether the node is concerned, and the ports that are.
        fn whom(&mut self) -> (bool, Vec<u32>) {
            let effects = self.0.sum();
            (effects.node.is_some(), effects.ports.keys().copied().collect())
        }
    }

    #[test]
    fn a_flow_that_logs_what_comes_from_or_goes_to_a_port_concerns_that_port_alone() {
        for from in [true, false] {
            let mut flows = Flows::with(&[(4, 1), (5, 2)]);
            flows.logs(&[&datapath(), &register(from, 2)]);
            assert_eq!(flows.whom(), (false, vec![5]));
        }
    }

    #[test]
    fn a_flow_that_matches_tcp_flags_concerns_its_port_or_the_node_until_it_goes() {
        let flags = [0, 1, 34 << 1, 2, 0, 2];
        let mut flows = Flows::with(&[(4, 1), (5, 2)]);
        flows.put(TABLE, &matched(&[&datapath(), &register(true, 2), &flags]), Deeds::default());
        assert_eq!(flows.whom(), (false, vec![5]));
        let fields = matched(&[&datapath(), &flags]);
        flows.put(TABLE, &fields, Deeds::default());
        assert_eq!(flows.whom(), (true, vec![5]));
        flows.0.take(Update::Removed(Key { table: TABLE, priority: 1, fields: &fields }));
        assert_eq!(flows.whom(), (false, vec![5]));
    }

    #[test]
    fn a_flow_that_cannot_be_told_whose_it_is_concerns_the_node() {
        let fields: [&[&[u8]]; 4] = [
            &[&datapath()],
            &[&register(false, 1)],
            // A port that is not of this node, or a router's.
            &[&datapath(), &register(false, 9)],
            &[&datapath(), &address(1)],
        ];
        for fields in fields {
            let mut flows = Flows::with(&[(4, 1)]);
            flows.logs(fields);
            assert_eq!(flows.whom(), (true, vec![]), "{fields:?}");
        }
    }

    #[test]
    fn a_conjunction_concerns_the_ports_of_its_dimension_of_ports() {
        let mut flows = Flows::with(&[(4, 1), (5, 2), (6, 3)]);
        flows.logs(&[&datapath(), &conjunction(7)]);
        flows.part(7, 0, &[&datapath(), &address(1)]);
        flows.part(7, 0, &[&datapath(), &address(2)]);
        flows.part(7, 1, &[&datapath(), &register(false, 1)]);
        flows.part(7, 1, &[&datapath(), &register(false, 2)]);
        // Of another.
        flows.part(8, 1, &[&datapath(), &register(false, 3)]);
        assert_eq!(flows.whom(), (false, vec![4, 5]));
        // One more port that nobody knows: anybody may be meant.
        flows.part(7, 1, &[&datapath(), &register(false, 9)]);
        assert_eq!(flows.whom(), (true, vec![]));
    }

    #[test]
    fn a_port_that_goes_leaves_the_node_concerned_until_its_flow_goes_too() {
        let mut flows = Flows::with(&[(4, 1)]);
        let fields = matched(&[&datapath(), &register(false, 1)]);
        flows.logs(&[&datapath(), &register(false, 1)]);
        assert!(flows.0.changes().is_some());
        assert!(flows.0.changes().is_none(), "nothing new");
        let port = matched(&[&[0x80, 0, 0, 4, 0, 0, 0, 4]]);
        flows.0.take(Update::Removed(Key { table: 0, priority: 1, fields: &port }));
        assert_eq!(flows.whom(), (true, vec![]));
        flows.0.take(Update::Removed(Key { table: TABLE, priority: 1, fields: &fields }));
        assert_eq!(flows.0.changes(), Some(Effects::default()));
    }
}
