//! Which external addresses a service may serve. Any user who may write services could otherwise take over traffic of others:
//! of pods, of other services, of nodes and of the API server (CVE-2020-8554 and worse). Addresses of the cluster's own
//! ranges and of nodes cannot be claimed; of two services that claim the same address and port the older one has it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use super::Service;
use crate::{NamespacedName, Protocol};

/// An address with a port, as clients connect to it.
type Place = (IpAddr, Protocol, u16);

/// Why an address is not served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The address is in one of the cluster's own ranges.
    Range(IpNet),
    /// The address is a node's.
    Node,
    /// An older service has it.
    Service(NamespacedName),
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Range(net) => write!(f, "it is in {net}, a range of the cluster"),
            Self::Node => f.write_str("it is the address of a node"),
            Self::Service(other) => write!(f, "service {other}, which is older, has it"),
        }
    }
}

/// Claims of all services.
#[derive(Debug, Default)]
pub struct Claims {
    /// The cluster's own ranges.
    own: Vec<IpNet>,
    /// Addresses of nodes, with the number of nodes that have them.
    nodes: BTreeMap<IpAddr, u32>,
    /// Services that claim each place, oldest first.
    places: BTreeMap<Place, BTreeSet<(i64, NamespacedName)>>,
}

fn places(service: &Service) -> BTreeSet<Place> {
    let ports = || service.ports.iter().map(|port| (port.protocol, port.port));
    let ips = service.external_ips.iter();
    if !service.is_balanced() {
        return BTreeSet::new();
    }
    ips.flat_map(|ip| ports().map(|(protocol, port)| (*ip, protocol, port))).collect()
}

impl Claims {
    /// No claims; `own` are ranges of the cluster, which no service may claim.
    pub fn new(own: Vec<IpNet>) -> Self {
        Self { own, ..Self::default() }
    }

    /// Replaces the claims of a service. Returns the services for which something changes.
    pub fn change(&mut self, old: Option<&Service>, new: Option<&Service>) -> BTreeSet<NamespacedName> {
        let mut concerned = BTreeSet::new();
        for (service, comes) in [(old, false), (new, true)] {
            let Some(service) = service else { continue };
            let claimant = (service.created, service.name.clone());
            for place in places(service) {
                let claimants = self.places.entry(place).or_default();
                let first = claimants.first().cloned();
                if comes {
                    claimants.insert(claimant.clone());
                } else {
                    claimants.remove(&claimant);
                }
                if claimants.first() != first.as_ref() {
                    concerned
                        .extend(first.into_iter().chain(claimants.first().cloned()).map(|(_, name)| name));
                }
                if claimants.is_empty() {
                    self.places.remove(&place);
                }
            }
        }
        concerned
    }

    /// Replaces the addresses of a node. Returns the services for which something changes.
    pub fn nodes(&mut self, old: &BTreeSet<IpAddr>, new: &BTreeSet<IpAddr>) -> BTreeSet<NamespacedName> {
        let mut changed = BTreeSet::new();
        for ip in new.difference(old) {
            let count = self.nodes.entry(*ip).or_default();
            *count += 1;
            if *count == 1 {
                changed.insert(*ip);
            }
        }
        for ip in old.difference(new) {
            if let Some(count) = self.nodes.get_mut(ip) {
                *count -= 1;
                if *count == 0 {
                    self.nodes.remove(ip);
                    changed.insert(*ip);
                }
            }
        }
        let of = |ip: IpAddr| {
            let from = (ip, Protocol::Tcp, 0);
            self.places.range(from..).take_while(move |(place, _)| place.0 == ip).flat_map(|(_, all)| all)
        };
        changed.into_iter().flat_map(of).map(|(_, name)| name.clone()).collect()
    }

