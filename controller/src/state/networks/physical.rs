//! Which nodes have which physical networks, as their agents say, and what that means for networks with reach `Localnet` and for pods.

use std::collections::{BTreeMap, BTreeSet};

use api::NamespacedName;
use api::virtual_network::Localnet;

use super::super::{Effects, Notice, NoticeKind, State};
use crate::index::Network;

/// Physical networks by node.
#[derive(Debug, Default)]
pub(in super::super) struct PhysicalNetworks {
    by_node: BTreeMap<String, BTreeSet<String>>,
    /// The number of nodes that have each.
    nodes: BTreeMap<String, usize>,
}

impl PhysicalNetworks {
    fn has(&self, node: &str, physical_network: &str) -> bool {
        self.by_node.get(node).is_some_and(|names| names.contains(physical_network))
    }

    /// Whether a node has a physical network.
    pub(super) fn is_anywhere(&self, physical_network: &str) -> bool {
        self.nodes.contains_key(physical_network)
    }

    /// A node has these now. Returns those that it did not have or has no more, and whether any of them is of its first node, or has none left.
    fn set(&mut self, node: &str, names: BTreeSet<String>) -> (BTreeSet<String>, bool) {
        let old = self.by_node.remove(node).unwrap_or_default();
        let mut is_first_or_last = false;
        for name in names.difference(&old) {
            let count = self.nodes.entry(name.clone()).or_default();
            *count += 1;
            is_first_or_last |= *count == 1;
        }
        for name in old.difference(&names) {
            if let Some(count) = self.nodes.get_mut(name) {
                *count -= 1;
                if *count == 0 {
                    self.nodes.remove(name);
                    is_first_or_last = true;
                }
            }
        }
        let changed = old.symmetric_difference(&names).cloned().collect();
        if !names.is_empty() {
            self.by_node.insert(node.to_owned(), names);
        }
        (changed, is_first_or_last)
    }

    /// Why no pod of a node can be on a network; `Ok` if one can.
    ///
    /// # Errors
    /// The node does not have the network's physical network.
    pub(in super::super) fn check(&self, node: &str, network: &Network) -> Result<(), String> {
        let Some(Localnet { physical_network, .. }) = &network.localnet else { return Ok(()) };
        if self.has(node, physical_network) {
            return Ok(());
        }
        Err(format!(
            "virtual network {}: node {node} has no bridge for physical network {physical_network}; `ovn-bridge-mappings` of its \
             Open_vSwitch must name one",
            network.name
        ))
    }
}

impl State {
    /// A node has these physical networks now; none for a node that is gone.
    pub(in super::super) fn set_physical_networks(
        &mut self,
        node: &str,
        names: BTreeSet<String>,
        effects: &mut Effects,
    ) {
        // Only the first node of a physical network and the last one change what is said of networks.
        let (changed, is_told) = self.physical_networks.set(node, names);
        if changed.is_empty() {
            return;
        }
        let ready = self.index.networks.ready.values();
        let on_them = ready.filter(|network| {
            network.localnet.as_ref().is_some_and(|localnet| changed.contains(&localnet.physical_network))
        });
        let on_them: Vec<NamespacedName> = on_them.map(|network| network.name.clone()).collect();
        for name in on_them {
            self.tell_cut_off(node, &name, effects);
            if is_told {
                self.networks.touched.insert(name);
            }
        }
    }

    /// Tells pods of a node that their network has no way out of it any more.
    fn tell_cut_off(&self, node: &str, name: &NamespacedName, effects: &mut Effects) {
        let Some(network) = self.index.networks.ready.get(name) else { return };
        let Err(why) = self.physical_networks.check(node, network) else { return };
        let pods = self.index.networks.pods_of(name);
        let here = pods.filter(|pod| self.index.pods.get(*pod).is_some_and(|pod| pod.node == node));
        effects.notices.extend(here.map(|pod| Notice {
            kind: NoticeKind::Network,
            object: Some(self.pod_object(pod)),
            message: format!(
                "pod {pod}: {why}; until then the pod's interface there reaches pods of its node alone"
            ),
        }));
    }
}
