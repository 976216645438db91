//! Pods: their addresses, from the annotation, from the port that is in the database already, or newly given.

use std::collections::{BTreeMap, BTreeSet};

use api::annotation::{POD_NETWORKS, PodNetworks};
use api::host_port::Conflict;

use super::{Effects, Notice, NoticeKind, ObjectRef, Patch, State, Watched, network};
use crate::alloc::{Allocation, IpamError};
use crate::index::convert::SeenPod;
use crate::plan::{NamespacedName, Unit};

fn object(seen: &SeenPod) -> ObjectRef {
    let NamespacedName { namespace, name } = seen.pod.name.clone();
    ObjectRef { kind: "Pod", namespace: Some(namespace), name, uid: seen.pod.uid.clone() }
}

impl State {
    /// Takes a report about pods. Pods that are bound to no node are not reported.
    pub fn pods(&mut self, change: Watched<SeenPod, NamespacedName>) -> Effects {
        let mut effects = Effects::default();
        match change {
            Watched::Apply(pod) => self.apply_pod(pod, &mut effects),
            Watched::Delete(name) => self.delete_pod(&name, &mut effects),
            Watched::Reset(all) => self.reset_pods(all, &mut effects),
        }
        effects
    }

    fn reset_pods(&mut self, mut all: Vec<SeenPod>, effects: &mut Effects) {
        let there: BTreeSet<_> = all.iter().map(|seen| seen.pod.name.clone()).collect();
        let gone: Vec<_> = self.uids.keys().filter(|name| !there.contains(name)).cloned().collect();
        for name in gone {
            self.delete_pod(&name, effects);
        }
        // First who has an address by annotation, then who has one by a port in the database, then the others by age. An
        // annotation that cannot be read is as good as none: the port may still tell.
        let bare = |seen: &SeenPod| !matches!(seen.networks, Some(Ok(_)));
        all.sort_by(|a, b| {
            let order = |seen: &SeenPod| (bare(seen), seen.created);
            order(a).cmp(&order(b)).then_with(|| a.pod.name.cmp(&b.pod.name))
        });
        let bare = all.partition_point(|seen| !bare(seen));
        let rest = all.split_off(bare);
        for seen in all {
            self.apply_pod(seen, effects);
        }
        let mut found = Vec::new();
        for port in std::mem::take(&mut self.found_ports) {
            if self.ipam.get(&port.uid).is_some() {
                continue;
            }
            match self.ipam.claim(&port.uid, &port.node, &port.ips, port.mac) {
                Ok(_) => found.push(port.uid),
                Err(error) => {
                    tracing::info!(uid = port.uid, node = port.node, %error, "a port in the database does not keep its address");
                }
            }
        }
        for seen in rest {
            self.apply_pod(seen, effects);
        }
        // Ports of pods that are gone keep their addresses until the ports are gone too.
        let live: BTreeSet<&String> = self.uids.values().collect();
        effects.release.extend(found.into_iter().filter(|uid| !live.contains(uid)));
    }

    fn apply_pod(&mut self, seen: SeenPod, effects: &mut Effects) {
        let name = seen.pod.name.clone();
        if self.uids.get(&name).is_some_and(|uid| *uid != seen.pod.uid) {
            // Deleted and created again, and the watch told only the end of it.
            self.forget(&name, effects);
        }
        if seen.finished {
            self.delete_pod(&name, effects);
            return;
        }
        self.uids.insert(name, seen.pod.uid.clone());
        if seen.pod.host_network {
            effects.dirty.extend(self.index.apply_pod(seen.pod));
            return;
        }
        match self.address(&seen) {
            Ok(Some(allocation)) => self.place(seen, &allocation, effects),
            Ok(None) => self.wait(seen, None, effects),
            Err(notice) => self.wait(seen, Some(notice), effects),
        }
    }

    /// The pod's addresses; `None` until its node has ranges.
    fn address(&mut self, seen: &SeenPod) -> Result<Option<Allocation>, Notice> {
        let uid = &seen.pod.uid;
        if let Some(allocation) = self.ipam.get(uid) {
            return Ok(Some(allocation.clone()));
        }
        let malformed = |message: String| Notice {
            kind: NoticeKind::Malformed,
            object: Some(object(seen)),
            message: format!("pod {}: {message}", seen.pod.name),
        };
        let found = match &seen.networks {
            Some(Err(error)) => return Err(malformed(error.to_string())),
            Some(Ok(network)) => {
                let ips: Vec<_> = network.ip_addresses.iter().map(ipnet::IpNet::addr).collect();
                let claimed = self.ipam.claim(uid, &seen.pod.node, &ips, network.mac_address);
                claimed.map_err(|error| match error {
                    IpamError::NoNode(_) => error,
                    other => IpamError::Annotation(Box::new(other)),
                })
            }
            None => self.ipam.allocate(uid, &seen.pod.node),
        };
        match found {
            Ok(allocation) => Ok(Some(allocation)),
            Err(IpamError::NoNode(_)) => Ok(None),
            Err(error @ IpamError::Exhausted(_)) => Err(Notice {
                kind: NoticeKind::Exhausted,
                object: Some(object(seen)),
                message: format!("pod {}: node {}: {error}", seen.pod.name, seen.pod.node),
            }),
            Err(error) => Err(malformed(error.to_string())),
        }
    }

