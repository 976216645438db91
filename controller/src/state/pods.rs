//! Pods: their addresses, from the annotation, from the port that is already in the database, or newly assigned.

use std::collections::{BTreeMap, BTreeSet};

use api::annotation::{AnnotationError, POD_NETWORKS, encode};
use api::host_port::Conflict;
use api::network_attachment::STATUS;
use api::ovn_name;
use api::pod_attachments::{IFACE_LIST, PodAttachments};

use super::asked::Refusal;
use super::attachments::{entries, iface_list};
use super::pod_object::object;
use super::{Effects, FoundAttachment, Notice, NoticeKind, ObjectRef, State, Watched, network};
use crate::alloc::{Allocation, IpamError};
use crate::index::convert::SeenPod;
use crate::index::{Attached, Pod};
use crate::unit::Unit;
use api::NamespacedName;

/// Addresses on the cluster's network, unless another plugin has it, and attachments to others.
type Settled = (Option<Allocation>, Vec<Attached>);

impl State {
    /// Handles a report about pods. Pods that are bound to no node are not reported.
    pub fn pods(&mut self, change: Watched<SeenPod, NamespacedName>) -> Effects {
        let mut effects = Effects::default();
        match change {
            Watched::Apply(pod) => self.apply_pod(pod, &mut effects),
            Watched::Delete(name) => self.delete_pod(&name, &mut effects),
            Watched::Reset(all) => self.reset_pods(all, &mut effects),
        }
        self.tell_gateways(&mut effects);
        effects
    }

    fn reset_pods(&mut self, mut all: Vec<SeenPod>, effects: &mut Effects) {
        let there: BTreeSet<_> = all.iter().map(|seen| seen.pod.name.clone()).collect();
        let gone: Vec<_> = self.uids.keys().filter(|name| !there.contains(name)).cloned().collect();
        for name in gone {
            self.delete_pod(&name, effects);
        }
        // First pods that have a port in the database: another client may have overwritten an annotation meanwhile. Then pods that have
        // an address by annotation, then the others by age. Ports of pods that are gone keep their addresses until the ports are
        // gone too.
        let live: BTreeSet<&String> = all.iter().map(|seen| &seen.pod.uid).collect();
        for port in std::mem::take(&mut self.found_ports) {
            match self.ipam.claim(&port.uid, &port.node, &port.ips, port.mac) {
                Ok(_) if live.contains(&port.uid) => {}
                Ok(_) => effects.release.push(port.uid),
                Err(error) => {
                    tracing::info!(uid = port.uid, node = port.node, %error, "address of an existing port cannot be reused");
                }
            }
        }
        for found in std::mem::take(&mut self.found_attachments) {
            let FoundAttachment { network, owner, .. } = &found;
            match self.network_ipam.give(network, owner, found.wish(), self.now) {
                Ok(_) if live.contains(&owner.uid) => {}
                Ok(_) => effects.release.push(owner.uid.clone()),
                Err(error) => {
                    tracing::info!(uid = owner.uid, %network, %error, "address of an existing port cannot be reused");
                }
            }
        }
        all.sort_by(|a, b| {
            let bare = |seen: &SeenPod| !matches!(seen.networks, Some(Ok(_))) && seen.others.is_empty();
            let order = |seen: &SeenPod| (bare(seen), seen.created);
            order(a).cmp(&order(b)).then_with(|| a.pod.name.cmp(&b.pod.name))
        });
        // In later lists, annotations that this controller has not written are not trusted.
        let first = !std::mem::replace(&mut self.pods_listed, true);
        for seen in all {
            self.apply_pod(SeenPod { believed: first, ..seen }, effects);
        }
    }

