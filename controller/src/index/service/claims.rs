//! Which external addresses a service may serve. Whoever may write services could otherwise take over the traffic of others:
//! of pods, of other services, of nodes and of the API server (CVE-2020-8554 and worse). Addresses of the cluster's own
//! ranges and of nodes are nobody's to claim; of two services that claim one address and port the older has it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use super::Service;
use crate::index::Protocol;
use api::NamespacedName;

/// An address with a port, as clients connect to it.
type Place = (IpAddr, Protocol, u16);

/// Why an address is not served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// It is in one of the cluster's own ranges.
    Range(IpNet),
    /// It is a node's.
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

/// Who claims what.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// The cluster's own ranges.
    own: Vec<IpNet>,
    /// Addresses of nodes, with the number of nodes that have them.
    nodes: BTreeMap<IpAddr, u32>,
    /// Claimants by age.
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
    pub(super) fn new(own: Vec<IpNet>) -> Self {
        Self { own, ..Self::default() }
    }

    /// Replaces what a service claims; the services for which something changes.
    pub(super) fn change(
        &mut self,
        old: Option<&Service>,
        new: Option<&Service>,
    ) -> BTreeSet<NamespacedName> {
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

    /// A node's addresses; the services for which something changes.
    pub(super) fn nodes(
        &mut self,
        old: &BTreeSet<IpAddr>,
        new: &BTreeSet<IpAddr>,
    ) -> BTreeSet<NamespacedName> {
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

    /// Why a service does not serve an address, for one of its ports at least.
    pub(super) fn refusal(&self, service: &Service, ip: IpAddr) -> Option<Refusal> {
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
}
