//! Nodes: what is assigned to them, and what their changes mean for their pods.

use std::collections::{BTreeMap, BTreeSet};

use api::addr;
use api::annotation::{CLUSTER_NETWORK, GatewayConfig, NODE_ID, NODE_SUBNETS, NodeSubnets};

use super::claims::Claim;
use super::{Effects, Notice, NoticeKind, ObjectRef, State, Watched, network, notices};
use crate::index::convert::{SeenNode, SeenPod};
use crate::index::{Node, Pod};
use crate::reconcile::leftovers::KeptGateways;
use api::pod_attachments::PodAttachments;

fn object(node: &SeenNode) -> ObjectRef {
    ObjectRef { kind: "Node", namespace: None, name: node.name.clone(), uid: node.uid.clone() }
}

impl State {
    /// Handles a report about nodes.
    pub fn nodes(&mut self, change: Watched<SeenNode, String>) -> Effects {
        let mut effects = Effects::default();
        match change {
            Watched::Apply(node) => self.apply_node(node, &mut effects),
            Watched::Delete(name) => self.delete_node(&name, &mut effects),
            Watched::Reset(mut all) => {
                let there: BTreeSet<_> = all.iter().map(|node| node.name.clone()).collect();
                let known = self.index.nodes.keys().chain(self.failed_nodes.keys());
                let gone: Vec<_> = known.filter(|name| !there.contains(*name)).cloned().collect();
                for name in gone {
                    self.delete_node(&name, &mut effects);
                }
                // A controller assigned what the database holds; annotations may have been overwritten since.
                for found in std::mem::take(&mut self.found_nodes) {
                    if !there.contains(&found.name) {
                        continue;
                    }
                    if let Err(error) = self.nodes.found(&found.name, found.subnets, found.id) {
                        tracing::warn!(node = found.name, %error, "subnets or number of an existing node cannot be reused");
                    }
                }
                // Assignments in annotations are taken before anything free is given away; of two nodes with the same claim the older one
                // has it.
                all.sort_by(|a, b| {
                    let lacks = |node: &SeenNode| (node.subnets.is_none(), node.id.is_none(), node.created);
                    lacks(a).cmp(&lacks(b)).then_with(|| a.name.cmp(&b.name))
                });
                for node in all {
                    self.apply_node(node, &mut effects);
                }
            }
        }
        self.tell_addresses(&mut effects);
        self.tell_gateways(&mut effects);
        effects
    }

    fn apply_node(&mut self, seen: SeenNode, effects: &mut Effects) {
        effects.notices.extend(notices(&seen.problems, Some(&object(&seen))));
        let assignment = match self.nodes.assign(&seen, self.now) {
            Ok(assignment) => assignment,
            Err(error) => {
                let exhausted = error.is_exhaustion();
                let known = self
                    .failed_nodes
                    .get(&seen.name)
                    .is_some_and(|old| (&old.subnets, &old.id) == (&seen.subnets, &seen.id));
                // Heartbeats change a node every few seconds; the error is reported when it is new.
                if !known {
                    effects.notices.push(Notice {
                        kind: if exhausted { NoticeKind::Exhausted } else { NoticeKind::Malformed },
                        message: format!("node {}: {error}", seen.name),
                        object: Some(object(&seen)),
                    });
                }
                self.failed_nodes.insert(seen.name.clone(), seen);
                return;
            }
        };
        self.failed_nodes.remove(&seen.name);
        let mut annotations = BTreeMap::new();
        if seen.subnets_outdated || !matches!(&seen.subnets, Some(Ok(nets)) if *nets == assignment.subnets) {
            annotations.insert(NODE_SUBNETS, NodeSubnets::with_default(assignment.subnets.clone()));
        }
        if !matches!(&seen.id, Some(Ok(id)) if *id == assignment.id) {
            annotations.insert(NODE_ID, assignment.id.to_string());
        }
        let published = self.config.published();
        if seen.cluster_network.as_ref() != Some(&published) {
            annotations.insert(CLUSTER_NETWORK, published);
        }
        if self.annotate(object(&seen), annotations, effects) {
            let unreadable = [
                seen.subnets.as_ref().and_then(|s| s.as_ref().err()),
                seen.id.as_ref().and_then(|i| i.as_ref().err()),
            ];
            effects.notices.extend(unreadable.into_iter().flatten().map(|error| Notice {
                kind: NoticeKind::Malformed,
                message: format!("node {}: {error}; restored to the assigned value", seen.name),
                object: Some(object(&seen)),
            }));
        }
        self.ipam.set_node(&seen.name, &assignment.subnets);
        let name = seen.name.clone();
        // An unreadable annotation must not cut off traffic: the last known gateway stays.
        let last = || self.index.nodes.get(&name)?.gateway.clone();
        let gateway = if seen.gateway_unreadable { last() } else { seen.gateway.clone() };
        let gateway_unknown = seen.gateway_unreadable && gateway.is_none();
        let (chassis, gateway) = self.claimed(&seen, gateway, effects);
        self.set_physical_networks(&name, seen.physical_networks, effects);
        let is_new = !self.index.nodes.contains_key(&name);
        let mut uplinks: Vec<String> = self.index.uplinks_of(&name).map(str::to_owned).collect();
        effects.dirty.extend(self.index.apply_node(Node {
            name: seen.name,
            id: assignment.id,
            subnets: assignment.subnets,
            addresses: seen.addresses,
            chassis,
            gateway,
            gateway_unknown,
            host_cidrs: seen.host_cidrs,
            userspace_tso: seen.userspace_tso,
            labels: seen.labels,
        }));
        if is_new {
            self.yield_to_node(&name, effects);
        }
        uplinks.extend(self.index.uplinks_of(&name).map(str::to_owned));
        uplinks.sort();
        uplinks.dedup();
        self.uplink_changed(&uplinks, effects);
        self.retry_pods(&name, effects);
    }

