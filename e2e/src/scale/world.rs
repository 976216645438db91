//! What is in the cluster by the tests' own book: namespaces, pods, policies, services; and what must come of it in the
//! northbound database. Knows neither client nor database.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use api::ovn_name;
use serde_json::{Value, json};

use super::node;
use super::policy::{Direction, Labels, Peer, Policy, deny_group, labels, takes};
use crate::random::Random;

/// As many pods as a node's range has room for, with some to spare.
const PODS_ON_A_NODE: usize = 200;

/// How much of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) nodes: usize,
    pub(super) pods: usize,
    pub(super) services: usize,
    pub(super) policies: usize,
}

impl Size {
    /// Fails with what does not fit.
    pub(super) fn validate(self) -> Result<()> {
        let Self { nodes, pods, services, .. } = self;
        ensure!((1..=node::MOST).contains(&nodes), "--nodes {nodes}: 1 to {} are possible", node::MOST);
        let most = nodes * PODS_ON_A_NODE;
        ensure!(
            (1..=most).contains(&pods),
            "--pods {pods}: {nodes} nodes have room for {most}; at least 1 is needed"
        );
        // The range of node ports.
        ensure!(services <= 2000, "--services {services}: at most 2000 get a node port");
        Ok(())
    }

    /// How many namespaces these pods are in.
    fn namespaces(self) -> usize {
        (self.pods / 20).clamp(1, 100)
    }
}

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pod {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) node: String,
    pub(super) labels: Labels,
}

impl Pod {
    /// The name of its switch port.
    pub(super) fn port(&self) -> String {
        ovn_name::pod_port(&self.namespace, &self.name)
    }

    /// The object, bound to its node, with one more label of the caller's.
    pub(super) fn object(&self) -> Result<k8s_openapi::api::core::v1::Pod> {
        let mut pod = testbed::pod::manifest(&self.namespace, &self.name, Some(&self.node));
        pod["metadata"]["labels"] = serde_json::to_value(&self.labels)?;
        Ok(serde_json::from_value(pod)?)
    }
}

/// A service with a port on every node, whose endpoints are pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Service {
    pub(super) namespace: String,
    pub(super) name: String,
    /// Its endpoints are asked on their own nodes only.
    pub(super) local: bool,
    /// Switch ports of the pods behind it.
    pub(super) backends: Vec<String>,
}

impl Service {
    /// As load balancers name their owner.
    pub(super) fn owner(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// The object. It selects nothing: its slice is made by the test.
    pub(super) fn json(&self) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": {
                "type": "NodePort",
                "externalTrafficPolicy": if self.local { "Local" } else { "Cluster" },
                "ports": [{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}],
            },
        })
    }

    /// Its slice; each endpoint with the node that it is on.
    pub(super) fn slice(&self, endpoints: &[(String, String)]) -> Value {
        let endpoints: Vec<_> = endpoints
            .iter()
            .map(|(ip, node)| json!({"addresses": [ip], "nodeName": node, "conditions": {"ready": true}}))
            .collect();
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": self.name, "namespace": self.namespace,
                         "labels": {"kubernetes.io/service-name": self.name}},
            "addressType": "IPv4",
            "endpoints": endpoints,
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        })
    }
}

/// Everything.
#[derive(Clone, Debug, Default)]
pub(super) struct World {
    /// Labels by name.
    pub(super) namespaces: BTreeMap<String, Labels>,
    /// By the name of their switch port.
    pub(super) pods: BTreeMap<String, Pod>,
    /// By namespace, then name.
    pub(super) policies: BTreeMap<String, BTreeMap<String, Policy>>,
    pub(super) services: Vec<Service>,
}

impl World {
    /// A world of that size.
    pub(super) fn new(size: Size, random: &mut Random) -> Self {
        let mut world = Self::default();
        let count = size.namespaces();
        let names: Vec<String> = (0..count).map(|i| format!("ns{i:03}")).collect();
        for (i, name) in names.iter().enumerate() {
            world.namespaces.insert(name.clone(), labels([("team", &format!("t{}", i % 10))]));
        }
        for i in 0..size.pods {
            let pod = some_pod(random, &names, &format!("p{i:05}"), node::name(i % size.nodes));
            world.add_pod(pod);
        }
        for i in 0..size.policies {
            world.add_policy(some_policy(&names[i % count], i % count, i / count));
        }
        let ports: Vec<String> = world.pods.keys().cloned().collect();
        for i in 0..size.services {
            let backends = (0..3).filter_map(|_| random.pick(&ports).cloned()).collect::<BTreeSet<_>>();
            world.services.push(Service {
                namespace: names[i % count].clone(),
                name: format!("s{i:04}"),
                local: i % 10 == 9,
                backends: backends.into_iter().collect(),
            });
        }
        world
    }

    /// Notes a pod, or that it is another now.
    pub(super) fn add_pod(&mut self, pod: Pod) {
        self.pods.insert(pod.port(), pod);
    }

    /// Notes a policy, or that it is another now.
    pub(super) fn add_policy(&mut self, policy: Policy) {
        let of_namespace = self.policies.entry(policy.namespace.clone()).or_default();
        of_namespace.insert(policy.name.clone(), policy);
    }

    /// All policies.
    pub(super) fn policies(&self) -> impl Iterator<Item = &Policy> {
        self.policies.values().flat_map(BTreeMap::values)
    }

