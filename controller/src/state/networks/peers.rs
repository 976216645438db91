//! Peers of virtual networks: who has the address that their router needs, what is told of them, and what pods get to reach them.

use api::NamespacedName;
use api::annotation::PodRoute;

use super::super::{Effects, State};
use super::Trouble;
use crate::config::same_family;
use crate::index::{Attached, Network};

/// Reason of a network that has to wait for its gateway's address.
const GATEWAY_TAKEN: &str = "GatewayTaken";

impl State {
    /// Whether no pod is the gateway of a network that needs a router there.
    pub(super) fn gateway_is_free(&self, network: &Network) -> Result<(), Trouble> {
        let Some(mac) = network.router_mac() else { return Ok(()) };
        let gateways: Vec<_> = network.subnets.iter().map(|subnet| subnet.gateway).collect();
        let Some((what, uid)) = self.network_ipam.holder(&network.name, &gateways, mac) else {
            return Ok(());
        };
        let pod = self.uids.iter().find(|(_, other)| **other == uid).map(|(name, _)| name.to_string());
        let pod = pod.unwrap_or_else(|| format!("with UID {uid}"));
        let message = format!(
            "spec.peers: pod {pod} has {what} there, which the router to peers needs; the network has peers when that pod is gone"
        );
        Err(Trouble { reason: GATEWAY_TAKEN, message, is_conflict: false })
    }

    /// Pods of a network gave something back: it may have waited for its gateway's address.
    pub(in super::super) fn retry_gateway(&mut self, name: &NamespacedName, effects: &mut Effects) {
        let waits = |trouble: &Trouble| trouble.reason == GATEWAY_TAKEN;
        let Some(known) = self.networks.known.get(name) else { return };
        if !known.trouble.as_ref().is_some_and(waits) {
            return;
        }
        // Looked at again as if it were new.
        let seen = known.seen.clone();
        if self.judge(&seen).is_ok() {
            self.networks.known.remove(name);
            self.apply_network(seen, effects);
        }
    }

    /// What is told of the networks around one may change.
    pub(super) fn touch_around(&mut self, name: &NamespacedName) {
        let around = self.index.networks.around(name);
        self.networks.touched.extend(around);
    }

    /// Gives a pod routes to the peers of its networks. What a pod asks for itself, and a network that it is on, go before.
    pub(in super::super) fn add_peer_routes(&self, found: &mut [Attached]) {
        let networks = &self.index.networks;
        let own: Vec<_> = found
            .iter()
            .filter_map(|attached| networks.ready.get(&attached.network))
            .flat_map(|network| network.subnets.iter().map(|subnet| subnet.net))
            .collect();
        let mut given: Vec<_> =
            found.iter().flat_map(|attached| &attached.routes).map(|route| route.dest).collect();
        for attached in found {
            let Some(network) = networks.ready.get(&attached.network) else { continue };
            for peer in networks.connected(network) {
                for dest in peer.subnets.iter().map(|subnet| subnet.net) {
                    let gateways = network.subnets.iter().map(|subnet| subnet.gateway);
                    let Some(next_hop) = gateways.into_iter().find(|ip| same_family(*ip, dest.addr())) else {
                        continue;
                    };
                    if !own.contains(&dest) && !given.contains(&dest) {
                        given.push(dest);
                        attached.routes.push(PodRoute { dest, next_hop });
                    }
                }
            }
        }
    }
}
