//! The start: nothing is decided before every kind has been listed once, so that nothing is deleted, and no address given
//! away, that an object not yet seen has a right to.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv6Addr};

use api::{MacAddr, addr, ovn_name};
use ipnet::IpNet;
use ovsdb_client::{Snapshot, nb};

use crate::config::Config;
use crate::index::Namespace;
use crate::index::convert::{Problem, SeenNode, SeenPod};
use crate::index::policy::Policy;
use crate::index::service::{EndpointSlice, Service};
use crate::plan::NamespacedName;
use crate::state::{Effects, FoundNode, FoundPort, State, Watched};

/// A report of one of the watches. Objects come with what is wrong with them.
#[derive(Debug)]
pub enum Input {
    Nodes(Watched<SeenNode, String>),
    Pods(Watched<SeenPod, NamespacedName>),
    Namespaces(Watched<Namespace, String>),
    Services(Watched<(Service, Vec<Problem>), NamespacedName>),
    EndpointSlices(Watched<(EndpointSlice, Vec<Problem>), NamespacedName>),
    Policies(Watched<(Policy, Vec<Problem>), NamespacedName>),
}

/// Takes a report into the state.
pub(super) fn apply(state: &mut State, input: Input) -> Effects {
    match input {
        Input::Nodes(change) => state.nodes(change),
        Input::Pods(change) => state.pods(change),
        Input::Namespaces(change) => state.namespaces(change),
        Input::Services(change) => state.services(change),
        Input::EndpointSlices(change) => state.endpoint_slices(change),
        Input::Policies(change) => state.policies(change),
    }
}

/// The first lists, until all are there.
#[derive(Debug, Default)]
pub(super) struct Seeding {
    nodes: Option<Input>,
    namespaces: Option<Input>,
    services: Option<Input>,
    slices: Option<Input>,
    policies: Option<Input>,
    pods: Option<Input>,
    /// What came after the list of a kind, before the last list.
    later: Vec<Input>,
}

impl Seeding {
    fn slot(&mut self, input: &Input) -> &mut Option<Input> {
        match input {
            Input::Nodes(_) => &mut self.nodes,
            Input::Pods(_) => &mut self.pods,
            Input::Namespaces(_) => &mut self.namespaces,
            Input::Services(_) => &mut self.services,
            Input::EndpointSlices(_) => &mut self.slices,
            Input::Policies(_) => &mut self.policies,
        }
    }

    /// Keeps a report.
    pub(super) fn take(&mut self, input: Input) {
        let slot = self.slot(&input);
        if slot.is_none() {
            *slot = Some(input);
        } else {
            self.later.push(input);
        }
    }

    fn lists(&self) -> [(&'static str, &Option<Input>); 6] {
        [
            ("nodes", &self.nodes),
            ("namespaces", &self.namespaces),
            ("services", &self.services),
            ("endpoint slices", &self.slices),
            ("network policies", &self.policies),
            ("pods", &self.pods),
        ]
    }

    /// Whether every kind was listed.
    pub(super) fn is_complete(&self) -> bool {
        self.lists().iter().all(|(_, list)| list.is_some())
    }

    /// The kinds that were not.
    pub(super) fn missing(&self) -> String {
        let missing: Vec<_> =
            self.lists().into_iter().filter(|(_, list)| list.is_none()).map(|(kind, _)| kind).collect();
        missing.join(", ")
    }

    /// Everything, nodes first.
    pub(super) fn into_inputs(self) -> impl Iterator<Item = Input> {
        let lists = [self.nodes, self.namespaces, self.pods, self.services, self.slices, self.policies];
        lists.into_iter().flatten().chain(self.later)
    }
}

/// The pod ports that the database holds.
pub(super) fn found_ports(snapshot: &Snapshot<'_>) -> Vec<FoundPort> {
    let ports = snapshot.table::<nb::LogicalSwitchPort>();
    let mut found = Vec::new();
    for switch in snapshot.table::<nb::LogicalSwitch>().iter() {
        for port in switch.ports.iter().filter_map(|uuid| ports.get(uuid)) {
            if port.external_ids.get("pod").is_none_or(|pod| pod != "true") {
                continue;
            }
            let Some(uid) = port.options.get("iface-id-ver") else { continue };
            // `MAC IP [IP]`
            let mut words = port.addresses.iter().next().map(|text| text.split(' ')).into_iter().flatten();
            let Some(mac) = words.next().and_then(|mac| mac.parse::<MacAddr>().ok()) else { continue };
            let ips: Vec<_> = words.filter_map(|ip| ip.parse().ok()).collect();
            if !ips.is_empty() {
                found.push(FoundPort { uid: uid.clone(), node: switch.name.clone(), ips, mac });
            }
        }
    }
    found.sort_by(|a, b| a.uid.cmp(&b.uid));
    found
}

/// UIDs of the pods of which the database has a port.
pub(super) fn port_uids(snapshot: &Snapshot<'_>) -> HashSet<String> {
    let ports = snapshot.table::<nb::LogicalSwitchPort>().iter();
    ports.filter_map(|port| port.options.get("iface-id-ver").cloned()).collect()
}

/// The nodes that the database holds: switches with their ranges, and the numbers of their gateway routers on the join switch.
pub(super) fn found_nodes(snapshot: &Snapshot<'_>, config: &Config) -> Vec<FoundNode> {
    let router_ports = snapshot.table::<nb::LogicalRouterPort>();
    let mut found = Vec::new();
    for switch in snapshot.table::<nb::LogicalSwitch>().iter() {
        let join = ovn_name::router_to_join(&ovn_name::gateway_router(&switch.name));
        let joined = router_ports.iter().find(|port| port.name == join);
        let id = joined.and_then(|port| {
            port.networks.iter().filter_map(|net| net.parse::<IpNet>().ok()).find_map(|net| {
                let range = config.join(net.addr())?;
                (2..=u32::from(u16::MAX)).find(|id| addr::join_of(&range, *id) == Some(net.addr()))
            })
        });
        let subnet = switch.other_config.get("subnet").and_then(|net| net.parse::<IpNet>().ok());
        let prefix = switch.other_config.get("ipv6_prefix").and_then(|ip| ip.parse::<Ipv6Addr>().ok());
        let lengths = |ip: IpAddr| {
            config
                .cluster_subnets
                .iter()
                .find(|subnet| subnet.cidr.contains(&ip))
                .map(|subnet| subnet.host_len)
        };
        let v6 = prefix.and_then(|ip| IpNet::new(ip.into(), lengths(ip.into())?).ok());
        let subnets: Vec<IpNet> = subnet.into_iter().chain(v6).collect();
        if let (Some(id), false) = (id, subnets.is_empty()) {
            found.push(FoundNode { name: switch.name.clone(), subnets, id });
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}