    pub(super) fn apply_pod(&mut self, mut seen: SeenPod, effects: &mut Effects) {
        let name = seen.pod.name.clone();
        if self.uids.get(&name).is_some_and(|uid| *uid != seen.pod.uid) {
            // Deleted and created again, and the watch reported only the last state.
            self.forget(&name, effects);
        }
        if seen.finished {
            self.delete_pod(&name, effects);
            return;
        }
        self.uids.insert(name.clone(), seen.pod.uid.clone());
        // The pod's port would have the name of a node's uplink: nodes take precedence.
        if !seen.pod.host_network && self.index.is_uplink(&ovn_name::pod_port(&name.namespace, &name.name)) {
            let notice = self.name_conflict(&seen);
            self.wait(seen, Some(notice.into()), effects);
            return;
        }
        if seen.pod.host_network {
            effects.notices.extend(self.host_network_request(&seen));
            effects.dirty.extend(self.index.apply_pod(seen.pod));
            return;
        }
        if let Some(kept) = self.kept_attachments(&seen) {
            seen.pod.attachments = kept;
        } else if self
            .waiting
            .get(&name)
            .is_some_and(|old| old.request != seen.request || old.selections != seen.selections)
        {
            // What it got while it waited was for what it asked for then.
            self.let_go_of_claims(&seen.pod.uid);
            let networks = self.network_ipam.release(&seen.pod.uid, self.now);
            self.networks.touched.extend(networks);
        }
        match self.settle(&seen) {
            Ok(Some((allocation, attachments))) => {
                self.place(seen, allocation.as_ref(), attachments, effects);
            }
            Ok(None) => self.wait(seen, None, effects),
            Err(refusal) => self.wait(seen, Some(refusal), effects),
        }
    }

    /// The pod's addresses on the cluster's network, unless another plugin has it, and its attachments to others; `None` until its node
    /// has ranges, and until the pod that used its claims before is gone.
    fn settle(&mut self, seen: &SeenPod) -> Result<Option<Settled>, Box<Refusal>> {
        let Some(attachments) = self.attach(seen)? else { return Ok(None) };
        if !self.config.default_network {
            return Ok(Some((None, attachments)));
        }
        Ok(self.address(seen)?.map(|allocation| (Some(allocation), attachments)))
    }

    /// The notice for a new pod on its node's own network that asks for further interfaces.
    fn host_network_request(&self, seen: &SeenPod) -> Option<Notice> {
        // Definitions of other plugins are for those to refuse.
        let asks = seen.request.as_ref().map_or(true, |request| !request.is_empty());
        let is_new = !self.index.pods.contains_key(&seen.pod.name);
        (asks && is_new).then(|| Notice {
            kind: NoticeKind::Malformed,
            object: Some(object(seen)),
            message: format!(
                "pod {}: a pod with hostNetwork has no interfaces of its own, so it gets none on virtual networks",
                seen.pod.name
            ),
        })
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
        let wish = seen.request.as_ref().ok().and_then(|request| request.primary.as_ref());
        let found = match &seen.networks {
            Some(Err(error)) => return Err(malformed(error.to_string())),
            // Only this controller allocates addresses, so the annotation is not trusted; one that cannot be the pod's is an error.
            Some(Ok(network)) if !seen.believed => {
                let ips: Vec<_> = network.ip_addresses.iter().map(ipnet::IpNet::addr).collect();
                match self.ipam.check(uid, &seen.pod.node, &ips, network.mac_address) {
                    Ok(()) => self.ipam.allocate(uid, &seen.pod.node, wish, self.now),
                    Err(IpamError::NoNode(node)) => Err(IpamError::NoNode(node)),
                    Err(other) => Err(IpamError::Annotation(Box::new(other))),
                }
            }
            Some(Ok(network)) => {
                let ips: Vec<_> = network.ip_addresses.iter().map(ipnet::IpNet::addr).collect();
                let claimed = self.ipam.claim(uid, &seen.pod.node, &ips, network.mac_address);
                claimed.map_err(|error| match error {
                    IpamError::NoNode(_) => error,
                    other => IpamError::Annotation(Box::new(other)),
                })
            }
            None => self.ipam.allocate(uid, &seen.pod.node, wish, self.now),
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

    /// The annotations that the pod lacks.
    fn lacking(
        &self,
        seen: &SeenPod,
        allocation: Option<&Allocation>,
        attachments: &[Attached],
    ) -> BTreeMap<&'static str, String> {
        let Some(allocation) = allocation else { return self.lacking_attachments(seen, attachments) };
        let written = matches!(&seen.networks, Some(Ok(network))
            if network.ip_addresses == allocation.addresses && network.mac_address == allocation.mac);
        if written && attachments.is_empty() && seen.others.is_empty() {
            return BTreeMap::new();
        }
        let mut desired = entries(Some(network::of_pod(&self.config, allocation)), attachments);
        let mut lacking = BTreeMap::from([(POD_NETWORKS, encode(&desired))]);
        if attachments.is_empty() {
            return lacking;
        }
        let default = desired.0.remove(api::annotation::DEFAULT_NETWORK);
        let same_gateways = matches!((&seen.networks, &default), (Some(Ok(found)), Some(default))
            if found.gateway_ips == default.gateway_ips);
        if written && same_gateways && seen.others == desired.0 {
            return BTreeMap::new();
        }
        lacking.insert(IFACE_LIST, iface_list(attachments, self));
        lacking.extend(self.network_status(seen, allocation, attachments).map(|value| (STATUS, value)));
        lacking
    }

    /// The annotations that a pod lacks that has virtual networks alone. Multus, by whose calls it gets them, says what it got.
    fn lacking_attachments(
        &self,
        seen: &SeenPod,
        attachments: &[Attached],
    ) -> BTreeMap<&'static str, String> {
        let desired = entries(None, attachments);
        let has_default = matches!(seen.networks, Some(Ok(_)));
        if attachments.is_empty() || (seen.others == desired.0 && !has_default) {
            return BTreeMap::new();
        }
        BTreeMap::from([(POD_NETWORKS, encode(&desired)), (IFACE_LIST, iface_list(attachments, self))])
    }

