//! What the host's rules make of UDP to services, and which tracked connections of the host do something else. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use api::Protocol;
use api::addr::Family;
use api::service::Front;
use ipnet::IpNet;

use super::{Inputs, Translations};
use crate::gateway::services::NodeService;

/// Where packets to each front may be translated to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UdpTranslations(BTreeMap<Front, BTreeSet<(IpAddr, u16)>>);

/// What is known of the node besides its translations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// Addresses of the node, where it serves node ports.
    pub own: BTreeSet<IpAddr>,
    /// UDP host ports of its pods, which go before node ports.
    pub host_ports: BTreeSet<u16>,
    /// Ranges of the services.
    pub service_cidrs: Vec<IpNet>,
}

impl UdpTranslations {
    /// Translations of the ruleset for these services.
    pub fn of(inputs: &Inputs, services: &[NodeService]) -> Self {
        let has_udp =
            |service: &&NodeService| service.ports.iter().any(|port| port.protocol == Protocol::Udp);
        let mut sorted: Vec<&NodeService> = services.iter().filter(has_udp).collect();
        sorted.sort_by(|a, b| a.name.cmp(&b.name));
        let mut all = Self::default();
        for family in &inputs.families {
            let of_family = Translations::of(inputs, family, &sorted);
            let loopback: IpAddr = match of_family.family {
                Family::V4 => std::net::Ipv4Addr::LOCALHOST.into(),
                Family::V6 => std::net::Ipv6Addr::LOCALHOST.into(),
            };
            all.add(&of_family, loopback);
        }
        all
    }

    fn add(&mut self, found: &Translations, loopback: IpAddr) {
        let mut lead =
            |front: Front, protocol: &Protocol, targets: &mut dyn Iterator<Item = (IpAddr, u16)>| {
                if *protocol == Protocol::Udp {
                    self.0.entry(front).or_default().extend(targets);
                }
            };
        for ((protocol, port), target) in found.node_ports.iter().chain(&found.from_outside.node_ports) {
            lead(Front::NodePort(*port), protocol, &mut std::iter::once(*target));
        }
        for ((protocol, port), nodes) in &found.elsewhere {
            lead(Front::NodePort(*port), protocol, &mut nodes.iter().map(|ip| (*ip, *port)));
        }
        for ((ip, protocol, port), target) in found.external.iter().chain(&found.local_external) {
            lead(Front::Address(*ip, *port), protocol, &mut std::iter::once(*target));
        }
        for ((ip, protocol, port), backends) in &found.local_backends {
            lead(Front::Address(*ip, *port), protocol, &mut backends.iter().copied());
        }
        // nft(8): in the output hook, `redirect` is to the loopback address.
        for ((ip, protocol, port), target) in &found.internal_redirected {
            lead(Front::Address(*ip, *port), protocol, &mut std::iter::once((loopback, *target)));
        }
    }

    /// Whether a connection that the host tracks, to `destination` and translated to `to` or not, does not do what these say. `before`: what the
    /// ruleset had; connections to fronts that are as they were are not looked at. None: it is not known.
    pub fn is_stale(
        &self,
        before: Option<&Self>,
        place: &Place,
        destination: (IpAddr, u16),
        to: Option<(IpAddr, u16)>,
    ) -> bool {
        let [address, node_port] = Front::candidates(destination);
        let is_served_here = (place.own.contains(&destination.0) || destination.0.is_loopback())
            && !place.host_ports.contains(&destination.1);
        let known = |front: &Front| {
            self.0.contains_key(front) || before.is_some_and(|before| before.0.contains_key(front))
        };
        let fronts = [Some(address), is_served_here.then_some(node_port)];
        let Some(front) = fronts.into_iter().flatten().find(known) else {
            // Nothing is known of a service that went while no agent was here, but where it was.
            let is_service =
                |(ip, _): (IpAddr, u16)| place.service_cidrs.iter().any(|range| range.contains(&ip));
            return before.is_none() && to.is_some_and(is_service);
        };
        if before.is_some_and(|before| before.0.get(&front) == self.0.get(&front)) {
            return false;
        }
        let family = Family::of(destination.0);
        let targets = self.0.get(&front).into_iter().flatten();
        let mut targets = targets.filter(|(ip, _)| Family::of(*ip) == family).peekable();
        match to {
            None => targets.peek().is_some(),
            Some(to) => !targets.any(|target| *target == to),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: [u8; 4] = [172, 18, 0, 2];
    const CLUSTER_IP: [u8; 4] = [10, 96, 0, 5];

    fn at(ip: [u8; 4], port: u16) -> (IpAddr, u16) {
        (ip.into(), port)
    }

    fn place() -> Place {
        Place {
            own: BTreeSet::from([NODE.into()]),
            host_ports: BTreeSet::from([30_099]),
            service_cidrs: vec!["10.96.0.0/16".parse().unwrap()],
        }
    }

    /// A service with a node port and an external address.
    fn one() -> UdpTranslations {
        let to = BTreeSet::from([at(CLUSTER_IP, 53)]);
        UdpTranslations(BTreeMap::from([
            (Front::NodePort(30_053), to.clone()),
            (Front::NodePort(30_099), to.clone()),
            (Front::Address([203, 0, 113, 1].into(), 53), to),
        ]))
    }

    #[test]
    fn what_was_sent_before_the_service_was_there_is_stale() {
        let none = UdpTranslations::default();
        for before in [None, Some(&none)] {
            let stale = |destination, to: Option<_>| one().is_stale(before, &place(), destination, to);
            assert!(stale(at(NODE, 30_053), None) && stale(at([127, 0, 0, 1], 30_053), None));
            assert!(stale(at([203, 0, 113, 1], 53), None));
            assert!(!stale(at(NODE, 30_053), Some(at(CLUSTER_IP, 53))), "as it should be");
            assert!(stale(at(NODE, 30_053), Some(at([10, 96, 0, 6], 53))), "that of an earlier service");
            assert!(!stale(at([172, 18, 0, 3], 30_053), None), "another node's port");
            assert!(!stale(at(NODE, 30_099), Some(at([10, 244, 0, 9], 53))), "a host port goes first");
            assert!(!stale(at(NODE, 53), None) && !stale(at([8, 8, 8, 8], 53), None), "no service");
        }
    }

    #[test]
    fn what_goes_to_a_service_that_went_is_stale() {
        let (none, translated) = (UdpTranslations::default(), Some(at(CLUSTER_IP, 53)));
        assert!(none.is_stale(Some(&one()), &place(), at(NODE, 30_053), translated));
        assert!(none.is_stale(None, &place(), at(NODE, 30_053), translated), "while no agent was here");
        assert!(!none.is_stale(Some(&one()), &place(), at(NODE, 30_053), None));
        assert!(!none.is_stale(None, &place(), at(NODE, 30_099), Some(at([10, 244, 0, 9], 53))));
    }

    #[test]
    fn fronts_that_are_as_they_were_are_not_looked_at() {
        assert!(!one().is_stale(Some(&one()), &place(), at(NODE, 30_053), None));
    }

    #[test]
    fn a_family_that_the_service_lacks_is_not_translated() {
        let six: IpAddr = "fd00::2".parse().unwrap();
        let mut place = place();
        place.own.insert(six);
        assert!(!one().is_stale(None, &place, (six, 30_053), None));
        assert!(one().is_stale(None, &place, (six, 30_053), Some(("fd00::5".parse().unwrap(), 53))));
    }
}
