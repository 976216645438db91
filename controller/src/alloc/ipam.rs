//! Addresses of pods: the first free one of the node's range. The owner of an address is a pod's UID, so that a pod and
//! its successor of the same name never mix.

use std::collections::HashMap;
use std::net::IpAddr;

use api::{MacAddr, addr};
use ipnet::IpNet;

/// Offsets in a node's range that no pod gets: network address, gateway, management port.
const RESERVED: u32 = 3;
/// Addresses that one node can give out at most, whatever the size of its range.
const MAX_PODS: u32 = 1 << 16;

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
    /// What the pod's annotation says cannot be.
    #[error("annotation k8s.ovn.org/pod-networks: {0}; remove the annotation to get a free address")]
    Annotation(Box<IpamError>),
}

/// What a pod has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocation {
    /// The node whose ranges the addresses are from.
    pub node: String,
    /// Addresses with the prefix length of the range.
    pub addresses: Vec<IpNet>,
    /// The pod's MAC address.
    pub mac: MacAddr,
}

/// One range: a bit for each address, set when taken.
#[derive(Debug)]
struct Range {
    net: IpNet,
    size: u32,
    bits: Vec<u64>,
}

impl Range {
    fn new(net: IpNet) -> Self {
        let host_bits = u32::from(net.max_prefix_len() - net.prefix_len());
        let all = 1u32.checked_shl(host_bits).unwrap_or(u32::MAX);
        // The last address of an IPv4 range is its broadcast address.
        let size = all.saturating_sub(u32::from(net.addr().is_ipv4())).min(MAX_PODS);
        let mut range = Self { net, size, bits: Vec::new() };
        for offset in 0..RESERVED {
            range.set(offset);
        }
        range
    }

    fn place(offset: u32) -> (usize, u64) {
        // 32 bits fit into usize on every platform that Linux's OVS runs on.
        (usize::try_from(offset / 64).unwrap_or(usize::MAX), 1 << (offset % 64))
    }

    fn set(&mut self, offset: u32) {
        let (word, bit) = Self::place(offset);
        if self.bits.len() <= word {
            self.bits.resize(word + 1, 0);
        }
        self.bits[word] |= bit;
    }

    fn clear(&mut self, offset: u32) {
        let (word, bit) = Self::place(offset);
        if let Some(bits) = self.bits.get_mut(word) {
            *bits &= !bit;
        }
    }

    fn first_free(&self) -> Option<u32> {
        let word = self.bits.iter().position(|bits| *bits != u64::MAX).unwrap_or(self.bits.len());
        let bits = self.bits.get(word).copied().unwrap_or_default();
        let offset = u32::try_from(word).ok()?.checked_mul(64)?.checked_add(bits.trailing_ones())?;
        (offset < self.size).then_some(offset)
    }

    /// The place of `ip`, if a pod may have it.
    fn offset(&self, ip: IpAddr) -> Option<u32> {
        let offset = match (self.net, ip) {
            (IpNet::V4(net), IpAddr::V4(ip)) => u32::from(ip).checked_sub(u32::from(net.network()))?,
            (IpNet::V6(net), IpAddr::V6(ip)) => {
                u32::try_from(u128::from(ip).checked_sub(u128::from(net.network()))?).ok()?
            }
            _ => return None,
        };
        (RESERVED..self.size).contains(&offset).then_some(offset)
    }
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
    /// Gives a node its ranges. Ranges that it had already keep their allocations; those of ranges it has no more go.
    pub fn set_node(&mut self, node: &str, subnets: &[IpNet]) {
        let same = self
            .nodes
            .get(node)
            .is_some_and(|ranges| ranges.iter().map(|range| range.net).eq(subnets.iter().copied()));
        if !same {
            self.remove_node(node);
            self.nodes.insert(node.to_owned(), subnets.iter().map(|net| Range::new(*net)).collect());
        }
    }

    /// Forgets a node and every allocation of its ranges.
    pub fn remove_node(&mut self, node: &str) {
        if self.nodes.remove(node).is_some() {
            self.pods.retain(|_, allocation| allocation.node != node);
            let pods = &self.pods;
            self.owners.retain(|_, uid| pods.contains_key(uid));
        }
    }

    /// What a pod has.
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

    /// Takes addresses that a pod has already, by its annotation or its switch port.
    pub fn claim(
        &mut self,
        uid: &str,
        node: &str,
        ips: &[IpAddr],
        mac: MacAddr,
    ) -> Result<Allocation, IpamError> {
        let ranges = self.nodes.get_mut(node).ok_or_else(|| IpamError::NoNode(node.to_owned()))?;
        let mut places = Vec::with_capacity(ips.len());
        for &ip in ips {
            let place = ranges.iter().enumerate().find_map(|(at, range)| Some((at, range.offset(ip)?)));
            let Some(place) = place else {
                let subnets: Vec<_> = ranges.iter().map(|range| range.net.to_string()).collect();
                return Err(IpamError::OutOfRange { ip, node: node.to_owned(), subnets: subnets.join(", ") });
            };
            if let Some(owner) = self.owners.get(&ip).filter(|owner| *owner != uid) {
                return Err(IpamError::Taken { ip, owner: owner.clone() });
            }
            places.push(place);
        }
        let mut addresses = Vec::with_capacity(ips.len());
        for ((at, offset), &ip) in places.into_iter().zip(ips) {
            ranges[at].set(offset);
            self.owners.insert(ip, uid.to_owned());
            // The range's own prefix length always fits its family.
            addresses.extend(IpNet::new(ip, ranges[at].net.prefix_len()));
        }
        let allocation = Allocation { node: node.to_owned(), addresses, mac };
        self.pods.insert(uid.to_owned(), allocation.clone());
        Ok(allocation)
    }

