//! Kubernetes' rules for network policies, evaluated on the objects as they are written, and generators of random objects.
//! Shares no code with the code under test.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use serde_json::{Value, json};

pub(crate) const NAMESPACES: [&str; 3] = ["x", "y", "z"];
/// The namespace that represents the nodes. It may contain pods as any other.
pub(crate) const HOST_NAMESPACE: &str = "z";
pub(crate) const NODES: u8 = 2;
pub(crate) const PORTS: [u16; 3] = [80, 81, 85];
pub(crate) const PROTOCOLS: [&str; 4] = ["tcp", "udp", "sctp", "icmp4"];

pub(crate) type Labels = BTreeMap<String, String>;

/// A pod, a node itself (as a host-network pod without name in the namespace that represents the nodes), or (without
/// namespace) something outside the cluster.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct End {
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
    pub(crate) labels: Labels,
    pub(crate) host_network: bool,
    pub(crate) ip: IpAddr,
    /// Name, protocol in lower case, number.
    pub(crate) ports: Vec<(String, String, u16)>,
}

/// All objects of a cluster.
#[derive(Debug, Clone, Default)]
pub(crate) struct World {
    pub(crate) namespaces: BTreeMap<String, Labels>,
    pub(crate) pods: BTreeMap<(String, String), End>,
    pub(crate) policies: BTreeMap<(String, String), Value>,
    /// Nodes by number, with the number from which their join address is derived.
    pub(crate) nodes: BTreeMap<u8, u32>,
}

/// A change of the cluster.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    Namespace(String, Option<Labels>),
    Pod(String, String, Option<End>),
    Policy(String, String, Option<Value>),
    Node(u8, Option<u32>),
}

impl World {
    pub(crate) fn apply(&mut self, change: &Change) {
        fn set<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
            match value {
                Some(value) => drop(map.insert(key, value)),
                None => drop(map.remove(&key)),
            }
        }
        match change.clone() {
            Change::Namespace(name, labels) => set(&mut self.namespaces, name, labels),
            Change::Pod(namespace, name, pod) => set(&mut self.pods, (namespace, name), pod),
            Change::Policy(namespace, name, spec) => set(&mut self.policies, (namespace, name), spec),
            Change::Node(number, id) => set(&mut self.nodes, number, id),
        }
    }

    /// The nodes' own programs, as pods see them: with the addresses of the management port and of the join switch. The addresses
    /// of a node that does not exist (any more) are like any other.
    pub(crate) fn node_ends(&self) -> Vec<End> {
        let of = |number: u8| {
            let id = self.nodes.get(&number);
            let join = format!("100.64.0.{}", id.copied().unwrap_or(u32::from(number) + 100));
            let exists = id.is_some();
            [format!("10.244.{}.2", number + 100), join].map(|ip| End {
                namespace: exists.then(|| HOST_NAMESPACE.to_owned()),
                name: String::new(),
                labels: Labels::new(),
                host_network: true,
                ip: ip.parse().unwrap(),
                ports: Vec::new(),
            })
        };
        (1..=NODES).flat_map(of).collect()
    }

    /// True when Kubernetes lets a connection pass.
    pub(crate) fn allows(&self, from: &End, to: &End, protocol: &str, port: u16) -> bool {
        self.side(from, to, to, protocol, port, "Egress")
            && self.side(to, from, to, protocol, port, "Ingress")
    }

    /// The policies of one end: open unless some policy of the direction selects it, then what any of them allows.
    fn side(&self, own: &End, peer: &End, to: &End, protocol: &str, port: u16, direction: &str) -> bool {
        let Some(namespace) = own.namespace.as_ref().filter(|_| !own.host_network) else { return true };
        let mut isolated = false;
        for ((of, _), spec) in &self.policies {
            if of != namespace
                || !selects(&spec["podSelector"], &own.labels)
                || !has_direction(spec, direction)
            {
                continue;
            }
            isolated = true;
            let (rules, peers) = if direction == "Ingress" { ("ingress", "from") } else { ("egress", "to") };
            for rule in items(&spec[rules]) {
                let peers = items(&rule[peers]);
                let ports = items(&rule["ports"]);
                let peer_ok = peers.is_empty() || peers.iter().any(|p| self.is_peer(p, of, peer));
                let port_ok = ports.is_empty() || ports.iter().any(|p| is_port(p, to, protocol, port));
                if peer_ok && port_ok {
                    return true;
                }
            }
        }
        !isolated
    }

    fn is_peer(&self, peer: &Value, policy_namespace: &str, end: &End) -> bool {
        if let Some(block) = peer.get("ipBlock") {
            let inside = |text: &Value| text.as_str().unwrap().parse::<IpNet>().unwrap().contains(&end.ip);
            return inside(&block["cidr"]) && !items(&block["except"]).iter().any(inside);
        }
        let Some(namespace) = &end.namespace else { return false };
        let in_namespace = match peer.get("namespaceSelector") {
            None => namespace == policy_namespace,
            Some(selector) => self.namespaces.get(namespace).is_some_and(|labels| selects(selector, labels)),
        };
        // Kubernetes leaves open whether a host-network pod is one of its namespace's pods; here it is not, unless a pod
        // selector selects it.
        let is_node = end.name.is_empty();
        if is_node {
            // The nodes are selected where the labels of their namespace are, and no pods in particular.
            return in_namespace
                && peer.get("podSelector").is_none()
                && peer.get("namespaceSelector").is_some();
        }
        in_namespace
            && peer.get("podSelector").map_or(!end.host_network, |selector| selects(selector, &end.labels))
    }
}