    /// Why a service does not serve an address, for at least one of its ports.
    pub fn refusal(&self, service: &Service, ip: IpAddr) -> Option<Refusal> {
        if let Some(net) = self.own.iter().find(|net| net.contains(&ip)) {
            return Some(Refusal::Range(*net));
        }
        if self.nodes.contains_key(&ip) {
            return Some(Refusal::Node);
        }
        let first = |place: &Place| self.places.get(place).and_then(BTreeSet::first);
        service.ports.iter().find_map(|port| {
            let (_, owner) = first(&(ip, port.protocol, port.port))?;
            (*owner != service.name).then(|| Refusal::Service(owner.clone()))
        })
    }
    /// The external addresses that a service may not serve.
    pub fn refused(&self, service: &Service) -> Vec<(IpAddr, Refusal)> {
        let refusal = |ip: &IpAddr| Some((*ip, self.refusal(service, *ip)?));
        service.external_ips.iter().filter_map(refusal).collect()
    }

    /// Removes the external addresses from a service that it may not serve.
    pub fn withhold(&self, service: &mut Service) {
        if service.external_ips.is_empty() {
            return;
        }
        let refused: BTreeSet<IpAddr> = self.refused(service).into_iter().map(|(ip, _)| ip).collect();
        service.external_ips.retain(|ip| !refused.contains(ip));
        service.ingress_ips.retain(|ip| !refused.contains(ip));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(name: &str, created: i64, port: u16, ips: &[&str]) -> Service {
        let object = json!({"metadata": {"name": name, "namespace": "n"},
            "spec": {"clusterIP": "10.96.0.9", "externalIPs": ips, "ports": [{"port": port}]}});
        Service { created, ..Service::from_object(&serde_json::from_value(object).unwrap()).0 }
    }

    fn names(names: &[&str]) -> BTreeSet<NamespacedName> {
        names.iter().map(|name| NamespacedName::new("n", *name)).collect()
    }

    #[test]
    fn the_older_claimant_has_an_address_and_port_and_of_twins_the_first_by_name() {
        let mut claims = Claims::default();
        let young = service("a", 2, 80, &["192.0.2.1"]);
        assert_eq!(claims.change(None, Some(&young)), names(&["a"]));
        let old = service("z", 1, 80, &["192.0.2.1"]);
        assert_eq!(claims.change(None, Some(&old)), names(&["a", "z"]));
        let mut served = young.clone();
        claims.withhold(&mut served);
        assert!(served.external_ips.is_empty());
        assert_eq!(
            claims.refused(&young),
            [("192.0.2.1".parse().unwrap(), Refusal::Service(old.name.clone()))]
        );
        // Another service may have another port of the address.
        let other = service("b", 3, 81, &["192.0.2.1"]);
        claims.change(None, Some(&other));
        assert_eq!((claims.refused(&old), claims.refused(&other)), (Vec::new(), Vec::new()));
        assert_eq!(claims.change(Some(&old), None), names(&["a", "z"]));
        assert_eq!(claims.refused(&young), []);
        let twin = service("c", 2, 80, &["192.0.2.1"]);
        claims.change(None, Some(&twin));
        assert_eq!((claims.refused(&young).len(), claims.refused(&twin).len()), (0, 1));
    }

    #[test]
    fn addresses_of_the_cluster_and_of_nodes_are_nobodys_and_come_back_with_the_last_node_that_has_them() {
        let mut claims = Claims::new(vec!["10.96.0.0/12".parse().unwrap()]);
        let greedy = service("a", 1, 80, &["10.96.0.10", "172.18.0.2", "192.0.2.1"]);
        claims.change(None, Some(&greedy));
        let (none, node) = (BTreeSet::new(), BTreeSet::from(["172.18.0.2".parse().unwrap()]));
        assert_eq!(claims.nodes(&none, &node), names(&["a"]));
        assert!(claims.nodes(&none, &node).is_empty(), "a second node with the address changes nothing");
        let why: Vec<Refusal> = claims.refused(&greedy).into_iter().map(|(_, why)| why).collect();
        assert_eq!(why, [Refusal::Range("10.96.0.0/12".parse().unwrap()), Refusal::Node]);
        assert!(claims.nodes(&node, &none).is_empty());
        assert_eq!(claims.nodes(&node, &none), names(&["a"]));
        assert_eq!(claims.refused(&greedy).len(), 1);
    }
}
