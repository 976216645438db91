//! Planned policies against Kubernetes' rules: random objects are created, changed and deleted. After each change the plan of
//! only the dirty units must equal a fresh plan of everything, and the ACLs must let pass exactly what the rules allow.

#![allow(clippy::unwrap_used, reason = "helpers of tests are test code")]

#[path = "semantics/acl.rs"]
mod acl;
#[path = "semantics/model.rs"]
mod model;

use std::collections::{BTreeMap, BTreeSet};

use acl::{Packet, Rules};
use api::MacAddr;
use api::NamespacedName;
use controller::config::{Config, Features};
use controller::index::policy::Policy;
use controller::index::{ContainerPort, Dirty, Index, Namespace, Node, Pod, Protocol};
use controller::plan::{self, Item, Table};
use controller::unit::Unit;
use model::{Change, End, PORTS, PROTOCOLS, World};
use proptest::prelude::*;
use serde_json::json;

fn config() -> Config {
    Config {
        cluster_subnets: vec!["10.244.0.0/16/24".parse().unwrap()],
        service_cidrs: vec!["10.96.0.0/16".parse().unwrap()],
        join_subnets: vec!["100.64.0.0/16".parse().unwrap()],
        masquerade_subnets: vec!["169.254.169.0/29".parse().unwrap()],
        mtu: 1400,
        host_network_namespace: Some(model::HOST_NAMESPACE.to_owned()),
        default_network: true,
        features: Features::ALL,
    }
}

/// The node of all pods.
fn node() -> Node {
    numbered(0, 10)
}

fn numbered(number: u8, id: u32) -> Node {
    Node {
        name: format!("n{number}"),
        id,
        subnets: vec![format!("10.244.{}.0/24", number + 100).parse().unwrap()],
        addresses: Vec::new(),
        chassis: None,
        gateway: None,
        gateway_unknown: false,
        host_cidrs: Vec::new(),
        userspace_tso: false,
        labels: BTreeMap::new(),
    }
}

fn pod(end: &End) -> Pod {
    let ports = end.ports.iter().map(|(name, protocol, port)| ContainerPort {
        name: Some(name.clone()),
        port: *port,
        protocol: if protocol == "tcp" { Protocol::Tcp } else { Protocol::Udp },
        host_port: None,
        host_ip: None,
    });
    let own = (!end.host_network).then_some(end.ip);
    Pod {
        name: NamespacedName::new(end.namespace.clone().unwrap(), &end.name),
        uid: String::new(),
        created: 0,
        node: "n0".into(),
        host_network: end.host_network,
        labels: end.labels.clone(),
        addresses: own.map(Into::into).into_iter().collect(),
        mac: own.map(MacAddr::from_ip),
        attachments: Vec::new(),
        status_ips: vec![end.ip],
        ports: ports.collect(),
    }
}

fn policy(namespace: &str, name: &str, spec: &serde_json::Value) -> Policy {
    let object = json!({"metadata": {"namespace": namespace, "name": name}, "spec": spec});
    let (policy, problems) = Policy::from_object(&serde_json::from_value(object).unwrap());
    assert_eq!(problems, [], "{spec}");
    policy
}

fn apply(index: &mut Index, change: &Change) -> Dirty {
    match change {
        Change::Namespace(name, Some(labels)) => index.apply_namespace(Namespace {
            name: name.clone(),
            labels: labels.clone(),
            ..Namespace::default()
        }),
        Change::Namespace(name, None) => index.delete_namespace(name),
        Change::Pod(_, _, Some(end)) => index.apply_pod(pod(end)),
        Change::Pod(namespace, name, None) => index.delete_pod(&NamespacedName::new(namespace, name)),
        Change::Policy(namespace, name, Some(spec)) => index.apply_policy(policy(namespace, name, spec)),
        Change::Policy(namespace, name, None) => index.delete_policy(&NamespacedName::new(namespace, name)),
        Change::Node(number, Some(id)) => index.apply_node(numbered(*number, *id)),
        Change::Node(number, None) => index.delete_node(&format!("n{number}")),
    }
}

fn empty() -> Index {
    Index::default().with_host_network_namespace(config().host_network_namespace)
}

