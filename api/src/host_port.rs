//! Host ports: which pod of a node serves which of the node's ports. Controller and node agent decide by the same rules, so
//! that traffic from outside and traffic of the node itself reach the same pod.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use crate::Protocol;

/// Key of `external_ids` on load balancers for host ports; its value is the node's name.
pub const OWNER_KEY: &str = "slipstream.dev/host-ports";

/// A container port with a host port, as a pod declares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// `namespace/name` of the pod.
    pub pod: String,
    /// When the pod was created, in seconds since 1970.
    pub created: i64,
    /// Transport protocol.
    pub protocol: Protocol,
    /// The node's port.
    pub host_port: u16,
    /// The node's address; absent or unspecified means every one.
    pub host_ip: Option<IpAddr>,
    /// The pod's addresses.
    pub addresses: Vec<IpAddr>,
    /// The container's port.
    pub container_port: u16,
}

/// Addresses of the node on which a port is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Listen {
    /// Listens on this address only. It takes precedence over every other value.
    One(IpAddr),
    /// Every IPv4 address.
    EveryIpv4,
    /// Every IPv6 address.
    EveryIpv6,
}

/// A port of a node, for one protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Transport protocol.
    pub protocol: Protocol,
    /// The node's port.
    pub port: u16,
    /// The node's addresses on which it is served.
    pub listen: Listen,
}

/// The pod that serves a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Served {
    /// `namespace/name` of the pod.
    pub pod: String,
    /// The pod's address and port.
    pub target: SocketAddr,
}

/// A claim to a port that another pod has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The port.
    pub place: Place,
    /// The pod that does not get it.
    pub loser: String,
    /// The pod that has it.
    pub winner: String,
}

/// Resolves which pod serves which port of a node. Of two pods that claim the same port, the older one gets it.
pub fn serve(claims: impl IntoIterator<Item = Claim>) -> (BTreeMap<Place, Served>, Vec<Conflict>) {
    let mut claims: Vec<Claim> = claims.into_iter().collect();
    claims.sort_by(|a, b| (a.created, &a.pod).cmp(&(b.created, &b.pod)));
    let mut served: BTreeMap<Place, Served> = BTreeMap::new();
    let mut conflicts = Vec::new();
    for claim in claims {
        for (listen, ip) in listens(&claim) {
            let place = Place { protocol: claim.protocol, port: claim.host_port, listen };
            match served.get(&place) {
                None => {
                    let target = SocketAddr::new(ip, claim.container_port);
                    served.insert(place, Served { pod: claim.pod.clone(), target });
                }
                Some(winner) if winner.pod != claim.pod => {
                    conflicts.push(Conflict { place, loser: claim.pod.clone(), winner: winner.pod.clone() });
                }
                Some(_) => {}
            }
        }
    }
    (served, conflicts)
}

/// The addresses on which a claim listens, each with the pod's address of the same family.
fn listens(claim: &Claim) -> Vec<(Listen, IpAddr)> {
    let pod = |v4: bool| claim.addresses.iter().copied().find(|ip| ip.is_ipv4() == v4);
    let every = [(Listen::EveryIpv4, true), (Listen::EveryIpv6, false)];
    let wanted: Vec<(Listen, bool)> = match claim.host_ip {
        None => every.to_vec(),
        Some(ip) if ip.is_unspecified() => every.into_iter().filter(|(_, v4)| *v4 == ip.is_ipv4()).collect(),
        Some(ip) => vec![(Listen::One(ip), ip.is_ipv4())],
    };
    wanted.into_iter().filter_map(|(listen, v4)| Some((listen, pod(v4)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(pod: &str, created: i64, protocol: Protocol, host_ip: &str) -> Claim {
        Claim {
            pod: pod.to_owned(),
            created,
            protocol,
            host_port: 54323,
            host_ip: host_ip.parse().ok(),
            addresses: vec!["10.244.0.3".parse().unwrap(), "fd00::3".parse().unwrap()],
            container_port: 8080,
        }
    }

    fn winners(claims: Vec<Claim>) -> Vec<(Listen, String, String)> {
        let (served, _) = serve(claims);
        served.into_iter().map(|(place, by)| (place.listen, by.pod, by.target.to_string())).collect()
    }

    #[test]
    fn one_port_on_other_addresses_or_protocols_is_no_conflict() {
        let claims = vec![
            claim("n/1", 1, Protocol::Tcp, "127.0.0.1"),
            claim("n/2", 2, Protocol::Tcp, "172.18.0.2"),
            claim("n/3", 3, Protocol::Udp, "172.18.0.2"),
            claim("n/4", 4, Protocol::Tcp, "0.0.0.0"),
        ];
        let (served, conflicts) = serve(claims);
        assert_eq!(conflicts, []);
        assert_eq!(served.len(), 4);
    }

    #[test]
    fn the_older_pod_gets_what_two_claim_whatever_their_order_and_the_name_decides_between_twins() {
        let (young, old) =
            (claim("n/a", 2, Protocol::Tcp, "172.18.0.2"), claim("n/z", 1, Protocol::Tcp, "172.18.0.2"));
        let (served, conflicts) = serve([young.clone(), old]);
        assert_eq!(served.values().map(|by| by.pod.as_str()).collect::<Vec<_>>(), ["n/z"]);
        assert_eq!((conflicts[0].loser.as_str(), conflicts[0].winner.as_str()), ("n/a", "n/z"));
        let (served, _) = serve([claim("n/b", 2, Protocol::Tcp, "172.18.0.2"), young]);
        assert_eq!(served.values().map(|by| by.pod.as_str()).collect::<Vec<_>>(), ["n/a"]);
    }

    #[test]
    fn no_address_means_both_families_and_an_unspecified_one_its_own() {
        let v4 = (Listen::EveryIpv4, "n/a".to_owned(), "10.244.0.3:8080".to_owned());
        let v6 = (Listen::EveryIpv6, "n/a".to_owned(), "[fd00::3]:8080".to_owned());
        assert_eq!(winners(vec![claim("n/a", 1, Protocol::Tcp, "")]), [v4.clone(), v6.clone()]);
        assert_eq!(winners(vec![claim("n/a", 1, Protocol::Tcp, "0.0.0.0")]), [v4]);
        assert_eq!(winners(vec![claim("n/a", 1, Protocol::Tcp, "::")]), [v6]);
    }

    #[test]
    fn a_pod_without_an_address_of_the_family_serves_nothing_there() {
        let single =
            Claim { addresses: vec!["10.244.0.3".parse().unwrap()], ..claim("n/a", 1, Protocol::Tcp, "::1") };
        assert!(winners(vec![single]).is_empty());
    }
}
