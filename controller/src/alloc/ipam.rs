//! Addresses of pods, given round robin: the next free one of the node's range. A released address rests for a while before it is
//! given out again, as other nodes, clients and caches may still take it for the pod that had it. The owner of an address is a
//! pod's UID, so that a pod and its successor of the same name are never confused.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Instant;

use api::MacAddr;
use ipnet::IpNet;

use super::range::Range;

/// Offsets in a node's range that no pod gets: network address, gateway, management port.
const RESERVED: u32 = 3;

/// Why a pod has no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IpamError {
    /// The node has no range yet.
    #[error("node {0} has no pod range yet")]
    NoNode(String),
    /// All addresses are taken.
    #[error("no free address is left in {0}; remove pods from the node or give it a larger range")]
    Exhausted(IpNet),
    /// The address belongs to another pod.
    #[error("address {ip} belongs to another pod (UID {owner})")]
    Taken {
        /// The address.
        ip: IpAddr,
        /// UID of the pod that has it.
        owner: String,
    },
    /// The address is not one of the node's.
    #[error("address {ip} is not a pod address of node {node} ({subnets})")]
    OutOfRange {
        /// The address.
        ip: IpAddr,
        /// The node.
        node: String,
        /// The node's ranges.
        subnets: String,
    },
    /// Not exactly one address of each of the node's ranges.
    #[error("one address of each of {subnets} is needed, in this order, not {found}")]
    Families {
        /// The node's ranges.
        subnets: String,
        /// The addresses given.
        found: String,
    },
    /// The MAC address is not the one derived from the IP address.
    #[error("mac_address {found} is not {derived}, which follows from the address")]
    Mac {
        /// The address given.
        found: MacAddr,
        /// The MAC address derived from the IP address.
        derived: MacAddr,
    },
    /// The pod's annotation cannot be used.
    #[error("annotation k8s.ovn.org/pod-networks: {0}; remove the annotation to get a free address")]
    Annotation(Box<IpamError>),
}

/// The addresses of one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocation {
    /// The node whose ranges the addresses are from.
    pub node: String,
    /// Addresses with the prefix length of the range.
    pub addresses: Vec<IpNet>,
    /// The pod's MAC address.
    pub mac: MacAddr,
}

/// Addresses in use.
#[derive(Debug, Default)]
pub struct Ipam {
    nodes: HashMap<String, Vec<Range>>,
    /// By pod UID.
    pods: HashMap<String, Allocation>,
    owners: HashMap<IpAddr, String>,
}

impl Ipam {
    /// Sets the ranges of a node. Ranges that it already had keep their allocations; allocations of ranges that it no longer has
    /// are dropped.
    pub fn set_node(&mut self, node: &str, subnets: &[IpNet]) {
        let same = self
            .nodes
            .get(node)
            .is_some_and(|ranges| ranges.iter().map(Range::net).eq(subnets.iter().copied()));
        if !same {
            self.remove_node(node);
            self.nodes
                .insert(node.to_owned(), subnets.iter().map(|net| Range::new(*net, RESERVED)).collect());
        }
    }

    /// Removes a node and every allocation of its ranges.
    pub fn remove_node(&mut self, node: &str) {
        if self.nodes.remove(node).is_some() {
            self.pods.retain(|_, allocation| allocation.node != node);
            let pods = &self.pods;
            self.owners.retain(|_, uid| pods.contains_key(uid));
        }
    }

    /// The allocation of a pod.
    pub fn get(&self, uid: &str) -> Option<&Allocation> {
        self.pods.get(uid)
    }