fn fresh(world: &World) -> Index {
    let mut index = empty();
    index.apply_node(node());
    // Policies first: the order of arrival must not matter.
    for ((namespace, name), spec) in &world.policies {
        index.apply_policy(policy(namespace, name, spec));
    }
    for end in world.pods.values() {
        index.apply_pod(pod(end));
    }
    for (name, labels) in &world.namespaces {
        index.apply_namespace(Namespace {
            name: name.clone(),
            labels: labels.clone(),
            ..Namespace::default()
        });
    }
    for (number, id) in &world.nodes {
        index.apply_node(numbered(*number, *id));
    }
    index
}

/// Items by unit, without units that have none.
type Planned = BTreeMap<Unit, Vec<Item>>;

fn replan(planned: &mut Planned, index: &Index, config: &Config, dirty: &Dirty) {
    for unit in dirty {
        let items = plan::plan(index, config, unit);
        if items.is_empty() {
            planned.remove(unit);
        } else {
            planned.insert(unit.clone(), items);
        }
    }
}

/// The policies' part of the items, and the names of the ports that exist.
fn of_policies(planned: &Planned) -> (Vec<&Item>, BTreeSet<String>) {
    let is_policy = |table| matches!(table, Table::Acl | Table::PortGroup | Table::AddressSet);
    let mut ports = BTreeSet::new();
    let mut items = Vec::new();
    for (unit, item) in planned.iter().flat_map(|(unit, items)| items.iter().map(move |item| (unit, item))) {
        if matches!(unit, Unit::Cluster | Unit::Node(_)) {
            continue;
        }
        match item {
            Item::Row(row) if row.key.table == Table::LogicalSwitchPort => {
                ports.insert(row.key.key.to_string());
            }
            Item::Row(row) if is_policy(row.key.table) => items.push(item),
            Item::Edge(edge) if is_policy(edge.owner.table) => items.push(item),
            _ => {}
        }
    }
    (items, ports)
}

fn outside() -> [End; 2] {
    ["192.0.2.1", "192.0.2.200"].map(|ip| End {
        namespace: None,
        name: ip.to_owned(),
        labels: BTreeMap::new(),
        host_network: false,
        ip: ip.parse().unwrap(),
        ports: Vec::new(),
    })
}

/// Compares every connection between any two ends.
fn check(world: &World, planned: &Planned) -> Result<(), TestCaseError> {
    let (items, ports) = of_policies(planned);
    let rules = Rules::read(items.into_iter(), &ports);
    let ends: Vec<End> = world.pods.values().cloned().chain(world.node_ends()).chain(outside()).collect();
    let port_of = |end: &End| {
        let namespace = end.namespace.as_ref().filter(|_| !end.host_network)?;
        Some(api::ovn_name::pod_port(namespace, &end.name))
    };
    for from in &ends {
        for to in ends.iter().filter(|to| to.ip != from.ip) {
            for protocol in PROTOCOLS {
                for port in PORTS {
                    let packet = Packet {
                        protocol,
                        source: from.ip,
                        destination: to.ip,
                        port,
                        inport: port_of(from),
                        outport: port_of(to),
                    };
                    let expected = world.allows(from, to, protocol, port);
                    prop_assert_eq!(rules.allow(&packet), expected, "{:?} in {:#?}", packet, world);
                }
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn acls_allow_exactly_what_kubernetes_allows_and_partial_plans_equal_fresh_ones(
        changes in proptest::collection::vec(model::change(), 1..40)
    ) {
        let config = config();
        let (mut world, mut index, mut planned) = (World::default(), empty(), Planned::new());
        replan(&mut planned, &index, &config, &Dirty::from([Unit::Cluster]));
        let dirty = index.apply_node(node());
        replan(&mut planned, &index, &config, &dirty);
        for change in &changes {
            world.apply(change);
            let dirty = apply(&mut index, change);
            replan(&mut planned, &index, &config, &dirty);
            let again = fresh(&world);
            let mut expected = Planned::new();
            replan(&mut expected, &again, &config, &again.units());
            prop_assert_eq!(&planned, &expected, "after {:?}", change);
        }
        check(&world, &planned)?;
    }
}
