//! Virtual networks: which of those that users made can be had, and what their changes mean for pods.

mod claims;
mod peers;
mod physical;
mod report;

use std::collections::{BTreeMap, BTreeSet};

use api::pod_attachments::{NetworkRef, StaticIp};
use api::virtual_network::{KIND, Scope, check_name};
use api::{NamespacedName, ovn_name};

use super::{Effects, Notice, NoticeKind, ObjectRef, State, Watched};
use crate::alloc::{Owner, Wish};
use crate::index::Network;
use crate::index::network::SeenNetwork;
use claims::{Lost, NetworkClaims};
pub(super) use physical::PhysicalNetworks;
pub use report::NetworkReport;

/// Why a network is not as its object says.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Trouble {
    /// For programs.
    reason: &'static str,
    message: String,
    /// Somebody else has what it claims: it gets that when it is free.
    is_conflict: bool,
}

/// A network that exists.
#[derive(Debug)]
struct Known {
    seen: SeenNetwork,
    trouble: Option<Trouble>,
}

impl Known {
    fn object(&self) -> ObjectRef {
        object(&self.seen)
    }
}

fn object(seen: &SeenNetwork) -> ObjectRef {
    ObjectRef { uid: seen.uid.clone(), ..ObjectRef::named(KIND, &seen.name) }
}

/// All networks.
#[derive(Debug, Default)]
pub(super) struct Networks {
    known: BTreeMap<NamespacedName, Known>,
    claims: NetworkClaims,
    /// Namespaces of the networks for all pods, by name.
    for_all: BTreeMap<String, BTreeSet<String>>,
    /// Networks that lack something because somebody else has it, oldest first.
    conflicting: BTreeSet<(i64, NamespacedName)>,
    /// Networks whose objects may have to be written.
    pub(super) touched: BTreeSet<NamespacedName>,
}

impl State {
    /// Handles a report about virtual networks.
    pub fn virtual_networks(&mut self, change: Watched<SeenNetwork, NamespacedName>) -> Effects {
        let mut effects = Effects::default();
        match change {
            Watched::Apply(seen) => self.apply_network(seen, &mut effects),
            Watched::Delete(name) => self.delete_network(&name, &mut effects),
            Watched::Reset(mut all) => {
                let there: BTreeSet<_> = all.iter().map(|seen| seen.name.clone()).collect();
                let known = self.networks.known.keys();
                let gone: Vec<_> = known.filter(|name| !there.contains(*name)).cloned().collect();
                for name in gone {
                    self.delete_network(&name, &mut effects);
                }
                // Of two networks with the same claim the older one has it.
                all.sort_by(|a, b| (a.created, &a.name).cmp(&(b.created, &b.name)));
                for seen in all {
                    self.apply_network(seen, &mut effects);
                }
            }
        }
        self.policies_may_be_about_others(&mut effects);
        effects
    }

    fn apply_network(&mut self, seen: SeenNetwork, effects: &mut Effects) {
        let name = seen.name.clone();
        if self.networks.known.get(&name).is_some_and(|known| known.seen.uid != seen.uid) {
            // Deleted and created again, and the watch reported only the last state.
            self.delete_network(&name, effects);
        }
        self.networks.touched.insert(name.clone());
        let old = self.networks.known.remove(&name);
        // Heartbeats of its status change nothing.
        if let Some(old) = &old
            && old.seen.spec == seen.spec
            && old.seen.deleting == seen.deleting
            && old.trouble.as_ref().is_none_or(|trouble| !trouble.is_conflict)
        {
            let trouble = old.trouble.clone();
            self.networks.known.insert(name, Known { seen, trouble });
            return;
        }
        let is_for_all = seen.spec.as_ref().is_ok_and(|spec| spec.scope == Scope::Cluster);
        self.set_for_all(&name, is_for_all);
        self.networks.conflicting.remove(&(seen.created, name.clone()));
        // Claims of its addresses look it up by name.
        self.networks.known.insert(name.clone(), Known { seen: seen.clone(), trouble: None });
        let trouble = match self.judge(&seen) {
            Ok(network) => {
                self.activate(network, effects);
                None
            }
            Err(trouble) => Some(trouble),
        };
        if let Some(trouble) = &trouble {
            if trouble.is_conflict {
                self.networks.conflicting.insert((seen.created, name.clone()));
                self.deactivate(&name, effects);
            }
            if old.and_then(|old| old.trouble).as_ref() != Some(trouble) {
                effects.notices.push(Notice {
                    kind: if trouble.is_conflict {
                        NoticeKind::NetworkConflict
                    } else {
                        NoticeKind::Malformed
                    },
                    object: Some(object(&seen)),
                    message: format!("virtual network {name}: {}", trouble.message),
                });
            }
        }
        self.networks.known.insert(name.clone(), Known { seen, trouble });
        self.retry_pods_of_network(&name.name, effects);
    }