    /// The chassis and gateway that a node may have: those that no other node has. A conflict is reported for both nodes.
    fn claimed(
        &mut self,
        seen: &SeenNode,
        gateway: Option<GatewayConfig>,
        effects: &mut Effects,
    ) -> (Option<String>, Option<GatewayConfig>) {
        let mut claims: BTreeSet<Claim> = seen.chassis.iter().cloned().map(Claim::Chassis).collect();
        let addresses = gateway.iter().flat_map(|gateway| &gateway.ip_addresses);
        claims.extend(addresses.map(|net| Claim::Gateway(net.addr())));
        let (lost, freed) = self.claims.set(&seen.name, claims);
        if lost.is_empty() {
            self.conflicting.remove(&seen.name);
        } else {
            self.conflicting.insert(seen.name.clone(), seen.clone());
        }
        for (claim, owner) in &lost {
            if !self.claims.tell(&seen.name, claim) {
                continue;
            }
            let owner_object = self.node_object(owner);
            for (on, message) in [
                (
                    object(seen),
                    format!("node {}: {claim} belongs to node {owner} and is not used here", seen.name),
                ),
                (
                    owner_object,
                    format!(
                        "node {owner}: {claim} is also claimed by node {}; node {owner} keeps it",
                        seen.name
                    ),
                ),
            ] {
                effects.notices.push(Notice { kind: NoticeKind::NodeConflict, object: Some(on), message });
            }
        }
        let lost_chassis = lost.iter().any(|(claim, _)| matches!(claim, Claim::Chassis(_)));
        let lost_gateway = lost.iter().any(|(claim, _)| matches!(claim, Claim::Gateway(_)));
        if freed {
            self.retry_conflicts(&seen.name, effects);
        }
        (seen.chassis.clone().filter(|_| !lost_chassis), gateway.filter(|_| !lost_gateway))
    }

    /// Something that a node claimed is free: other nodes may have waited for it.
    fn retry_conflicts(&mut self, but: &str, effects: &mut Effects) {
        let waiting: Vec<SeenNode> =
            self.conflicting.values().filter(|node| node.name != but).cloned().collect();
        for node in waiting {
            self.apply_node(node, effects);
        }
    }

    /// Nodes whose gateway cannot be known until an annotation can be read.
    pub fn kept_gateways(&self) -> KeptGateways {
        let unknown = self.index.nodes.values().filter(|node| node.gateway_unknown);
        unknown
            .map(|node| {
                let joins = self.config.join_addresses(node.id).into_iter().map(|join| join.addr());
                let management = node.subnets.iter().filter_map(addr::management_of);
                (node.name.clone(), joins.chain(management).collect())
            })
            .collect()
    }

    fn delete_node(&mut self, name: &str, effects: &mut Effects) {
        self.forget_node_annotation(name, effects);
        self.failed_nodes.remove(name);
        let stranded = self.stranded_pods(name);
        self.set_physical_networks(name, BTreeSet::new(), effects);
        self.nodes.release(name, self.now);
        self.ipam.remove_node(name);
        let uplinks: Vec<String> = self.index.uplinks_of(name).map(str::to_owned).collect();
        effects.dirty.extend(self.index.delete_node(name));
        self.node_name_is_free(effects);
        self.conflicting.remove(name);
        for seen in stranded {
            effects.dirty.extend(self.index.apply_pod(seen.pod.clone()));
            self.waiting.insert(seen);
        }
        for node in std::mem::take(&mut self.failed_nodes).into_values() {
            self.apply_node(node, effects);
        }
        if self.claims.remove(name) {
            self.retry_conflicts(name, effects);
        }
        self.uplink_changed(&uplinks, effects);
    }

    /// The pods of a node that is deleted, as they wait for it to come back: with their present addresses.
    fn stranded_pods(&self, node: &str) -> Vec<SeenPod> {
        let pods = self.index.pods_of_node(node).filter_map(|name| self.index.pods.get(name));
        let placed = pods.filter_map(|pod| Some((pod, self.ipam.get(&pod.uid)?)));
        placed
            .map(|(pod, allocation)| SeenPod {
                pod: Pod { addresses: Vec::new(), mac: None, ..pod.clone() },
                finished: false,
                created: 0,
                networks: Some(Ok(network::of_pod(&self.config, allocation))),
                others: BTreeMap::new(),
                request: Ok(PodAttachments::default()),
                selections: Ok(Vec::new()),
                stateful_set: None,
                believed: true,
            })
            .collect()
    }
}
