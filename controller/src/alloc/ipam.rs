//! Addresses of pods, given round robin: the next free one of the node's range. A released address rests for a while before it is
//! given out again, as other nodes, clients and caches may still take it for the pod that had it. The owner of an address is a
//! pod's UID, so that a pod and its successor of the same name are never confused.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Instant;

use api::MacAddr;
use api::addr::gateway_of;
use api::pod_attachments::PrimaryWish;
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
    /// Another pod has the MAC address.
    #[error("MAC address {mac} belongs to another pod (UID {owner})")]
    MacTaken {
        /// The address.
        mac: MacAddr,
        /// UID of the pod that has it.
        owner: String,
    },
    /// The prefix length is not the node's.
    #[error("address {ip}/{found}: node {node} has /{right}")]
    Prefix {
        /// The address.
        ip: IpAddr,
        /// The length given.
        found: u8,
        /// The node.
        node: String,
        /// The node's.
        right: u8,
    },
    /// The node has another gateway.
    #[error("gateway_ip {found} is not the gateway of node {node}, {right}")]
    Gateway {
        /// The address given.
        found: IpAddr,
        /// The node.
        node: String,
        /// The node's.
        right: String,
    },
    /// The pod cannot have what it asks for.
    #[error("annotation ovn: {0}; the pod gets no network until then")]
    Asked(Box<IpamError>),
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
    /// Pods with a MAC address that does not follow from their address.
    macs: HashMap<MacAddr, String>,
}

