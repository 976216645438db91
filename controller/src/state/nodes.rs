//! Nodes: what they are assigned, and what changes for their pods.

use std::collections::{BTreeMap, BTreeSet};

use api::annotation::{NODE_ID, NODE_SUBNETS, NodeSubnets};

use super::{Effects, Notice, NoticeKind, ObjectRef, Patch, State, Watched, network, notices};
use crate::index::convert::{SeenNode, SeenPod};
use crate::index::{Node, Pod};

fn object(node: &SeenNode) -> ObjectRef {
    ObjectRef { kind: "Node", namespace: None, name: node.name.clone(), uid: node.uid.clone() }
}

impl State {
    /// Takes a report about nodes.
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
                // What annotations say is taken before anything free is given away.
                all.sort_by(|a, b| {
                    let lacks = |node: &SeenNode| (node.subnets.is_none(), node.id.is_none());
                    lacks(a).cmp(&lacks(b)).then_with(|| a.name.cmp(&b.name))
                });
                for node in all {
                    self.apply_node(node, &mut effects);
                }
            }
        }
        effects
    }

    fn apply_node(&mut self, seen: SeenNode, effects: &mut Effects) {
        effects.notices.extend(notices(&seen.problems, Some(&object(&seen))));
        let assignment = match self.nodes.assign(&seen) {
            Ok(assignment) => assignment,
            Err(error) => {
                let exhausted = error.is_exhaustion();
                let known = self
                    .failed_nodes
                    .get(&seen.name)
                    .is_some_and(|old| (&old.subnets, &old.id) == (&seen.subnets, &seen.id));
                // Heartbeats change a node every few seconds; the error is told when it is new.
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
        if !matches!(&seen.subnets, Some(Ok(nets)) if *nets == assignment.subnets) {
            annotations.insert(NODE_SUBNETS, NodeSubnets::with_default(assignment.subnets.clone()));
        }
        if !matches!(&seen.id, Some(Ok(id)) if *id == assignment.id) {
            annotations.insert(NODE_ID, assignment.id.to_string());
        }
        if !annotations.is_empty() && self.annotating.insert(seen.uid.clone()) {
            let unreadable = [
                seen.subnets.as_ref().and_then(|s| s.as_ref().err()),
                seen.id.as_ref().and_then(|i| i.as_ref().err()),
            ];
            effects.notices.extend(unreadable.into_iter().flatten().map(|error| Notice {
                kind: NoticeKind::Malformed,
                message: format!("node {}: {error}; written again as the node has it", seen.name),
                object: Some(object(&seen)),
            }));
            effects.patches.push(Patch { object: object(&seen), annotations });
        }
        self.ipam.set_node(&seen.name, &assignment.subnets);
        let name = seen.name.clone();
        // Nobody's traffic is cut off for an annotation that cannot be read: what was known last stays.
        let last = || self.index.nodes.get(&name)?.gateway.clone();
        let gateway = if seen.gateway_unreadable { last() } else { seen.gateway };
        effects.dirty.extend(self.index.apply_node(Node {
            name: seen.name,
            id: assignment.id,
            subnets: assignment.subnets,
            addresses: seen.addresses,
            chassis: seen.chassis,
            gateway,
            host_cidrs: seen.host_cidrs,
            userspace_tso: seen.userspace_tso,
            labels: seen.labels,
        }));
        self.retry_pods(&name, effects);
    }

    fn delete_node(&mut self, name: &str, effects: &mut Effects) {
        self.failed_nodes.remove(name);
        let stranded = self.stranded_pods(name);
        self.nodes.release(name);
        self.ipam.remove_node(name);
        effects.dirty.extend(self.index.delete_node(name));
        for seen in stranded {
            effects.dirty.extend(self.index.apply_pod(seen.pod.clone()));
            self.waiting.insert((seen.created, seen.pod.name.clone()), seen);
        }
        for node in std::mem::take(&mut self.failed_nodes).into_values() {
            self.apply_node(node, effects);
        }
    }

    /// The pods of a node that goes, as they wait for it to come back: with the addresses that they have now.
    fn stranded_pods(&self, node: &str) -> Vec<SeenPod> {
        let pods = self.index.pods_of_node(node).filter_map(|name| self.index.pods.get(name));
        let placed = pods.filter_map(|pod| Some((pod, self.ipam.get(&pod.uid)?)));
        placed
            .map(|(pod, allocation)| SeenPod {
                pod: Pod { addresses: Vec::new(), mac: None, ..pod.clone() },
                finished: false,
                created: 0,
                networks: Some(Ok(network::of_pod(&self.config, allocation))),
            })
            .collect()
    }

    /// A node's annotations have been written, or never will be.
    pub fn annotated(&mut self, uid: &str) {
        self.annotating.remove(uid);
    }
}
