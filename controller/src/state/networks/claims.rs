//! What only one network may have: the name of its switch, and, where it is routed, its ranges. Isolated networks may have the same
//! ranges as one another, and so may networks on different VLANs; on one VLAN each address is one network's to give. A network is
//! compared only with those that have a range in common with it, whatever their number.

use std::collections::{BTreeMap, BTreeSet};

use api::NamespacedName;
use api::virtual_network::Localnet;
use ipnet::IpNet;

use crate::index::Network;

/// Networks by range.
type ByRange = BTreeMap<IpNet, BTreeSet<NamespacedName>>;

/// Who has what.
#[derive(Debug, Default)]
pub(super) struct NetworkClaims {
    switches: BTreeMap<String, NamespacedName>,
    routed: ByRange,
    isolated: ByRange,
    /// Networks on physical networks, by physical network and VLAN; they are among the isolated ones as well.
    segments: BTreeMap<Localnet, ByRange>,
    held: BTreeMap<NamespacedName, Network>,
}

/// Something of a network that another one has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Lost {
    /// The name of its switch.
    Switch(String),
    /// A range: its own, and the other's.
    Range(IpNet, IpNet),
    /// A range on the same physical network and VLAN: its own, and the other's.
    OnSegment(IpNet, IpNet, Localnet),
}

impl NetworkClaims {
    /// Whether others leave a network what it claims; if not, what one of them has, and its name.
    pub(super) fn check(&self, network: &Network) -> Result<(), (Lost, NamespacedName)> {
        let switch = network.switch();
        if let Some(other) = self.switches.get(&switch).filter(|other| **other != network.name) {
            return Err((Lost::Switch(switch), other.clone()));
        }
        let maps: &[&ByRange] =
            if network.reach.is_routed() { &[&self.routed, &self.isolated] } else { &[&self.routed] };
        let of_another = |map: &ByRange, net| {
            overlapping(map, net).find_map(|(range, owners)| {
                let other = owners.iter().find(|other| **other != network.name)?;
                Some((*range, other.clone()))
            })
        };
        for subnet in &network.subnets {
            let own = subnet.net;
            if let Some((range, other)) = maps.iter().find_map(|map| of_another(map, own)) {
                return Err((Lost::Range(own, range), other));
            }
            let segment =
                network.localnet.as_ref().and_then(|localnet| self.segments.get_key_value(localnet));
            if let Some((localnet, map)) = segment
                && let Some((range, other)) = of_another(map, own)
            {
                return Err((Lost::OnSegment(own, range, localnet.clone()), other));
            }
        }
        Ok(())
    }

    /// Gives a network what it claims, after [`Self::check`]. True when something that it had before is free.
    pub(super) fn take(&mut self, network: &Network) -> bool {
        let freed = self.held.get(&network.name).is_some_and(|old| {
            old.switch() != network.switch()
                || (old.reach, &old.localnet) != (network.reach, &network.localnet)
                || old.subnets != network.subnets
        });
        self.let_go(&network.name);
        self.switches.insert(network.switch(), network.name.clone());
        for subnet in &network.subnets {
            self.by_range(network).entry(subnet.net).or_default().insert(network.name.clone());
            if let Some(localnet) = &network.localnet {
                let map = self.segments.entry(localnet.clone()).or_default();
                map.entry(subnet.net).or_default().insert(network.name.clone());
            }
        }
        self.held.insert(network.name.clone(), network.clone());
        freed
    }

    /// A network gives up all that it has. True when that was something.
    pub(super) fn let_go(&mut self, name: &NamespacedName) -> bool {
        let Some(old) = self.held.remove(name) else { return false };
        self.switches.remove(&old.switch());
        for subnet in &old.subnets {
            take_out(self.by_range(&old), &subnet.net, name);
            if let Some(localnet) = &old.localnet
                && let Some(map) = self.segments.get_mut(localnet)
            {
                take_out(map, &subnet.net, name);
                if map.is_empty() {
                    self.segments.remove(localnet);
                }
            }
        }
        true
    }

    /// The network whose switch has this name.
    pub(super) fn of_switch(&self, switch: &str) -> Option<&NamespacedName> {
        self.switches.get(switch)
    }

    fn by_range(&mut self, network: &Network) -> &mut ByRange {
        if network.reach.is_routed() { &mut self.routed } else { &mut self.isolated }
    }
}

fn take_out(map: &mut ByRange, net: &IpNet, name: &NamespacedName) {
    if let Some(owners) = map.get_mut(net) {
        owners.remove(name);
        if owners.is_empty() {
            map.remove(net);
        }
    }
}

/// The ranges of a map that have an address in common with `net`: those around it, then it and those inside it.
fn overlapping(map: &ByRange, net: IpNet) -> impl Iterator<Item = (&IpNet, &BTreeSet<NamespacedName>)> {
    let around = std::iter::successors(net.supernet(), IpNet::supernet);
    let around = around.filter_map(|range| map.get_key_value(&range));
    let inside = map.range(net..).take_while(move |(range, _)| net.contains(&range.network()));
    around.chain(inside)
}

#[cfg(test)]
mod tests {
    use api::virtual_network::{Reach, Scope, Subnet};

    use super::*;