/// First bytes of MAC addresses that follow from IP addresses, those of routers too.
const DERIVED: [u8; 2] = [0x0a, 0x58];

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
            self.macs.retain(|_, uid| pods.contains_key(uid));
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
    /// order, and the MAC address derived from the first one or one that no other pod can have, as [`Ipam::allocate`] would give them.
    ///
    /// # Errors
    /// The addresses are not one of each of the node's ranges, an address or the MAC belongs to another pod, or the MAC does not follow from the
    /// address.
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
        if let Some(old) = self.pods.get(uid) {
            self.macs.remove(&old.mac);
        }
        if !mac.0.starts_with(&DERIVED) {
            self.macs.insert(mac, uid.to_owned());
        }
        let allocation = Allocation { node: node.to_owned(), addresses, mac };
        self.pods.insert(uid.to_owned(), allocation.clone());
        Ok(allocation)
    }

    /// Whether [`Ipam::claim`] would accept these addresses.
    ///
    /// # Errors
    /// Fails as [`Ipam::claim`] would.
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
        let is_of_a_host = mac.0[0] & 1 == 0 && mac != MacAddr::default();
        if mac != derived && (mac.0.starts_with(&DERIVED) || !is_of_a_host) {
            return Err(IpamError::Mac { found: mac, derived });
        }
        match self.macs.get(&mac).filter(|owner| *owner != uid) {
            Some(owner) => Err(IpamError::MacTaken { mac, owner: owner.clone() }),
            None => Ok(offsets),
        }
    }

    /// Gives a pod an address of each of the node's ranges: what it asks for, and else the next free one.
    ///
    /// # Errors
    /// A range of the node has no free address, or the pod cannot have what it asks for.
    pub fn allocate(
        &mut self,
        uid: &str,
        node: &str,
        wish: Option<&PrimaryWish>,
        now: Instant,
    ) -> Result<Allocation, IpamError> {
        if let Some(allocation) = self.pods.get(uid) {
            return Ok(allocation.clone());
        }
        if let Some(wish) = wish {
            self.may_be_asked(uid, node, wish).map_err(|error| IpamError::Asked(Box::new(error)))?;
        }
        let ranges = self.nodes.get_mut(node).filter(|ranges| !ranges.is_empty());
        let ranges = ranges.ok_or_else(|| IpamError::NoNode(node.to_owned()))?;
        let mut ips = Vec::with_capacity(ranges.len());
        for range in ranges {
            let mut all = wish.into_iter().flat_map(|wish| &wish.ips).map(|one| one.ip);
            let asked = all.find(|ip| range.offset(*ip).is_some());
            let free = asked.or_else(|| range.next_free(now).and_then(|offset| range.address(offset)));
            ips.push(free.ok_or(IpamError::Exhausted(range.net()))?);
        }
        let derived = ips.first().map(|ip| MacAddr::from_ip(*ip)).unwrap_or_default();
        let mac = wish.and_then(|wish| wish.mac).unwrap_or(derived);
        let claimed = self.claim(uid, node, &ips, mac);
        claimed.map_err(|error| if wish.is_some() { IpamError::Asked(Box::new(error)) } else { error })
    }

    /// Whether the addresses that a pod asks for are the node's, and free.
    fn may_be_asked(&self, uid: &str, node: &str, wish: &PrimaryWish) -> Result<(), IpamError> {
        // Until the node has ranges, nothing can be said.
        let Some(ranges) = self.nodes.get(node).filter(|ranges| !ranges.is_empty()) else { return Ok(()) };
        let nets = || ranges.iter().map(Range::net);
        let listed = |all: &mut dyn Iterator<Item = String>| all.collect::<Vec<_>>().join(", ");
        for one in &wish.ips {
            let Some(range) = ranges.iter().find(|range| range.offset(one.ip).is_some()) else {
                let subnets = listed(&mut nets().map(|net| net.to_string()));
                return Err(IpamError::OutOfRange { ip: one.ip, node: node.to_owned(), subnets });
            };
            let right = range.net().prefix_len();
            if let Some(found) = one.prefix_len.filter(|found| *found != right) {
                return Err(IpamError::Prefix { ip: one.ip, found, node: node.to_owned(), right });
            }
            if let Some(owner) = self.owners.get(&one.ip).filter(|owner| *owner != uid) {
                return Err(IpamError::Taken { ip: one.ip, owner: owner.clone() });
            }
        }
        let gateways = || nets().filter_map(|net| gateway_of(&net));
        if let Some(found) = wish.gateway.filter(|found| !gateways().any(|gateway| gateway == *found)) {
            let right = listed(&mut gateways().map(|gateway| gateway.to_string()));
            return Err(IpamError::Gateway { found, node: node.to_owned(), right });
        }
        Ok(())
    }

    /// Frees a pod's addresses and returns its node. The addresses rest before another pod gets them.
    pub fn release(&mut self, uid: &str, now: Instant) -> Option<String> {
        let allocation = self.pods.remove(uid)?;
        self.macs.remove(&allocation.mac);
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

    use api::pod_attachments::StaticIp;

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
        let a = ipam.allocate("a", "n1", None, now()).unwrap();
        assert_eq!(
            (a.addresses[0].to_string().as_str(), a.mac.to_string().as_str()),
            ("10.244.1.3/24", "0a:58:0a:f4:01:03")
        );
        assert_eq!(ipam.allocate("b", "n1", None, now()).unwrap().addresses[0].to_string(), "10.244.1.4/24");
        assert_eq!(ipam.allocate("a", "n1", None, now()).unwrap(), a, "asking again gives the same");
    }

    #[test]
    fn a_full_range_is_refused_until_an_address_is_released() {
        let mut ipam = ipam("10.0.0.0/29");
        for uid in ["a", "b", "c", "d"] {
            ipam.allocate(uid, "n1", None, now()).unwrap();
        }
        assert_eq!(
            ipam.allocate("e", "n1", None, now()),
            Err(IpamError::Exhausted("10.0.0.0/29".parse().unwrap()))
        );
        assert_eq!(ipam.release("b", now()).as_deref(), Some("n1"));
        assert_eq!(ipam.allocate("e", "n1", None, now()).unwrap().addresses[0].to_string(), "10.0.0.4/29");
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

    fn asking(ip: &str, mac: Option<[u8; 6]>) -> PrimaryWish {
        let net: Option<IpNet> = ip.parse().ok();
        let ips = match net {
            Some(net) => vec![StaticIp { ip: net.addr(), prefix_len: Some(net.prefix_len()) }],
            None => ip.parse().into_iter().map(|ip| StaticIp { ip, prefix_len: None }).collect(),
        };
        PrimaryWish { ips, mac: mac.map(MacAddr), gateway: None }
    }

    #[test]
    fn a_pod_gets_what_it_asks_for_and_a_free_address_of_the_other_family() {
        let mut ipam = Ipam::default();
        ipam.set_node("n1", &["10.0.0.0/24".parse().unwrap(), "fd00::/64".parse().unwrap()]);
        let given = ipam.allocate("a", "n1", Some(&asking("10.0.0.9", None)), now()).unwrap();
        let text: Vec<_> = given.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(text, ["10.0.0.9/24", "fd00::3/64"]);
        assert_eq!(given.mac, mac("10.0.0.9"));
        let bytes = [0x0a, 0, 0, 0, 0, 1];
        let own = Some(bytes);
        let six = ipam.allocate("b", "n1", Some(&asking("fd00::9/64", own)), now()).unwrap();
        let text: Vec<_> = six.addresses.iter().map(ToString::to_string).collect();
        assert_eq!((text, Some(six.mac.0)), (vec!["10.0.0.10/24".to_owned(), "fd00::9/64".to_owned()], own));
        // Others pass it over, and it is free again with the pod.
        let mut others = 0;
        while let Ok(given) = ipam.allocate(&format!("other-{others}"), "n1", None, now()) {
            assert_ne!(given.addresses[0].addr(), IpAddr::from([10, 0, 0, 9]));
            others += 1;
        }
        assert_eq!(others, 250, "252 addresses, of which two were given");
        let again = asking("10.0.0.9", own);
        assert!(ipam.allocate("c", "n1", Some(&again), now()).is_err());
        ipam.release("a", now());
        assert!(ipam.allocate("c", "n1", Some(&again), now()).is_err(), "the MAC address");
        ipam.release("b", now());
        assert_eq!(ipam.allocate("c", "n1", Some(&again), now()).unwrap().mac.0, bytes);
        // As after a start of the controller.
        assert!(
            ipam.claim(
                "d",
                "n1",
                &["10.0.0.77".parse().unwrap(), "fd00::77".parse().unwrap()],
                MacAddr(bytes)
            )
            .is_err()
        );
        ipam.remove_node("n1");
        ipam.set_node("n1", &["10.0.0.0/24".parse().unwrap()]);
        ipam.claim("d", "n1", &["10.0.0.77".parse().unwrap()], MacAddr(bytes)).unwrap();
    }

    #[test]
    fn what_a_pod_cannot_have_is_said_and_takes_nothing() {
        let mut ipam = ipam("10.0.0.0/24");
        ipam.allocate("first", "n1", Some(&asking("10.0.0.9", None)), now()).unwrap();
        for (ip, mac, says) in [
            ("10.0.0.9", None, "belongs to another pod (UID first)"),
            ("10.0.0.1", None, "address 10.0.0.1 is not a pod address of node n1 (10.0.0.0/24)"),
            ("10.0.1.9", None, "10.0.1.9 is not a pod address"),
            ("fd00::9", None, "fd00::9 is not a pod address"),
            ("10.0.0.8/16", None, "address 10.0.0.8/16: node n1 has /24"),
            (
                "10.0.0.8",
                Some([0x0a, 0x58, 0, 0, 0, 1]),
                "mac_address 0a:58:00:00:00:01 is not 0a:58:0a:00:00:08",
            ),
        ] {
            let error = ipam.allocate("a", "n1", Some(&asking(ip, mac)), now()).unwrap_err().to_string();
            assert!(error.starts_with("annotation ovn: ") && error.contains(says), "{ip}: {error}");
        }
        let gateway = Some([10, 0, 0, 2].into());
        let wish = PrimaryWish { gateway, ..asking("10.0.0.8", None) };
        let error = ipam.allocate("a", "n1", Some(&wish), now()).unwrap_err().to_string();
        assert!(error.contains("gateway_ip 10.0.0.2 is not the gateway of node n1, 10.0.0.1"), "{error}");
        assert_eq!(ipam.len(), 1);
        assert_eq!(ipam.allocate("a", "n1", None, now()).unwrap().addresses[0].to_string(), "10.0.0.10/24");
    }

    #[test]
    fn addresses_go_round_and_rest_before_they_are_given_again() {
        let mut ipam = ipam("10.0.0.0/29");
        let start = now();
        let give = |ipam: &mut Ipam, uid: &str, at: Instant| {
            ipam.allocate(uid, "n1", None, at).unwrap().addresses[0].addr().to_string()
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
        assert!(ipam.allocate("h", "n1", None, later).is_err());
    }

    #[test]
    fn a_node_that_goes_takes_its_allocations_along() {
        let mut ipam = ipam("10.0.0.0/29");
        ipam.allocate("a", "n1", None, now()).unwrap();
        ipam.remove_node("n1");
        assert!(ipam.is_empty());
        ipam.set_node("n2", &["10.0.0.0/29".parse().unwrap()]);
        assert_eq!(ipam.allocate("b", "n2", None, now()).unwrap().addresses[0].to_string(), "10.0.0.3/29");
    }

    #[test]
    fn both_families_are_given() {
        let mut ipam = Ipam::default();
        ipam.set_node("n1", &["10.0.0.0/24".parse().unwrap(), "fd00::/64".parse().unwrap()]);
        let a = ipam.allocate("a", "n1", None, now()).unwrap();
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
                    Step::Allocate(pod) => { let _ = ipam.allocate(&pod.to_string(), "n1", None, now()); }
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
                prop_assert!(ipam.allocate(&uid, "n1", None, now()).is_ok());
            }
            prop_assert!(ipam.allocate("last", "n1", None, now()).is_err());
        }
    }
}
