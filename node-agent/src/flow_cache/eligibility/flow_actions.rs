//! Flows of br-int whose actions a cached entry cannot repeat, and the ports they affect: flows that log, sample, rate-limit or
//! queue packets, or match fields that differ between packets of one connection. No I/O.
//!
//! Packets that match such a flow must all reach OVS. A flow that matches one logical port of OVN with a port on the bridge, as
//! flows of an ACL or QoS rule for a pod do, excludes that port from the fast path. A flow that matches a conjunction (a port
//! group and an address set) excludes the ports of the dimension that consists of logical ports only. Any other such flow
//! excludes the whole node.
//!
//! Of a switch with a port to a bridge of the administrator's (`localnet`) all ports are told: what becomes of their packets depends on the
//! other bridge, too.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::ovs::openflow::{FlowActions, Key, LogicalPort, Part, Uncacheable, Update};

/// What flows of br-int exclude from the fast path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FlowExclusions {
    /// Why the whole node is excluded; `None` when it is not.
    pub node: Option<String>,
    /// Excluded OpenFlow ports, each with the reason.
    pub ports: BTreeMap<u32, String>,
    /// OpenFlow ports whose switch has a port to a physical network, with the OpenFlow ports that lead there.
    pub on_physical: BTreeMap<u32, BTreeSet<u32>>,
}

/// Key of a flow: table, priority and match.
type Name = (u8, u16, Box<[u8]>);

/// Index of the flows that matter for exclusions, kept current by the flow monitor. Holds about 150 bytes for each flow that is
/// part of a conjunction.
#[derive(Debug)]
pub(in crate::flow_cache) struct FlowIndex {
    uncacheable: HashMap<Name, Uncacheable>,
    parts: HashMap<Name, Vec<Part>>,
    /// Table 0: the logical port assigned to packets of an OpenFlow port.
    origins: HashMap<Name, (u32, LogicalPort)>,
    /// Table 0: the logical port of packets with a tag, or explicitly without one, from another bridge. Only `localnet` ports and
    /// nested containers have such flows (ovn-controller, controller/physical.c).
    providers: HashMap<Name, (u32, LogicalPort)>,
    changed: bool,
}

impl Default for FlowIndex {
    /// An empty index, marked as changed.
    fn default() -> Self {
        Self {
            uncacheable: HashMap::new(),
            parts: HashMap::new(),
            origins: HashMap::new(),
            providers: HashMap::new(),
            changed: true,
        }
    }
}

fn name(key: &Key<'_>) -> Name {
    (key.table, key.priority, key.fields.into())
}

/// Inserts `value`, or removes the entry for `None`; returns true when the map changed.
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

impl FlowIndex {
    /// Applies an update of the flow monitor.
    pub(in crate::flow_cache) fn take(&mut self, update: Update<'_>) {
        let (key, actions, there) = match update {
            Update::Present { key, actions } => (key, actions, true),
            Update::Removed(key) => (key, FlowActions::default(), false),
            Update::Paused(_) | Update::Unknown => return,
        };
        let fields = key.read();
        let origin = fields.in_port.zip(actions.sets.source()).filter(|_| key.table == 0);
        let provider = origin.filter(|_| fields.vlan);
        let per_packet = (there && fields.per_packet).then_some(Uncacheable::PerPacketMatch);
        self.changed |= put(&mut self.uncacheable, &key, actions.uncacheable.or(per_packet));
        self.changed |= put(&mut self.origins, &key, origin);
        self.changed |= put(&mut self.providers, &key, provider);
        self.changed |= put(&mut self.parts, &key, Some(actions.parts).filter(|parts| !parts.is_empty()));
    }

    /// The exclusions; `None` when no relevant flow has changed since the last call.
    pub(in crate::flow_cache) fn changes(&mut self) -> Option<FlowExclusions> {
        std::mem::take(&mut self.changed).then(|| self.exclusions())
    }

    fn exclusions(&self) -> FlowExclusions {
        let mut exclusions = FlowExclusions { on_physical: self.on_physical(), ..FlowExclusions::default() };
        if self.uncacheable.is_empty() {
            return exclusions;
        }
        let mut ports: HashMap<LogicalPort, BTreeSet<u32>> = HashMap::new();
        for (port, logical) in self.origins.values() {
            ports.entry(*logical).or_default().insert(*port);
        }
        let conjunctions = self.conjunctions(&ports);
        let (mut node, mut by_port) = (Vec::new(), BTreeMap::<u32, Vec<(Uncacheable, u8)>>::new());
        for (name, uncacheable) in &self.uncacheable {
            let found = (*uncacheable, name.0);
            match concerned(name, &ports, &conjunctions) {
                Some(ports) => {
                    ports.into_iter().for_each(|port| by_port.entry(port).or_default().push(found))
                }
                None => node.push(found),
            }
        }
        let why = |flows: &[(Uncacheable, u8)], whose: &str| {
            let (uncacheable, table) = flows.iter().min()?;
            Some(format!("{} flows of the bridge {}{whose} (table {table})", flows.len(), uncacheable.verb()))
        };
        exclusions.node = why(&node, "");
        exclusions.ports =
            by_port.iter().filter_map(|(port, flows)| Some((*port, why(flows, " of this port")?))).collect();
        exclusions
    }

    fn on_physical(&self) -> BTreeMap<u32, BTreeSet<u32>> {
        let (mut own, mut ways) = (HashSet::new(), HashMap::<u64, BTreeSet<u32>>::new());
        for (port, logical) in self.providers.values() {
            own.insert(logical);
            ways.entry(logical.datapath).or_default().insert(*port);
        }
        let others = self.origins.values().filter(|(_, logical)| !own.contains(logical));
        others.filter_map(|(port, logical)| Some((*port, ways.get(&logical.datapath)?.clone()))).collect()
    }