    /// The network that an object describes, if it can be had.
    fn judge(&self, seen: &SeenNetwork) -> Result<Network, Trouble> {
        let invalid = |message: String| Trouble { reason: "Invalid", message, is_conflict: false };
        let conflict = |reason, message| Trouble { reason, message, is_conflict: true };
        check_name(&seen.name.name).map_err(|error| invalid(error.to_string()))?;
        let spec = seen.spec.as_ref().map_err(|error| invalid(error.to_string()))?;
        let checked =
            spec.check(&self.config.network_limits()).map_err(|error| invalid(error.to_string()))?;
        let peers = spec.peers_of(&seen.name).map_err(|error| invalid(error.to_string()))?;
        let network = Network {
            name: seen.name.clone(),
            created: seen.created,
            scope: spec.scope,
            reach: spec.reach,
            subnets: checked.subnets,
            localnet: checked.localnet,
            peers,
            mtu: checked.mtu,
            mac_prefix: checked.mac_prefix,
            persistent: spec.is_persistent(),
        };
        self.gateway_is_free(&network)?;
        let switch = network.switch();
        if switch == ovn_name::JOIN_SWITCH || self.index.nodes.contains_key(&switch) {
            let owner =
                if switch == ovn_name::JOIN_SWITCH { "the join switch" } else { "the switch of a node" };
            let message = format!(
                "its logical switch would be called `{switch}`, as {owner} is; another name is needed"
            );
            return Err(conflict("NameTaken", message));
        }
        self.networks.claims.check(&network).map_err(|(lost, other)| match lost {
            Lost::Switch(switch) => conflict(
                "NameTaken",
                format!(
                    "its logical switch would be called `{switch}`, as that of virtual network {other} is; of two networks of one \
                     name for all pods the older one has it"
                ),
            ),
            Lost::Range(own, others) => conflict(
                "Overlap",
                format!(
                    "spec.subnets: {own} overlaps {others} of virtual network {other}; only isolated networks and those on different \
                     VLANs may have ranges in common"
                ),
            ),
            Lost::OnSegment(own, others, localnet) => conflict(
                "Overlap",
                format!(
                    "spec.subnets: {own} overlaps {others} of virtual network {other}, which is on {localnet} as well; each of both \
                     would give its addresses to pods there"
                ),
            ),
        })?;
        Ok(network)
    }

    fn set_for_all(&mut self, name: &NamespacedName, is_for_all: bool) {
        let namespaces = self.networks.for_all.entry(name.name.clone()).or_default();
        if is_for_all {
            namespaces.insert(name.namespace.clone());
        } else {
            namespaces.remove(&name.namespace);
        }
        if namespaces.is_empty() {
            self.networks.for_all.remove(&name.name);
        }
    }

    /// A network gets what it claims.
    fn activate(&mut self, network: Network, effects: &mut Effects) {
        let name = network.name.clone();
        self.touch_around(&name);
        let freed = self.networks.claims.take(&network);
        self.network_ipam.set(&name, &network.subnets, network.router_mac());
        self.network_ipam.set_mac_prefix(&name, network.mac_prefix);
        effects.dirty.extend(self.index.apply_network(network));
        self.touch_around(&name);
        self.keep_for_claims_of(&name, effects);
        // Pods that had addresses of it before it went keep them.
        let pods: Vec<NamespacedName> = self.index.networks.pods_of(&name).cloned().collect();
        for pod in pods {
            self.claim_again(&pod, &name, effects);
        }
        if freed {
            self.retry_networks(effects);
        }
    }

    fn claim_again(&mut self, pod: &NamespacedName, network: &NamespacedName, effects: &mut Effects) {
        let Some(pod) = self.index.pods.get(pod) else { return };
        let is_for_it = |network: &Network| network.serves(&pod.name.namespace);
        if !self.index.networks.ready.get(network).is_some_and(is_for_it) {
            return;
        }
        for attached in pod.attachments.iter().filter(|attached| attached.network == *network) {
            let owner = Owner { uid: pod.uid.clone(), key: attached.key.clone() };
            let ips: Vec<_> =
                attached.addresses.iter().map(|net| StaticIp { ip: net.addr(), prefix_len: None }).collect();
            let wish = Wish { ips: &ips, mac: Some(attached.mac), claim: None, is_old: true };
            if let Err(error) = self.network_ipam.give(network, &owner, wish, self.now) {
                effects.notices.push(Notice {
                    kind: NoticeKind::Network,
                    object: Some(self.pod_object(&pod.name)),
                    message: format!(
                        "pod {}: interface {} on virtual network {network}: {error}; the pod must be made again",
                        pod.name, attached.interface
                    ),
                });
            }
        }
    }