fn items(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

fn has_direction(spec: &Value, direction: &str) -> bool {
    let types = items(&spec["policyTypes"]);
    if types.is_empty() {
        return direction == "Ingress" || !items(&spec["egress"]).is_empty();
    }
    types.iter().any(|text| text == direction)
}

fn selects(selector: &Value, labels: &Labels) -> bool {
    let equal = selector["matchLabels"].as_object().into_iter().flatten();
    equal.into_iter().all(|(key, value)| labels.get(key).map(String::as_str) == value.as_str())
        && items(&selector["matchExpressions"]).iter().all(|expression| {
            let value = labels.get(expression["key"].as_str().unwrap());
            let listed = value.is_some_and(|value| items(&expression["values"]).iter().any(|v| v == value));
            match expression["operator"].as_str().unwrap() {
                "In" => listed,
                "NotIn" => !listed,
                "Exists" => value.is_some(),
                _ => value.is_none(),
            }
        })
}

fn is_port(rule: &Value, to: &End, protocol: &str, port: u16) -> bool {
    if rule["protocol"].as_str().unwrap_or("TCP").to_lowercase() != protocol {
        return false;
    }
    match &rule["port"] {
        Value::Null => true,
        Value::String(name) => {
            let declared = to.ports.iter().find(|(n, p, _)| n == name && p == protocol);
            declared.is_some_and(|(_, _, number)| *number == port)
        }
        number => {
            let first = number.as_u64().unwrap();
            (first..=rule["endPort"].as_u64().unwrap_or(first)).contains(&u64::from(port))
        }
    }
}

fn labels() -> impl Strategy<Value = Labels> {
    let value = || option::of(prop_oneof![Just("1"), Just("2")]);
    (value(), value()).prop_map(|(app, tier)| {
        let pairs = [("app", app), ("tier", tier)];
        pairs.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned()))).collect()
    })
}

fn selector() -> impl Strategy<Value = Value> {
    let key = || prop_oneof![Just("app"), Just("tier")];
    prop_oneof![
        2 => Just(json!({})),
        3 => (key(), 1..3u8).prop_map(|(key, value)| json!({"matchLabels": {key: value.to_string()}})),
        2 => (key(), prop_oneof![Just("In"), Just("NotIn")], vec(1..3u8, 1..3)).prop_map(|(key, operator, values)| {
            let values: Vec<String> = values.iter().map(ToString::to_string).collect();
            json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]})
        }),
        1 => (key(), prop_oneof![Just("Exists"), Just("DoesNotExist")])
            .prop_map(|(key, operator)| json!({"matchExpressions": [{"key": key, "operator": operator}]})),
    ]
}