    /// Number of pods with addresses.
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// Whether no pod has an address.
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// Claims addresses that a pod already has, by its annotation or its switch port: one of each of the node's ranges, in their
    /// order, and the MAC address derived from the first one, as [`Ipam::allocate`] would give them.
    pub fn claim(
        &mut self,
        uid: &str,
        node: &str,
        ips: &[IpAddr],
        mac: MacAddr,
    ) -> Result<Allocation, IpamError> {
        let offsets = self.offsets(uid, node, ips, mac)?;
        let ranges = self.nodes.get_mut(node).ok_or_else(|| IpamError::NoNode(node.to_owned()))?;
        let mut addresses = Vec::with_capacity(ips.len());
        for ((range, offset), &ip) in ranges.iter_mut().zip(offsets).zip(ips) {
            range.take(offset);
            self.owners.insert(ip, uid.to_owned());
            // The range's own prefix length always fits its family.
            addresses.extend(IpNet::new(ip, range.net().prefix_len()));
        }
        let allocation = Allocation { node: node.to_owned(), addresses, mac };
        self.pods.insert(uid.to_owned(), allocation.clone());
        Ok(allocation)
    }

    /// Whether [`Ipam::claim`] would accept these addresses.
    pub fn check(&self, uid: &str, node: &str, ips: &[IpAddr], mac: MacAddr) -> Result<(), IpamError> {
        self.offsets(uid, node, ips, mac).map(drop)
    }

    /// The offsets of the addresses that a pod claims, in the order of the node's ranges.
    fn offsets(&self, uid: &str, node: &str, ips: &[IpAddr], mac: MacAddr) -> Result<Vec<u32>, IpamError> {
        let ranges = self.nodes.get(node).ok_or_else(|| IpamError::NoNode(node.to_owned()))?;
        let subnets = || ranges.iter().map(|range| range.net().to_string()).collect::<Vec<_>>().join(", ");
        for &ip in ips {
            if !ranges.iter().any(|range| range.offset(ip).is_some()) {
                return Err(IpamError::OutOfRange { ip, node: node.to_owned(), subnets: subnets() });
            }
            if let Some(owner) = self.owners.get(&ip).filter(|owner| *owner != uid) {
                return Err(IpamError::Taken { ip, owner: owner.clone() });
            }
        }
        let offsets: Vec<u32> = ranges.iter().zip(ips).map_while(|(range, ip)| range.offset(*ip)).collect();
        if offsets.len() != ranges.len() || ips.len() != ranges.len() {
            let found: Vec<_> = ips.iter().map(ToString::to_string).collect();
            return Err(IpamError::Families { subnets: subnets(), found: found.join(", ") });
        }
        let derived = ips.first().map(|ip| MacAddr::from_ip(*ip)).unwrap_or_default();
        if mac != derived {
            return Err(IpamError::Mac { found: mac, derived });
        }
        Ok(offsets)
    }

    /// Gives a pod the next free address of each of the node's ranges.
    pub fn allocate(&mut self, uid: &str, node: &str, now: Instant) -> Result<Allocation, IpamError> {
        if let Some(allocation) = self.pods.get(uid) {
            return Ok(allocation.clone());
        }
        let ranges = self.nodes.get_mut(node).filter(|ranges| !ranges.is_empty());
        let ranges = ranges.ok_or_else(|| IpamError::NoNode(node.to_owned()))?;
        let mut ips = Vec::with_capacity(ranges.len());
        for range in ranges {
            let free = range.next_free(now).and_then(|offset| range.address(offset));
            ips.push(free.ok_or(IpamError::Exhausted(range.net()))?);
        }
        let mac = ips.first().map(|ip| MacAddr::from_ip(*ip)).unwrap_or_default();
        self.claim(uid, node, &ips, mac)
    }

