//! What is to be written into the objects of networks: status and finalizer.

use api::NamespacedName;
use api::virtual_network::{Condition, VirtualNetworkStatus, condition};

use super::super::{ObjectRef, State};
use super::{Known, Trouble};
use crate::index::Network;
use crate::index::peers::Peering;

/// What the object of a network should hold.
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkReport {
    /// The network.
    pub object: ObjectRef,
    /// Without times.
    pub status: VirtualNetworkStatus,
    /// Whether our finalizer belongs on it.
    pub finalizer: bool,
}

fn condition(kind: &str, holds: bool, reason: &str, message: String) -> Condition {
    Condition {
        kind: kind.to_owned(),
        status: if holds { "True" } else { "False" }.to_owned(),
        reason: reason.to_owned(),
        message,
        last_transition_time: String::new(),
    }
}

impl State {
    /// What is to be written into the objects of networks that something happened to since the last call.
    pub fn network_reports(&mut self) -> Vec<NetworkReport> {
        let touched = std::mem::take(&mut self.networks.touched);
        touched.iter().filter_map(|name| self.network_report(name)).collect()
    }

    /// None if the object holds it already.
    fn network_report(&self, name: &NamespacedName) -> Option<NetworkReport> {
        let known = self.networks.known.get(name)?;
        let (used, free) = self.network_ipam.counts(name);
        let pods = self.index.networks.pods_of(name).count();
        let in_use = used > 0 || pods > 0;
        let status = VirtualNetworkStatus {
            conditions: self.conditions(known, in_use, pods),
            addresses_used: used,
            addresses_free: free,
            observed_generation: known.seen.generation,
        };
        // An object that is being deleted gets no new finalizer.
        let finalizer = if known.seen.deleting { known.seen.finalizer && in_use } else { true };
        let is_written = finalizer == known.seen.finalizer && status.says_the_same_as(&known.seen.status);
        (!is_written).then(|| NetworkReport { object: known.object(), status, finalizer })
    }

    fn conditions(&self, known: &Known, in_use: bool, pods: usize) -> Vec<Condition> {
        let network = self.index.networks.ready.get(&known.seen.name);
        let ready = ready(network, |name| self.physical_networks.is_anywhere(name));
        let mut all = conditions(known, ready, network.is_some(), in_use, pods);
        let peerings = network.map(|network| self.index.networks.peerings(network)).unwrap_or_default();
        if !peerings.is_empty() {
            add_peers(&mut all, &peerings);
        }
        all
    }
}

/// How far a network is right, once there is nothing wrong with its fields. `is_anywhere`: whether a node has a physical network.
fn ready(network: Option<&Network>, is_anywhere: impl Fn(&str) -> bool) -> Condition {
    let Some(localnet) = network.and_then(|network| network.localnet.as_ref()) else {
        let message = "pods may attach to it".to_owned();
        return condition(condition::READY, network.is_some(), "Ready", message);
    };
    let physical_network = &localnet.physical_network;
    match is_anywhere(physical_network) {
        false => {
            let message = format!(
                "no node has a bridge for physical network {physical_network} (`ovn-bridge-mappings` in its Open_vSwitch); pods wait \
                 until theirs has"
            );
            condition(condition::READY, false, "NoPhysicalNetwork", message)
        }
        true => {
            let message = format!(
                "pods may attach to it on the nodes that have a bridge for physical network {physical_network}"
            );
            condition(condition::READY, true, "Ready", message)
        }
    }
}

/// Adds what becomes of a network's peers; an overlap is a conflict, too.
fn add_peers(all: &mut Vec<Condition>, peerings: &[(NamespacedName, Peering)]) {
    let told: Vec<String> = peerings.iter().filter_map(|(name, peering)| untold(name, peering)).collect();
    let overlaps = |peering: &Peering| matches!(peering, Peering::Overlaps { .. } | Peering::Refused);
    let is_conflict = peerings.iter().any(|(_, peering)| overlaps(peering));
    let (reason, message) = match (told.is_empty(), is_conflict) {
        (true, _) => ("Connected", format!("it reaches all of its peers: {}", peerings.len())),
        (false, true) => ("PeerOverlap", told.join("; ")),
        (false, false) => ("Waiting", told.join("; ")),
    };
    if is_conflict
        && let Some(conflict) =
            all.iter_mut().find(|one| one.kind == condition::CONFLICT && one.status == "False")
    {
        *conflict = condition(condition::CONFLICT, true, reason, message.clone());
    }
    all.push(condition(condition::PEERS, told.is_empty(), reason, message));
}

/// Why a peer is not reached.
fn untold(name: &NamespacedName, peering: &Peering) -> Option<String> {
    match peering {
        Peering::Connected => None,
        Peering::Waiting => {
            Some(format!("{name} must be a network that is ready and lists this one in its spec.peers"))
        }
        Peering::Overlaps { range, other, of } => {
            Some(format!("{name} is not reached: its range {range} overlaps {other} of {of}"))
        }
        Peering::Refused => {
            Some(format!("{name} is not reached: one of its other peers has a range of this network"))
        }
    }
}

fn conditions(known: &Known, ready: Condition, is_ready: bool, in_use: bool, pods: usize) -> Vec<Condition> {
    let trouble = known.trouble.as_ref();
    let ready = match trouble {
        None => ready,
        Some(Trouble { reason, message, .. }) => {
            let stays = if is_ready { "; the previous configuration stays in force" } else { "" };
            condition(condition::READY, false, reason, format!("{message}{stays}"))
        }
    };
    let conflict = match trouble.filter(|trouble| trouble.is_conflict) {
        None => condition(
            condition::CONFLICT,
            false,
            "None",
            "no conflict with other networks or nodes".to_owned(),
        ),
        Some(Trouble { reason, message, .. }) => {
            condition(condition::CONFLICT, true, reason, message.clone())
        }
    };
    let in_use = match (in_use, known.seen.deleting) {
        (false, _) => condition(condition::IN_USE, false, "NoPods", "no pod is attached to it".to_owned()),
        (true, false) => {
            condition(condition::IN_USE, true, "Pods", format!("pods that are attached to it: {pods}"))
        }
        (true, true) => {
            let message = format!("it is deleted when the pods that are attached to it are gone: {pods}");
            condition(condition::IN_USE, true, "Pods", message)
        }
    };
    vec![ready, conflict, in_use]
}