fn peer() -> impl Strategy<Value = Value> {
    let block = prop_oneof![
        Just(json!({"cidr": "10.244.0.0/16"})),
        Just(json!({"cidr": "10.244.0.0/16", "except": ["10.244.1.0/24"]})),
        Just(json!({"cidr": "10.244.0.0/16", "except": ["10.244.0.1/32", "10.244.1.0/31"]})),
        Just(json!({"cidr": "0.0.0.0/0", "except": ["10.244.0.0/24", "192.0.2.1/32", "10.244.2.2/32"]})),
        Just(json!({"cidr": "10.244.1.1/32"})),
        Just(json!({"cidr": "192.0.2.0/25"})),
    ];
    prop_oneof![
        3 => selector().prop_map(|pods| json!({"podSelector": pods})),
        2 => selector().prop_map(|namespaces| json!({"namespaceSelector": namespaces})),
        2 => (selector(), selector())
            .prop_map(|(namespaces, pods)| json!({"namespaceSelector": namespaces, "podSelector": pods})),
        3 => block.prop_map(|block| json!({"ipBlock": block})),
    ]
}

fn port() -> impl Strategy<Value = Value> {
    let protocol = || option::of(prop_oneof![Just("TCP"), Just("UDP"), Just("SCTP")]);
    let port = prop_oneof![
        2 => Just(json!({})),
        3 => (80..82).prop_map(|port| json!({"port": port})),
        2 => (80..83, 0..6).prop_map(|(port, more)| json!({"port": port, "endPort": port + more})),
        4 => prop_oneof![Just("web"), Just("query"), Just("nobody")].prop_map(|name| json!({"port": name})),
    ];
    (protocol(), port).prop_map(|(protocol, mut port)| {
        if let Some(protocol) = protocol {
            port["protocol"] = protocol.into();
        }
        port
    })
}

fn rule(peers: &'static str) -> impl Strategy<Value = Value> {
    (option::of(vec(peer(), 0..4)), option::of(vec(port(), 0..3))).prop_map(move |(list, ports)| {
        let mut rule = json!({});
        if let Some(list) = list {
            rule[peers] = list.into();
        }
        if let Some(ports) = ports {
            rule["ports"] = ports.into();
        }
        rule
    })
}

fn policy() -> impl Strategy<Value = Value> {
    let types = prop_oneof![
        Just(json!(null)),
        Just(json!(["Ingress"])),
        Just(json!(["Egress"])),
        Just(json!(["Ingress", "Egress"]))
    ];
    (selector(), types, option::of(vec(rule("from"), 0..3)), option::of(vec(rule("to"), 0..3))).prop_map(
        |(selector, types, ingress, egress)| {
            json!({"podSelector": selector, "policyTypes": types, "ingress": ingress, "egress": egress})
        },
    )
}

fn pod(namespace: usize, number: usize) -> impl Strategy<Value = End> {
    let ports = vec(
        (prop_oneof![Just("web"), Just("query")], prop_oneof![Just("tcp"), Just("udp")], 80..82u16),
        0..3,
    );
    (labels(), prop::bool::weighted(0.2), ports).prop_map(move |(labels, host_network, ports)| {
        let net = if host_network { "172.18" } else { "10.244" };
        End {
            namespace: Some(NAMESPACES[namespace].to_owned()),
            name: format!("p{number}"),
            labels,
            host_network,
            ip: format!("{net}.{namespace}.{number}").parse().unwrap(),
            ports: ports
                .into_iter()
                .map(|(name, protocol, port)| (name.to_owned(), protocol.to_owned(), port))
                .collect(),
        }
    })
}

/// A change of one of few objects, so that objects are changed and deleted as often as they are created.
pub(crate) fn change() -> impl Strategy<Value = Change> {
    let place = || (0..NAMESPACES.len(), 1..4usize);
    prop_oneof![
        2 => (0..NAMESPACES.len(), option::weighted(0.85, labels()))
            .prop_map(|(i, labels)| Change::Namespace(NAMESPACES[i].to_owned(), labels)),
        5 => place()
            .prop_flat_map(|(i, n)| (Just((i, n)), option::weighted(0.85, pod(i, n))))
            .prop_map(|((i, n), pod)| Change::Pod(NAMESPACES[i].to_owned(), format!("p{n}"), pod)),
        1 => (1..=NODES, option::weighted(0.8, 2..5u32)).prop_map(|(number, id)| Change::Node(number, id)),
        4 => (place(), option::weighted(0.8, policy()))
            .prop_map(|((i, n), policy)| Change::Policy(NAMESPACES[i].to_owned(), format!("np{n}"), policy)),
    ]
}