    /// Frees a pod's addresses and returns its node. The addresses rest before another pod gets them.
    pub fn release(&mut self, uid: &str, now: Instant) -> Option<String> {
        let allocation = self.pods.remove(uid)?;
        for net in &allocation.addresses {
            self.owners.remove(&net.addr());
            for range in self.nodes.get_mut(&allocation.node).into_iter().flatten() {
                if let Some(offset) = range.offset(net.addr()) {
                    range.give_back(offset, now);
                }
            }
        }
        Some(allocation.node)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::super::range::REST;
    use super::*;

    fn now() -> Instant {
        Instant::now()
    }

    fn mac(ip: &str) -> MacAddr {
        MacAddr::from_ip(ip.parse().unwrap())
    }

    fn ipam(net: &str) -> Ipam {
        let mut ipam = Ipam::default();
        ipam.set_node("n1", &[net.parse().unwrap()]);
        ipam
    }

    #[test]
    fn pods_get_addresses_from_three_on_and_the_mac_of_it() {
        let mut ipam = ipam("10.244.1.0/24");
        let a = ipam.allocate("a", "n1", now()).unwrap();
        assert_eq!(
            (a.addresses[0].to_string().as_str(), a.mac.to_string().as_str()),
            ("10.244.1.3/24", "0a:58:0a:f4:01:03")
        );
        assert_eq!(ipam.allocate("b", "n1", now()).unwrap().addresses[0].to_string(), "10.244.1.4/24");
        assert_eq!(ipam.allocate("a", "n1", now()).unwrap(), a, "asking again gives the same");
    }

    #[test]
    fn a_full_range_is_refused_until_an_address_is_released() {
        let mut ipam = ipam("10.0.0.0/29");
        for uid in ["a", "b", "c", "d"] {
            ipam.allocate(uid, "n1", now()).unwrap();
        }
        assert_eq!(
            ipam.allocate("e", "n1", now()),
            Err(IpamError::Exhausted("10.0.0.0/29".parse().unwrap()))
        );
        assert_eq!(ipam.release("b", now()).as_deref(), Some("n1"));
        assert_eq!(ipam.allocate("e", "n1", now()).unwrap().addresses[0].to_string(), "10.0.0.4/29");
    }

    #[test]
    fn claims_refuse_reserved_foreign_and_taken_addresses() {
        let mut ipam = ipam("10.0.0.0/29");
        let mut claim = |uid: &str, ip: &str| ipam.claim(uid, "n1", &[ip.parse().unwrap()], mac(ip));
        claim("a", "10.0.0.5").unwrap();
        claim("a", "10.0.0.5").unwrap();
        assert!(matches!(claim("b", "10.0.0.5"), Err(IpamError::Taken { owner, .. }) if owner == "a"));
        for ip in ["10.0.0.0", "10.0.0.1", "10.0.0.2", "10.0.0.7", "10.0.1.3", "fd00::3"] {
            assert!(matches!(claim("b", ip), Err(IpamError::OutOfRange { .. })), "{ip}");
        }
    }

    #[test]
    fn claims_take_only_what_would_have_been_given() {
        let mut ipam = Ipam::default();
        ipam.set_node("n1", &["10.0.0.0/24".parse().unwrap(), "fd00::/64".parse().unwrap()]);
        let mut claim = |ips: &[&str], from: &str| {
            let ips: Vec<IpAddr> = ips.iter().map(|ip| ip.parse().unwrap()).collect();
            ipam.claim("a", "n1", &ips, mac(from)).map(drop)
        };
        // The router's MAC address, several addresses of a range, one family only, the families in another order.
        assert!(matches!(claim(&["10.0.0.5", "fd00::5"], "10.0.0.1"), Err(IpamError::Mac { .. })));
        for ips in [
            &["10.0.0.5", "10.0.0.6"][..],
            &["10.0.0.5", "fd00::5", "10.0.0.6"],
            &["10.0.0.5"],
            &["fd00::5", "10.0.0.5"],
            &[],
        ] {
            assert!(matches!(claim(ips, "10.0.0.5"), Err(IpamError::Families { .. })), "{ips:?}");
        }
        claim(&["10.0.0.5", "fd00::5"], "10.0.0.5").unwrap();
    }

    #[test]
    fn addresses_go_round_and_rest_before_they_are_given_again() {
        let mut ipam = ipam("10.0.0.0/29");
        let start = now();
        let give = |ipam: &mut Ipam, uid: &str, at: Instant| {
            ipam.allocate(uid, "n1", at).unwrap().addresses[0].addr().to_string()
        };
        assert_eq!(give(&mut ipam, "a", start), "10.0.0.3");
        ipam.release("a", start);
        assert_eq!(give(&mut ipam, "b", start), "10.0.0.4");
        assert_eq!(give(&mut ipam, "c", start), "10.0.0.5");
        ipam.release("b", start + Duration::from_secs(1));
        assert_eq!(give(&mut ipam, "d", start + Duration::from_secs(2)), "10.0.0.6");
        // Nothing else is left: the address that has rested longest.
        assert_eq!(give(&mut ipam, "e", start + Duration::from_secs(3)), "10.0.0.3");
        ipam.release("c", start + Duration::from_secs(4));
        // All have rested: the next one after the last one given, wrapping around the range.
        let later = start + REST + Duration::from_secs(10);
        assert_eq!(give(&mut ipam, "f", later), "10.0.0.4");
        assert_eq!(give(&mut ipam, "g", later), "10.0.0.5");
        assert!(ipam.allocate("h", "n1", later).is_err());
    }

    #[test]
    fn a_node_that_goes_takes_its_allocations_along() {
        let mut ipam = ipam("10.0.0.0/29");
        ipam.allocate("a", "n1", now()).unwrap();
        ipam.remove_node("n1");
        assert!(ipam.is_empty());
        ipam.set_node("n2", &["10.0.0.0/29".parse().unwrap()]);
        assert_eq!(ipam.allocate("b", "n2", now()).unwrap().addresses[0].to_string(), "10.0.0.3/29");
    }

    #[test]
    fn both_families_are_given() {
        let mut ipam = Ipam::default();
        ipam.set_node("n1", &["10.0.0.0/24".parse().unwrap(), "fd00::/64".parse().unwrap()]);
        let a = ipam.allocate("a", "n1", now()).unwrap();
        assert_eq!(a.addresses[1].to_string(), "fd00::3/64");
    }

    #[derive(Debug, Clone)]
    enum Step {
        Allocate(u8),
        Release(u8),
        Claim(u8, u8),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (0u8..20).prop_map(Step::Allocate),
            (0u8..20).prop_map(Step::Release),
            (0u8..20, 0u8..18).prop_map(|(pod, ip)| Step::Claim(pod, ip)),
        ];
        proptest::collection::vec(step, 0..200)
    }