    /// Gives a pod the first free address of each of the node's ranges.
    pub fn allocate(&mut self, uid: &str, node: &str) -> Result<Allocation, IpamError> {
        if let Some(allocation) = self.pods.get(uid) {
            return Ok(allocation.clone());
        }
        let ranges = self.nodes.get(node).filter(|ranges| !ranges.is_empty());
        let ranges = ranges.ok_or_else(|| IpamError::NoNode(node.to_owned()))?;
        let mut ips = Vec::with_capacity(ranges.len());
        for range in ranges {
            let free = range.first_free().and_then(|offset| addr::nth(&range.net, offset));
            ips.push(free.ok_or(IpamError::Exhausted(range.net))?);
        }
        let mac = ips.first().map(|ip| MacAddr::from_ip(*ip)).unwrap_or_default();
        self.claim(uid, node, &ips, mac)
    }

    /// Frees what a pod has; answers with the node.
    pub fn release(&mut self, uid: &str) -> Option<String> {
        let allocation = self.pods.remove(uid)?;
        for net in &allocation.addresses {
            self.owners.remove(&net.addr());
            for range in self.nodes.get_mut(&allocation.node).into_iter().flatten() {
                if let Some(offset) = range.offset(net.addr()) {
                    range.clear(offset);
                }
            }
        }
        Some(allocation.node)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn ipam(net: &str) -> Ipam {
        let mut ipam = Ipam::default();
        ipam.set_node("n1", &[net.parse().unwrap()]);
        ipam
    }

    #[test]
    fn pods_get_addresses_from_three_on_and_the_mac_of_it() {
        let mut ipam = ipam("10.244.1.0/24");
        let a = ipam.allocate("a", "n1").unwrap();
        assert_eq!(
            (a.addresses[0].to_string().as_str(), a.mac.to_string().as_str()),
            ("10.244.1.3/24", "0a:58:0a:f4:01:03")
        );
        assert_eq!(ipam.allocate("b", "n1").unwrap().addresses[0].to_string(), "10.244.1.4/24");
        assert_eq!(ipam.allocate("a", "n1").unwrap(), a, "asking again gives the same");
    }

    #[test]
    fn a_full_range_is_refused_until_an_address_is_released() {
        let mut ipam = ipam("10.0.0.0/29");
        for uid in ["a", "b", "c", "d"] {
            ipam.allocate(uid, "n1").unwrap();
        }
        assert_eq!(ipam.allocate("e", "n1"), Err(IpamError::Exhausted("10.0.0.0/29".parse().unwrap())));
        assert_eq!(ipam.release("b").as_deref(), Some("n1"));
        assert_eq!(ipam.allocate("e", "n1").unwrap().addresses[0].to_string(), "10.0.0.4/29");
    }

    #[test]
    fn claims_refuse_reserved_foreign_and_taken_addresses() {
        let mut ipam = ipam("10.0.0.0/29");
        let mut claim =
            |uid: &str, ip: &str| ipam.claim(uid, "n1", &[ip.parse().unwrap()], MacAddr::default());
        claim("a", "10.0.0.5").unwrap();
        claim("a", "10.0.0.5").unwrap();
        assert!(matches!(claim("b", "10.0.0.5"), Err(IpamError::Taken { owner, .. }) if owner == "a"));
        for ip in ["10.0.0.0", "10.0.0.1", "10.0.0.2", "10.0.0.7", "10.0.1.3", "fd00::3"] {
            assert!(matches!(claim("b", ip), Err(IpamError::OutOfRange { .. })), "{ip}");
        }
    }

    #[test]
    fn a_node_that_goes_takes_its_allocations_along() {
        let mut ipam = ipam("10.0.0.0/29");
        ipam.allocate("a", "n1").unwrap();
        ipam.remove_node("n1");
        assert!(ipam.is_empty());
        ipam.set_node("n2", &["10.0.0.0/29".parse().unwrap()]);
        assert_eq!(ipam.allocate("b", "n2").unwrap().addresses[0].to_string(), "10.0.0.3/29");
    }

    #[test]
    fn both_families_are_given() {
        let mut ipam = Ipam::default();
        ipam.set_node("n1", &["10.0.0.0/24".parse().unwrap(), "fd00::/64".parse().unwrap()]);
        let a = ipam.allocate("a", "n1").unwrap();
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
                    Step::Allocate(pod) => { let _ = ipam.allocate(&pod.to_string(), "n1"); }
                    Step::Release(pod) => { ipam.release(&pod.to_string()); }
                    Step::Claim(pod, ip) if ipam.get(&pod.to_string()).is_none() => {
                        let ip = IpAddr::from([10, 0, 0, ip]);
                        let _ = ipam.claim(&pod.to_string(), "n1", &[ip], MacAddr::default());
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
            // Everything released: the whole range can be given again.
            for pod in 0u8..20 {
                ipam.release(&pod.to_string());
            }
            for pod in 0..12 {
                let uid = format!("n{pod}");
                prop_assert!(ipam.allocate(&uid, "n1").is_ok());
            }
            prop_assert!(ipam.allocate("last", "n1").is_err());
        }
    }
}
