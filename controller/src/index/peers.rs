//! Which virtual networks are connected as peers: those that list each other, so that nobody opens a way into a network of somebody else.
//! Of several peers of a network with ranges in common the oldest is connected.

use api::NamespacedName;
use api::virtual_network::overlap;
use ipnet::IpNet;

use super::network::{Network, Networks};

/// What becomes of a peer that a network lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peering {
    /// The networks reach each other.
    Connected,
    /// The peer is not ready, or does not list the network. Nothing tells which: it may be anybody's.
    Waiting,
    /// A range of the peer overlaps one of the network or of another of its peers.
    Overlaps {
        /// The peer's range.
        range: IpNet,
        /// The other range.
        other: IpNet,
        /// The network that has the other range.
        of: NamespacedName,
    },
    /// The peer cannot have the network, because a range of another of its peers overlaps one of the network's.
    Refused,
}

/// A network's range, another range that it overlaps, and the network that has that one.
type Overlap = (IpNet, IpNet, NamespacedName);

/// A range of `network` that overlaps one of `others`, and that one with its network.
fn common(network: &Network, others: &[&Network]) -> Option<Overlap> {
    network.subnets.iter().find_map(|subnet| {
        others.iter().find_map(|other| {
            let found = other.subnets.iter().find(|one| overlap(&one.net, &subnet.net))?;
            Some((subnet.net, found.net, other.name.clone()))
        })
    })
}

impl Networks {
    /// The networks that `network` lists and that list it, oldest first.
    fn mutual<'a>(&'a self, network: &Network) -> Vec<&'a Network> {
        let listed = network.peers.iter().filter_map(|name| self.ready.get(name));
        let mut mutual: Vec<&Network> = listed.filter(|peer| peer.peers.contains(&network.name)).collect();
        mutual.sort_by(|a, b| (a.created, &a.name).cmp(&(b.created, &b.name)));
        mutual
    }

    /// What a network can have of those that it lists, as far as it alone is concerned: each with what its ranges overlap.
    fn judged<'a>(&'a self, network: &'a Network) -> Vec<(&'a Network, Option<Overlap>)> {
        let mut taken = vec![network];
        let mut judged = Vec::new();
        for peer in self.mutual(network) {
            let overlaps = common(peer, &taken);
            if overlaps.is_none() {
                taken.push(peer);
            }
            judged.push((peer, overlaps));
        }
        judged
    }

    fn takes(&self, network: &Network, peer: &NamespacedName) -> bool {
        self.judged(network).iter().any(|(one, overlaps)| one.name == *peer && overlaps.is_none())
    }

    /// Each peer that a network lists, and what becomes of it.
    pub fn peerings(&self, network: &Network) -> Vec<(NamespacedName, Peering)> {
        let judged = self.judged(network);
        let one = |name: &NamespacedName| match judged.iter().find(|(peer, _)| peer.name == *name) {
            None => Peering::Waiting,
            Some((_, Some((range, other, of)))) => {
                Peering::Overlaps { range: *range, other: *other, of: of.clone() }
            }
            Some((peer, None)) if !self.takes(peer, &network.name) => Peering::Refused,
            Some(_) => Peering::Connected,
        };
        network.peers.iter().map(|name| (name.clone(), one(name))).collect()
    }

    /// The networks that a network is connected with.
    pub fn connected(&self, network: &Network) -> Vec<&Network> {
        let of_one =
            |(name, peering)| (peering == Peering::Connected).then(|| self.ready.get(&name)).flatten();
        self.peerings(network).into_iter().filter_map(of_one).collect()
    }

    /// The networks whose connections may depend on a network: its peers, and the peers of these.
    pub fn around(&self, name: &NamespacedName) -> Vec<NamespacedName> {
        let Some(network) = self.ready.get(name).filter(|network| !network.peers.is_empty()) else {
            return Vec::new();
        };
        let near = self.mutual(network);
        let far = near.iter().flat_map(|peer| self.mutual(peer));
        let mut all: Vec<_> = near.iter().copied().chain(far).map(|peer| peer.name.clone()).collect();
        all.sort();
        all.dedup();
        all.retain(|other| other != name);
        all
    }
}