    /// Ports of the conjunctions that uncacheable flows match, by table and conjunction id.
    fn conjunctions(&self, ports: &HashMap<LogicalPort, BTreeSet<u32>>) -> HashMap<(u8, u32), Concerned> {
        let fields = |name: &Name| key(name).read();
        let wanted: HashSet<(u8, u32)> =
            self.uncacheable.keys().filter_map(|name| Some((name.0, fields(name).conjunction?))).collect();
        // Ports of each dimension.
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
        // A conjunction without any part never matches.
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

/// OpenFlow ports that a flow affects; `None` when they are unknown.
type Concerned = Option<BTreeSet<u32>>;

fn key(name: &Name) -> Key<'_> {
    Key { table: name.0, priority: name.1, fields: &name.2 }
}

/// Ports of a flow that matches a logical port directly.
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

    /// A match on fields, each with OXM header and value.
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

    struct Flows(FlowIndex);

    impl Flows {
        /// Port `number` of the bridge is the logical port `port`.
        fn with(ports: &[(u8, u8)]) -> Self {
            let mut flows = Self(FlowIndex::default());
            for (number, port) in ports {
                let (datapath, from) = (Some(DATAPATH.into()), Some((*port).into()));
                let sets = Fields { datapath, from, ..Fields::default() };
                let fields = matched(&[&[0x80, 0, 0, 4, 0, 0, 0, *number]]);
                flows.put(0, &fields, FlowActions { sets, ..FlowActions::default() });
            }
            flows
        }

        fn put(&mut self, table: u8, fields: &[u8], actions: FlowActions) {
            self.0.take(Update::Present { key: Key { table, priority: 1, fields }, actions });
        }

        fn logs(&mut self, fields: &[&[u8]]) {
            self.put(
                TABLE,
                &matched(fields),
                FlowActions { uncacheable: Some(Uncacheable::Log), ..FlowActions::default() },
            );
        }

        fn part(&mut self, id: u32, clause: u8, fields: &[&[u8]]) {
            let parts = vec![Part { id, clause }];
            self.put(TABLE, &matched(fields), FlowActions { parts, ..FlowActions::default() });
        }

        /// Whether the node is excluded, and the excluded ports.
        fn excluded(&mut self) -> (bool, Vec<u32>) {
            let exclusions = self.0.exclusions();
            (exclusions.node.is_some(), exclusions.ports.keys().copied().collect())
        }
    }

    #[test]
    fn a_flow_that_logs_what_comes_from_or_goes_to_a_port_concerns_that_port_alone() {
        for from in [true, false] {
            let mut flows = Flows::with(&[(4, 1), (5, 2)]);
            flows.logs(&[&datapath(), &register(from, 2)]);
            assert_eq!(flows.excluded(), (false, vec![5]));
        }
    }

    #[test]
    fn a_flow_that_matches_tcp_flags_concerns_its_port_or_the_node_until_it_goes() {
        let flags = [0, 1, 34 << 1, 2, 0, 2];
        let mut flows = Flows::with(&[(4, 1), (5, 2)]);
        flows.put(TABLE, &matched(&[&datapath(), &register(true, 2), &flags]), FlowActions::default());
        assert_eq!(flows.excluded(), (false, vec![5]));
        let fields = matched(&[&datapath(), &flags]);
        flows.put(TABLE, &fields, FlowActions::default());
        assert_eq!(flows.excluded(), (true, vec![5]));
        flows.0.take(Update::Removed(Key { table: TABLE, priority: 1, fields: &fields }));
        assert_eq!(flows.excluded(), (false, vec![5]));
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
            assert_eq!(flows.excluded(), (true, vec![]), "{fields:?}");
        }
    }

    #[test]
    fn all_ports_of_a_switch_with_a_port_to_a_physical_network_are_told_until_that_goes() {
        let mut flows = Flows::with(&[(4, 1), (5, 2)]);
        let sets =
            |datapath, from| Fields { datapath: Some(datapath), from: Some(from), ..Fields::default() };
        let in_port = |number: u8| [0x80, 0, 0, 4, 0, 0, 0, number];
        // A pod of another switch.
        let other = FlowActions { sets: sets(99, 1), ..FlowActions::default() };
        flows.put(0, &matched(&[&in_port(6)]), other);
        assert!(flows.0.exclusions().on_physical.is_empty());
        let tagged = matched(&[&in_port(40), &[0x80, 0, 0x0c, 2, 0x10, 100]]);
        let actions = FlowActions { sets: sets(DATAPATH.into(), 9), ..FlowActions::default() };
        assert!(flows.0.changes().is_some());
        flows.put(0, &tagged, actions);
        let changes = flows.0.changes().unwrap();
        let way = BTreeSet::from([40]);
        let both = [(4, way.clone()), (5, way)].into();
        assert_eq!((changes.on_physical, changes.node, changes.ports.len()), (both, None, 0));
        flows.0.take(Update::Removed(Key { table: 0, priority: 1, fields: &tagged }));
        assert_eq!(flows.0.changes(), Some(FlowExclusions::default()));
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
        assert_eq!(flows.excluded(), (false, vec![4, 5]));
        // A logical port without a known OpenFlow port may be any port of the node.
        flows.part(7, 1, &[&datapath(), &register(false, 9)]);
        assert_eq!(flows.excluded(), (true, vec![]));
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
        assert_eq!(flows.excluded(), (true, vec![]));
        flows.0.take(Update::Removed(Key { table: TABLE, priority: 1, fields: &fields }));
        assert_eq!(flows.0.changes(), Some(FlowExclusions::default()));
    }
}