    /// Gives a pod its addresses.
    fn place(&mut self, mut seen: SeenPod, allocation: &Allocation, effects: &mut Effects) {
        self.waiting.remove(&(seen.created, seen.pod.name.clone()));
        let written = matches!(&seen.networks, Some(Ok(network))
            if network.ip_addresses == allocation.addresses && network.mac_address == allocation.mac);
        if !written && self.annotating.insert(seen.pod.uid.clone()) {
            if let Some(Err(error)) = &seen.networks {
                effects.notices.push(Notice {
                    kind: NoticeKind::Malformed,
                    object: Some(object(&seen)),
                    message: format!("pod {}: {error}; written again as the pod has it", seen.pod.name),
                });
            }
            let value = PodNetworks::with_default(network::of_pod(&self.config, allocation));
            effects
                .patches
                .push(Patch { object: object(&seen), annotations: BTreeMap::from([(POD_NETWORKS, value)]) });
        }
        seen.pod.addresses.clone_from(&allocation.addresses);
        seen.pod.mac = Some(allocation.mac);
        let pod = object(&seen);
        let (name, node) = (seen.pod.name.clone(), seen.pod.node.clone());
        let dirty = self.index.apply_pod(seen.pod);
        if dirty.contains(&Unit::HostPorts(node.clone())) {
            self.host_port_conflicts(&name, &node, &pod, effects);
        }
        effects.dirty.extend(dirty);
    }

    /// Tells of the host ports that a pod does not get because an older one has them.
    fn host_port_conflicts(&self, name: &NamespacedName, node: &str, pod: &ObjectRef, effects: &mut Effects) {
        let (_, conflicts) = self.index.host_ports(node);
        let name = name.to_string();
        effects.notices.extend(conflicts.into_iter().filter(|conflict| conflict.loser == name).map(
            |Conflict { place, winner, .. }| Notice {
                kind: NoticeKind::Conflict,
                object: Some(pod.clone()),
                message: format!(
                    "pod {name}: hostPort {} ({}) of node {node} is served by pod {winner}, which is older; the pod gets it \
                     when that one is gone",
                    place.port,
                    place.protocol.upper()
                ),
            },
        ));
    }

    /// Keeps a pod that cannot have an address yet. The error is told once.
    fn wait(&mut self, seen: SeenPod, notice: Option<Notice>, effects: &mut Effects) {
        let key = (seen.created, seen.pod.name.clone());
        let known = self.waiting.get(&key).is_some_and(|old| {
            old.pod.uid == seen.pod.uid
                && old.networks == seen.networks
                && self.index.nodes.contains_key(&seen.pod.node)
        });
        if !known {
            effects.notices.extend(notice);
        }
        // Services and policies may concern it already.
        effects.dirty.extend(self.index.apply_pod(seen.pod.clone()));
        self.waiting.insert(key, seen);
    }

    fn delete_pod(&mut self, name: &NamespacedName, effects: &mut Effects) {
        self.forget(name, effects);
        effects.dirty.extend(self.index.delete_pod(name));
    }

    /// Lets go of a pod's address.
    fn forget(&mut self, name: &NamespacedName, effects: &mut Effects) {
        self.waiting.retain(|(_, waiting), _| waiting != name);
        if let Some(uid) = self.uids.remove(name) {
            self.annotating.remove(&uid);
            if self.ipam.get(&uid).is_some() {
                effects.release.push(uid);
            }
        }
    }

    /// The database shows that the ports of these pods are gone: their addresses are free.
    pub fn released(&mut self, uids: &[String]) -> Effects {
        let mut effects = Effects::default();
        let nodes: BTreeSet<String> = uids.iter().filter_map(|uid| self.ipam.release(uid)).collect();
        for node in nodes {
            self.retry_pods(&node, &mut effects);
        }
        effects
    }

    /// Tries again to give addresses to the pods of a node that wait for one, oldest first.
    pub(super) fn retry_pods(&mut self, node: &str, effects: &mut Effects) {
        let keys: Vec<_> = self
            .waiting
            .iter()
            .filter(|(_, seen)| seen.pod.node == node)
            .map(|(key, _)| key.clone())
            .collect();
        for key in keys {
            let Some(seen) = self.waiting.get(&key).cloned() else { continue };
            match self.address(&seen) {
                Ok(Some(allocation)) => self.place(seen, &allocation, effects),
                Ok(None) => {}
                Err(notice) => {
                    tracing::debug!(message = notice.message, "pod still waits for an address");
                    if notice.kind == NoticeKind::Exhausted {
                        return;
                    }
                }
            }
        }
    }
}