#[cfg(test)]
mod tests {
    use api::MacAddr;
    use api::virtual_network::{Reach, Scope, Subnet};

    use super::super::Index;
    use super::*;

    fn network(name: &str, net: &str, created: i64, peers: &[&str]) -> Network {
        let net: IpNet = net.parse().unwrap();
        Network {
            name: name.parse().unwrap(),
            created,
            scope: Scope::Namespace,
            reach: Reach::Isolated,
            subnets: vec![Subnet { net, gateway: net.addr(), excluded: Vec::new() }],
            localnet: None,
            peers: peers.iter().map(|peer| peer.parse().unwrap()).collect(),
            mtu: 1400,
            mac_prefix: MacAddr::PREFIX,
            persistent: false,
        }
    }

    fn index(all: &[Network]) -> Index {
        let mut index = Index::new(Vec::new());
        for one in all {
            index.apply_network(one.clone());
        }
        index
    }

    fn connected(index: &Index, name: &str) -> Vec<String> {
        let network = &index.networks.ready[&name.parse().unwrap()];
        index.networks.connected(network).iter().map(|peer| peer.name.to_string()).collect()
    }

    #[test]
    fn only_networks_that_list_each_other_are_connected_and_not_by_a_third() {
        let index = index(&[
            network("a/one", "172.16.1.0/24", 1, &["b/two", "c/four"]),
            network("b/two", "172.16.2.0/24", 2, &["a/one", "b/three"]),
            network("b/three", "172.16.3.0/24", 3, &["b/two"]),
            network("c/four", "172.16.4.0/24", 4, &[]),
            network("hostile/five", "172.16.5.0/24", 5, &["a/one", "b/two", "b/three"]),
        ]);
        assert_eq!(connected(&index, "a/one"), ["b/two"]);
        assert_eq!(connected(&index, "b/two"), ["a/one", "b/three"]);
        assert_eq!(connected(&index, "b/three"), ["b/two"]);
        assert!(connected(&index, "c/four").is_empty() && connected(&index, "hostile/five").is_empty());
        let five = &index.networks.ready[&"hostile/five".parse().unwrap()];
        assert!(index.networks.peerings(five).iter().all(|(_, peering)| *peering == Peering::Waiting));
        assert_eq!(index.networks.around(&"a/one".parse().unwrap()).len(), 2, "two, and three by it");
        assert!(index.networks.around(&five.name).is_empty());
    }

    #[test]
    fn of_peers_with_a_range_in_common_the_oldest_is_connected_and_all_are_told() {
        let mut index = index(&[
            network("a/hub", "172.16.1.0/24", 1, &["b/young", "b/old", "b/same"]),
            network("b/young", "172.16.2.0/25", 9, &["a/hub"]),
            network("b/old", "172.16.2.0/24", 3, &["a/hub"]),
            network("b/same", "172.16.1.0/24", 2, &["a/hub"]),
        ]);
        assert_eq!(connected(&index, "a/hub"), ["b/old"]);
        let hub = &index.networks.ready[&"a/hub".parse().unwrap()];
        let told = index.networks.peerings(hub);
        let of = |name: &str| Peering::Overlaps {
            range: told
                .iter()
                .find(|(one, _)| one.to_string() == name)
                .map(|(one, _)| index.networks.ready[one].subnets[0].net)
                .unwrap(),
            other: if name == "b/young" { "172.16.2.0/24" } else { "172.16.1.0/24" }.parse().unwrap(),
            of: if name == "b/young" { "b/old" } else { "a/hub" }.parse().unwrap(),
        };
        assert_eq!(told[0].1, of("b/young"));
        assert_eq!(told[2].1, of("b/same"));
        let young = &index.networks.ready[&"b/young".parse().unwrap()];
        assert_eq!(index.networks.peerings(young)[0].1, Peering::Refused);
        let dirty = index.delete_network(&"b/old".parse().unwrap());
        assert!(dirty.contains(&crate::unit::Unit::Network("b/young".parse().unwrap())), "{dirty:?}");
        assert_eq!(connected(&index, "a/hub"), ["b/young"]);
    }
}