    proptest! {
        /// Whatever happens, no address has two owners, none is outside the range, and none is lost.
        #[test]
        fn no_address_is_given_twice_and_none_is_lost(steps in steps()) {
            let mut ipam = ipam("10.0.0.0/28");
            for step in steps {
                match step {
                    Step::Allocate(pod) => { let _ = ipam.allocate(&pod.to_string(), "n1", now()); }
                    Step::Release(pod) => { ipam.release(&pod.to_string(), now()); }
                    Step::Claim(pod, ip) if ipam.get(&pod.to_string()).is_none() => {
                        let ip = IpAddr::from([10, 0, 0, ip]);
                        let _ = ipam.claim(&pod.to_string(), "n1", &[ip], MacAddr::from_ip(ip));
                    }
                    Step::Claim(..) => {}
                }
                let given: Vec<IpAddr> = ipam.pods.values().flat_map(|a| &a.addresses).map(IpNet::addr).collect();
                prop_assert_eq!(given.iter().collect::<HashSet<_>>().len(), given.len());
                for ip in &given {
                    let in_range = IpAddr::from([10, 0, 0, 3]) <= *ip && *ip < IpAddr::from([10, 0, 0, 15]);
                    prop_assert!(in_range);
                }
                prop_assert_eq!(ipam.owners.len(), given.len());
            }
            // Everything is released: the whole range can be given again.
            for pod in 0u8..20 {
                ipam.release(&pod.to_string(), now());
            }
            for pod in 0..12 {
                let uid = format!("n{pod}");
                prop_assert!(ipam.allocate(&uid, "n1", now()).is_ok());
            }
            prop_assert!(ipam.allocate("last", "n1", now()).is_err());
        }
    }
}