    /// A network loses all that it has.
    fn deactivate(&mut self, name: &NamespacedName, effects: &mut Effects) {
        self.touch_around(name);
        effects.dirty.extend(self.index.delete_network(name));
        self.network_ipam.remove(name);
        if self.networks.claims.let_go(name) {
            self.retry_networks(effects);
        }
    }

    fn delete_network(&mut self, name: &NamespacedName, effects: &mut Effects) {
        let Some(known) = self.networks.known.remove(name) else { return };
        self.set_for_all(name, false);
        self.networks.touched.remove(name);
        self.networks.conflicting.remove(&(known.seen.created, name.clone()));
        self.deactivate(name, effects);
        // Pods may mean another one of the name now.
        self.retry_pods_of_network(&name.name, effects);
    }

    /// Something is free: networks may have waited for it, the oldest first.
    fn retry_networks(&mut self, effects: &mut Effects) {
        let waiting: Vec<_> = self.networks.conflicting.iter().map(|(_, name)| name.clone()).collect();
        for name in waiting {
            let Some(known) = self.networks.known.get(&name) else { continue };
            if let Ok(network) = self.judge(&known.seen) {
                let turn = (known.seen.created, name.clone());
                self.networks.conflicting.remove(&turn);
                self.networks.touched.insert(name.clone());
                if let Some(known) = self.networks.known.get_mut(&name) {
                    known.trouble = None;
                }
                self.activate(network, effects);
                self.retry_pods_of_network(&name.name, effects);
            }
        }
    }

    /// A node came, whose switch has its name: a network that has the name gives way.
    pub(super) fn yield_to_node(&mut self, node: &str, effects: &mut Effects) {
        let Some(name) = self.networks.claims.of_switch(node).cloned() else { return };
        let Some(known) = self.networks.known.get(&name) else { return };
        // Looked at again as if it were new.
        let seen = known.seen.clone();
        self.networks.known.remove(&name);
        self.apply_network(seen, effects);
        self.policies_may_be_about_others(effects);
    }

    /// A node is gone, and with it its name.
    pub(super) fn node_name_is_free(&mut self, effects: &mut Effects) {
        if !self.networks.conflicting.is_empty() {
            self.retry_networks(effects);
            self.policies_may_be_about_others(effects);
        }
    }

    /// The network that a pod of `namespace` means. The error tells why it cannot have it.
    pub(super) fn resolve(&self, namespace: &str, wanted: &NetworkRef) -> Result<&Network, String> {
        let name = self.find(namespace, wanted)?;
        let known = self.networks.known.get(&name);
        if known.is_some_and(|known| known.seen.deleting) {
            return Err(format!(
                "virtual network {name} is being deleted; no pod is attached to it any more"
            ));
        }
        self.index.networks.ready.get(&name).ok_or_else(|| {
            let trouble =
                known.and_then(|known| known.trouble.as_ref()).map(|trouble| trouble.message.as_str());
            format!("virtual network {name} is not ready: {}", trouble.unwrap_or("it is not known yet"))
        })
    }

    pub(super) fn find(&self, namespace: &str, wanted: &NetworkRef) -> Result<NamespacedName, String> {
        let Networks { known, for_all, .. } = &self.networks;
        let wanted_name = &wanted.name;
        let is_for_all = |space: &String| for_all.get(wanted_name).is_some_and(|all| all.contains(space));
        if let Some(space) = &wanted.namespace {
            let name = NamespacedName::new(space, wanted_name);
            return match (known.contains_key(&name), space == namespace || is_for_all(space)) {
                (false, _) => Err(format!("there is no virtual network {name}")),
                (true, false) => Err(format!(
                    "virtual network {name} is for pods of its own namespace; `spec.scope: Cluster` would make it one for all"
                )),
                (true, true) => Ok(name),
            };
        }
        let own = NamespacedName::new(namespace, wanted_name);
        if known.contains_key(&own) {
            return Ok(own);
        }
        let all = || {
            for_all
                .get(wanted_name)
                .into_iter()
                .flatten()
                .map(|space| NamespacedName::new(space, wanted_name))
        };
        let ready: Vec<_> = all().filter(|name| self.index.networks.ready.contains_key(name)).collect();
        match ready.as_slice() {
            [one] => Ok(one.clone()),
            [] => all().next().ok_or_else(|| {
                format!(
                    "there is no virtual network {own}, and none of the name {wanted_name} for all namespaces (spec.scope: Cluster)"
                )
            }),
            [first, second, ..] => Err(format!(
                "{wanted_name} may be virtual network {first} or {second}; write NAMESPACE/NAME"
            )),
        }
    }
}