    /// Assigns a pod its addresses.
    fn place(
        &mut self,
        mut seen: SeenPod,
        allocation: Option<&Allocation>,
        attachments: Vec<Attached>,
        effects: &mut Effects,
    ) {
        self.waiting.remove(&seen.pod.name);
        let annotations = self.lacking(&seen, allocation, &attachments);
        let may_lack_default = |error: &AnnotationError| {
            allocation.is_none() && matches!(error, AnnotationError::NoDefault { .. })
        };
        if self.annotate(object(&seen), annotations, effects) {
            let wrong = match &seen.networks {
                Some(Err(error)) if may_lack_default(error) => None,
                Some(Err(error)) => Some(error.to_string()),
                Some(Ok(_)) => Some(format!(
                    "annotation {POD_NETWORKS}: it was not written by the controller, which alone gives addresses"
                )),
                None => None,
            };
            effects.notices.extend(wrong.map(|wrong| Notice {
                kind: NoticeKind::Malformed,
                object: Some(object(&seen)),
                message: format!("pod {}: {wrong}; restored to the assigned value", seen.pod.name),
            }));
        }
        seen.pod.addresses = allocation.map(|allocation| allocation.addresses.clone()).unwrap_or_default();
        seen.pod.mac = allocation.map(|allocation| allocation.mac);
        seen.pod.attachments = attachments;
        let pod = object(&seen);
        let (name, node) = (seen.pod.name.clone(), seen.pod.node.clone());
        let dirty = self.index.apply_pod(seen.pod);
        if allocation.is_some() && dirty.contains(&Unit::HostPorts(node.clone())) {
            self.host_port_conflicts(&name, &node, &pod, effects);
        }
        effects.dirty.extend(dirty);
    }

    /// The notice for a pod that cannot have a port because of its name.
    fn name_conflict(&self, seen: &SeenPod) -> Notice {
        let port = ovn_name::pod_port(&seen.pod.name.namespace, &seen.pod.name.name);
        Notice {
            kind: NoticeKind::NameConflict,
            object: Some(object(seen)),
            message: format!(
                "pod {}: its logical port would be called `{port}`, as the uplink of a node is; the pod gets no network, \
                 another name or namespace is needed",
                seen.pod.name
            ),
        }
    }