    fn network(name: &str, net: &str, reach: Reach) -> Network {
        let net: IpNet = net.parse().unwrap();
        let subnets = vec![Subnet { net, gateway: net.addr(), excluded: Vec::new() }];
        Network {
            name: name.parse().unwrap(),
            created: 0,
            scope: Scope::Namespace,
            reach,
            subnets,
            localnet: None,
            peers: Vec::new(),
            mtu: 1400,
            mac_prefix: api::MacAddr::PREFIX,
            persistent: false,
        }
    }

    fn loses(claims: &NetworkClaims, network: &Network) -> Option<String> {
        claims.check(network).err().map(|(_, other)| other.to_string())
    }

    #[test]
    fn ranges_are_compared_where_one_of_both_is_routed() {
        let mut claims = NetworkClaims::default();
        claims.take(&network("a/isolated", "172.16.24.0/24", Reach::Isolated));
        let twin = network("b/isolated", "172.16.24.0/24", Reach::Isolated);
        assert_eq!(loses(&claims, &twin), None);
        claims.take(&twin);
        for net in ["172.16.24.0/24", "172.16.0.0/16", "172.16.24.128/25"] {
            let routed = network("c/routed", net, Reach::ClusterRouter);
            assert_eq!(loses(&claims, &routed).as_deref(), Some("a/isolated"), "{net}");
        }
        let routed = network("c/routed", "172.16.25.0/24", Reach::Outside);
        assert_eq!(loses(&claims, &routed), None);
        claims.take(&routed);
        assert_eq!(loses(&claims, &routed), None, "its own");
        for net in ["172.16.25.0/28", "172.16.0.0/12"] {
            let isolated = network("d/isolated", net, Reach::Isolated);
            assert_eq!(loses(&claims, &isolated).as_deref(), Some("c/routed"), "{net}");
        }
        assert!(claims.let_go(&routed.name) && !claims.let_go(&routed.name));
        assert_eq!(loses(&claims, &network("d/isolated", "172.16.0.0/12", Reach::Isolated)), None);
    }

    #[test]
    fn on_one_vlan_a_range_is_one_networks_and_elsewhere_it_is_free() {
        let on = |name: &str, net: &str, physical_network: &str, vlan| Network {
            localnet: Some(Localnet { physical_network: physical_network.to_owned(), vlan }),
            ..network(name, net, Reach::Localnet)
        };
        let mut claims = NetworkClaims::default();
        claims.take(&on("a/one", "172.16.24.0/24", "dc", Some(100)));
        claims.take(&network("a/isolated", "172.16.24.0/24", Reach::Isolated));
        for other in [
            on("b/two", "172.16.24.0/24", "dc", Some(200)),
            on("b/two", "172.16.24.0/24", "dc", None),
            on("b/two", "172.16.24.0/24", "other", Some(100)),
            on("b/two", "172.16.25.0/24", "dc", Some(100)),
        ] {
            assert_eq!(loses(&claims, &other), None, "{:?}", other.localnet);
        }
        let same = on("b/two", "172.16.24.128/25", "dc", Some(100));
        let (lost, other) = claims.check(&same).unwrap_err();
        let [own, others] = [same.subnets[0].net, "172.16.24.0/24".parse().unwrap()];
        assert_eq!(
            (lost, other.to_string()),
            (Lost::OnSegment(own, others, same.localnet.clone().unwrap()), "a/one".to_owned())
        );
        let routed = network("c/routed", "172.16.24.0/24", Reach::Outside);
        assert!(loses(&claims, &routed).is_some(), "a routed network shares its range with none");
        assert!(claims.take(&on("a/one", "172.16.24.0/24", "dc", Some(200))), "VLAN 100 is free");
        assert_eq!(loses(&claims, &same), None);
        claims.let_go(&"a/one".parse().unwrap());
        assert!(claims.segments.is_empty());
    }

    #[test]
    fn families_are_apart() {
        let mut claims = NetworkClaims::default();
        claims.take(&network("a/six", "fd00:24::/64", Reach::Outside));
        assert_eq!(loses(&claims, &network("a/four", "172.16.24.0/24", Reach::Outside)), None);
        let inside = network("a/inside", "fd00:24::/96", Reach::Isolated);
        assert_eq!(loses(&claims, &inside).as_deref(), Some("a/six"));
    }

    #[test]
    fn a_switch_name_is_one_networks() {
        let mut claims = NetworkClaims::default();
        let all =
            |name: &str, net: &str| Network { scope: Scope::Cluster, ..network(name, net, Reach::Isolated) };
        claims.take(&all("a/blue", "172.16.24.0/24"));
        let (lost, other) = claims.check(&all("b/blue", "172.16.25.0/24")).unwrap_err();
        assert_eq!((lost, other.to_string()), (Lost::Switch("blue".to_owned()), "a/blue".to_owned()));
        assert_eq!(claims.of_switch("blue").map(ToString::to_string).as_deref(), Some("a/blue"));
        assert_eq!(loses(&claims, &network("b/blue", "172.16.25.0/24", Reach::Isolated)), None, "b.blue");
    }

    #[test]
    fn what_was_taken_is_left_without_a_trace() {
        let mut claims = NetworkClaims::default();
        let first = network("a/blue", "172.16.24.0/24", Reach::Isolated);
        assert!(!claims.take(&first) && !claims.take(&first));
        assert!(claims.take(&network("a/blue", "172.16.25.0/24", Reach::Outside)));
        claims.let_go(&first.name);
        assert!(claims.switches.is_empty() && claims.routed.is_empty() && claims.isolated.is_empty());
    }
}