    fn selecting<'a>(&'a self, pod: &'a Pod) -> impl Iterator<Item = &'a Policy> {
        let of_namespace = self.policies.get(&pod.namespace).into_iter().flat_map(BTreeMap::values);
        of_namespace.filter(|policy| takes(&policy.selects, &pod.labels))
    }

    /// The groups that close a pod: without one of them it is open in a direction in which a policy isolates it.
    pub(super) fn closing(&self, pod: &Pod) -> BTreeSet<String> {
        self.selecting(pod).map(|policy| deny_group(&pod.namespace, policy.direction)).collect()
    }

    /// All groups of policies that a pod is to be in.
    pub(super) fn groups(&self, pod: &Pod) -> BTreeSet<String> {
        let mut groups = self.closing(pod);
        groups.extend(self.selecting(pod).map(Policy::group));
        groups
    }

    /// The groups of all policies, with the ports that are to be in each.
    pub(super) fn members(&self) -> BTreeMap<String, BTreeSet<&str>> {
        let mut members: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        for policy in self.policies() {
            members.entry(policy.group()).or_default();
            for direction in Direction::ALL {
                members.entry(deny_group(&policy.namespace, direction)).or_default();
            }
        }
        for (port, pod) in &self.pods {
            for group in self.groups(pod) {
                members.entry(group).or_default().insert(port);
            }
        }
        members
    }

    /// The ports of the pods that a policy lets through; `None` where it names no pods.
    pub(super) fn peers(&self, policy: &Policy) -> Option<BTreeSet<&str>> {
        let is_peer = |pod: &Pod| match policy.allows.as_ref()? {
            Peer::Pods(labels) => Some(pod.namespace == policy.namespace && takes(labels, &pod.labels)),
            Peer::Namespaces(labels) => {
                Some(self.namespaces.get(&pod.namespace).is_some_and(|of| takes(labels, of)))
            }
            Peer::Block(_) => None,
        };
        let mut peers = BTreeSet::new();
        for (port, pod) in &self.pods {
            if is_peer(pod)? {
                peers.insert(port.as_str());
            }
        }
        Some(peers)
    }
}

/// A pod with labels by chance.
pub(super) fn some_pod(random: &mut Random, namespaces: &[String], name: &str, node: String) -> Pod {
    let namespace = random.pick(namespaces).cloned().unwrap_or_default();
    Pod { namespace, name: name.to_owned(), node, labels: some_labels(random) }
}

/// Labels of a pod by chance.
pub(super) fn some_labels(random: &mut Random) -> Labels {
    let tier = random.pick(&["front", "middle", "back"]).copied().unwrap_or("front");
    labels([("app", &format!("a{}", random.below(10))), ("tier", tier)])
}

/// The policy of a namespace with that number: of four, one closes everything (in every other namespace), the others
/// have a peer of one kind each.
fn some_policy(namespace: &str, index: usize, number: usize) -> Policy {
    let name = format!("p{number:03}");
    let app = labels([("app", &format!("a{}", (index + number) % 10))]);
    let (selects, direction, allows) = match number % 4 {
        0 if index.is_multiple_of(2) => (Labels::new(), Direction::Ingress, None),
        0 => (labels([("tier", "back")]), Direction::Ingress, Some(Peer::Pods(labels([("tier", "middle")])))),
        1 => (app, Direction::Ingress, Some(Peer::Pods(labels([("tier", "front")])))),
        2 => {
            let team = format!("t{}", (index + 1) % 10);
            let peer = Peer::Namespaces(labels([("team", &team)]));
            (labels([("tier", "middle")]), Direction::Ingress, Some(peer))
        }
        _ => (app, Direction::Egress, Some(Peer::Block(format!("192.0.{}.0/24", index % 200)))),
    };
    Policy { namespace: namespace.to_owned(), name, selects, direction, allows }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size { nodes: 5, pods: 400, services: 10, policies: 100 };

    #[test]
    fn the_same_seed_gives_the_same_world() {
        let world = |seed| World::new(SIZE, &mut Random::new(seed));
        assert_eq!(world(1).pods, world(1).pods);
        assert_ne!(world(1).pods, world(2).pods);
        let world = world(1);
        assert_eq!(
            (world.pods.len(), world.policies().count(), world.services.len(), world.namespaces.len()),
            (400, 100, 10, 20)
        );
    }

    #[test]
    fn some_pods_are_closed_and_some_open_and_every_policy_has_pods() {
        let world = World::new(SIZE, &mut Random::new(1));
        let closed = world.pods.values().filter(|pod| !world.closing(pod).is_empty()).count();
        assert!(closed > 200 && closed < 400, "{closed}");
        let empty = world.members().values().filter(|members| members.is_empty()).count();
        assert!(empty < 40, "{empty} groups of 140 without a pod");
        assert!(world.policies().any(|p| world.peers(p).is_some_and(|peers| peers.len() > 20)));
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_flag() {
        let told = |size: Size| size.validate().unwrap_err().to_string();
        assert!(told(Size { pods: 1001, ..SIZE }).contains("--pods"));
        assert!(told(Size { nodes: 2000, ..SIZE }).contains("--nodes"));
        assert!(told(Size { services: 3000, ..SIZE }).contains("--services"));
        assert!(SIZE.validate().is_ok());
    }
}