    /// Pods that got or lost their ports by a change of a node's uplink.
    pub(super) fn uplink_changed(&mut self, ports: &[String], effects: &mut Effects) {
        for port in ports {
            let Some((namespace, name)) = port.split_once('_') else { continue };
            let name = NamespacedName::new(namespace, name);
            let Some(pod) = self.index.pods.get(&name).cloned() else { continue };
            if pod.host_network {
                continue;
            }
            let waiting = self.waiting.get(&name);
            let seen = SeenPod {
                finished: false,
                created: pod.created,
                networks: None,
                others: BTreeMap::new(),
                request: waiting.map_or_else(|| Ok(PodAttachments::default()), |seen| seen.request.clone()),
                selections: waiting.map_or_else(|| Ok(Vec::new()), |seen| seen.selections.clone()),
                stateful_set: waiting.and_then(|seen| seen.stateful_set.clone()),
                believed: false,
                pod,
            };
            if self.index.is_uplink(port) {
                let notice = self.name_conflict(&seen);
                if self.has_addresses(&seen.pod.uid) {
                    effects.release.push(seen.pod.uid.clone());
                }
                let pod = Pod { addresses: Vec::new(), mac: None, ..seen.pod };
                self.wait(SeenPod { pod, ..seen }, Some(notice.into()), effects);
            } else {
                self.apply_pod(seen, effects);
            }
        }
    }

    /// Reports the host ports that a pod does not get because an older one has them.
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

    /// Keeps a pod that cannot have an address yet. The error is reported once.
    fn wait(&mut self, seen: SeenPod, refusal: Option<Box<Refusal>>, effects: &mut Effects) {
        let name = seen.pod.name.clone();
        // Services and policies may already refer to it.
        effects.dirty.extend(self.index.apply_pod(seen.pod.clone()));
        self.waiting.insert(seen);
        if let Some(refusal) = refusal.filter(|refusal| self.waiting.tell(&name, &refusal.notice.message)) {
            let of_another = self.conflict_of(&name, &refusal);
            effects.notices.push(refusal.notice);
            effects.notices.extend(of_another);
        }
    }

    fn delete_pod(&mut self, name: &NamespacedName, effects: &mut Effects) {
        self.forget(name, effects);
        effects.dirty.extend(self.index.delete_pod(name));
    }

    /// Releases a pod's address.
    fn forget(&mut self, name: &NamespacedName, effects: &mut Effects) {
        self.waiting.remove(name);
        if let Some(uid) = self.uids.remove(name) {
            self.forget_annotation(&uid, effects);
            if self.has_addresses(&uid) {
                effects.release.push(uid);
            } else {
                self.let_go_of_claims(&uid);
            }
        }
    }

    fn has_addresses(&self, uid: &str) -> bool {
        self.ipam.get(uid).is_some() || self.network_ipam.has_pod(uid)
    }

    /// The database shows that the ports of these pods are gone: their addresses are free.
    pub fn released(&mut self, uids: &[String]) -> Effects {
        let mut effects = Effects::default();
        let now = self.now;
        let nodes: BTreeSet<String> = uids.iter().filter_map(|uid| self.ipam.release(uid, now)).collect();
        for uid in uids {
            self.let_go_of_claims(uid);
        }
        let networks = uids.iter().flat_map(|uid| self.network_ipam.release(uid, now)).collect();
        for node in nodes {
            self.retry_pods(&node, &mut effects);
        }
        self.addresses_are_free(networks, &mut effects);
        self.tell_gateways(&mut effects);
        effects
    }

    /// Tries again to give addresses to the pods of a node that wait for one, oldest first.
    pub(super) fn retry_pods(&mut self, node: &str, effects: &mut Effects) {
        for name in self.waiting.of_node(node) {
            let port = ovn_name::pod_port(&name.namespace, &name.name);
            if self.index.is_uplink(&port) {
                continue;
            }
            let Some(seen) = self.waiting.get(&name).cloned() else { continue };
            match self.settle(&seen) {
                Ok(Some((allocation, attachments))) => {
                    self.place(seen, allocation.as_ref(), attachments, effects);
                }
                Ok(None) => {}
                Err(refusal) => {
                    let notice = refusal.notice;
                    tracing::debug!(message = notice.message, "pod still waits for an address");
                    if notice.kind == NoticeKind::Exhausted {
                        return;
                    }
                }
            }
        }
    }
}
