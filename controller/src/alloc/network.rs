//! Addresses of pods on virtual networks: each network gives its own, over all nodes. A pod may ask for an address or a MAC address;
//! what it does not ask for is given as on the cluster's network. Networks may have the same ranges, so everything is kept by
//! network.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::Instant;

use api::pod_attachments::StaticIp;
use api::virtual_network::Subnet;
use api::{MacAddr, NamespacedName};
use ipnet::IpNet;

use super::range::Range;

/// Offsets of a range that no pod gets: the network address.
const RESERVED: u32 = 1;
/// Free addresses that are passed over because another pod asked for the MAC address that follows from them.
const MAX_PASSED: u32 = 64;

/// Who has an address: a pod by its UID, with the key of the attachment in its annotation.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    /// The pod's UID.
    pub uid: String,
    /// The key.
    pub key: String,
}

/// What a pod asks for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wish<'a> {
    /// At most one of each family.
    pub ips: &'a [StaticIp],
    pub mac: Option<MacAddr>,
}

/// What a pod has on a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// One address of each of the network's ranges, in their order, with the range's prefix length.
    pub addresses: Vec<IpNet>,
    pub mac: MacAddr,
}

/// Why a pod gets nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// The network has no ranges.
    #[error("the network is not ready")]
    NotReady,
    /// All addresses are taken.
    #[error("no free address is left in {0}; remove pods from the network, or use a larger one")]
    Exhausted(IpNet),
    /// The address is not the network's.
    #[error("address {ip} is not in {subnets}")]
    OutOfRange {
        /// The address.
        ip: IpAddr,
        /// The network's ranges.
        subnets: String,
    },
    /// The prefix length is not the network's.
    #[error("address {ip}/{found}: the network has /{right}")]
    Prefix {
        /// The address.
        ip: IpAddr,
        /// The length given.
        found: u8,
        /// The network's.
        right: u8,
    },
    /// No host may have the address.
    #[error("address {ip} is the first or last one of {net}, which no host has")]
    NoHost {
        /// The address.
        ip: IpAddr,
        /// The network's range.
        net: IpNet,
    },
    /// The router has the address.
    #[error("address {0} is the network's gateway")]
    Gateway(IpAddr),
    /// Another pod has the address.
    #[error("address {ip} belongs to another pod (UID {uid})")]
    AddressTaken {
        /// The address.
        ip: IpAddr,
        /// UID of the pod that has it.
        uid: String,
    },
    /// Another pod has the MAC address.
    #[error("MAC address {mac} belongs to another pod (UID {uid})")]
    MacTaken {
        /// The address.
        mac: MacAddr,
        /// UID of the pod that has it.
        uid: String,
    },
    /// The router has the MAC address.
    #[error("MAC address {0} is that of the network's gateway")]
    GatewayMac(MacAddr),
}

/// One network.
#[derive(Debug)]
struct Pool {
    subnets: Vec<Subnet>,
    /// MAC address of the router's port, if there is one.
    router: Option<MacAddr>,
    ranges: Vec<Range>,
    ips: HashMap<IpAddr, Owner>,
    macs: HashMap<MacAddr, Owner>,
    grants: HashMap<Owner, Grant>,
}

impl Pool {
    fn new(subnets: &[Subnet], router: Option<MacAddr>) -> Self {
        let range = |subnet: &Subnet| {
            let range = Range::new(subnet.net, RESERVED).without(&IpNet::from(subnet.gateway));
            subnet.excluded.iter().fold(range, Range::without)
        };
        Self {
            subnets: subnets.to_vec(),
            router,
            ranges: subnets.iter().map(range).collect(),
            ips: HashMap::new(),
            macs: HashMap::new(),
            grants: HashMap::new(),
        }
    }

    /// Whether these are the network's own but for what is excluded.
    fn differs_in_exclusions_only(&self, subnets: &[Subnet], router: Option<MacAddr>) -> bool {
        let bare = |all: &[Subnet]| all.iter().map(|one| (one.net, one.gateway)).collect::<Vec<_>>();
        self.router == router && bare(&self.subnets) == bare(subnets)
    }

    /// Excludes other addresses. What was given stays given; what rested does no more.
    fn exclude(&mut self, subnets: &[Subnet]) {
        let Self { subnets: own, ranges, .. } = Self::new(subnets, self.router);
        (self.subnets, self.ranges) = (own, ranges);
        for ip in self.ips.keys() {
            for range in &mut self.ranges {
                if let Some(offset) = range.offset(*ip) {
                    range.take(offset);
                }
            }
        }
    }

    /// The place of the subnet that an address which is asked for belongs to.
    fn asked(&self, wish: StaticIp, owner: &Owner) -> Result<usize, GrantError> {
        let StaticIp { ip, prefix_len } = wish;
        let found = self.subnets.iter().position(|subnet| subnet.net.contains(&ip));
        let Some(at) = found else {
            let subnets: Vec<_> = self.subnets.iter().map(|subnet| subnet.net.to_string()).collect();
            return Err(GrantError::OutOfRange { ip, subnets: subnets.join(", ") });
        };
        let subnet = &self.subnets[at];
        let right = subnet.net.prefix_len();
        if let Some(found) = prefix_len.filter(|found| *found != right) {
            return Err(GrantError::Prefix { ip, found, right });
        }
        if ip == subnet.net.network() || (ip.is_ipv4() && ip == subnet.net.broadcast()) {
            return Err(GrantError::NoHost { ip, net: subnet.net });
        }
        // Where no router is, a pod may be the gateway.
        if self.router.is_some() && ip == subnet.gateway {
            return Err(GrantError::Gateway(ip));
        }
        match self.ips.get(&ip).filter(|other| *other != owner) {
            Some(other) => Err(GrantError::AddressTaken { ip, uid: other.uid.clone() }),
            None => Ok(at),
        }
    }

    fn mac_is_free(&self, mac: MacAddr, owner: &Owner) -> Result<(), GrantError> {
        if self.router == Some(mac) {
            return Err(GrantError::GatewayMac(mac));
        }
        match self.macs.get(&mac).filter(|other| *other != owner) {
            Some(other) => Err(GrantError::MacTaken { mac, uid: other.uid.clone() }),
            None => Ok(()),
        }
    }

    fn give(&mut self, owner: &Owner, wish: Wish<'_>, now: Instant) -> Result<Grant, GrantError> {
        let mut asked: Vec<Option<IpAddr>> = vec![None; self.subnets.len()];
        for one in wish.ips {
            let at = self.asked(*one, owner)?;
            asked[at] = Some(one.ip);
        }
        if let Some(mac) = wish.mac {
            self.mac_is_free(mac, owner)?;
        }
        let mut passed = 0;
        let grant = loop {
            let mut addresses = Vec::with_capacity(asked.len());
            for (range, asked) in self.ranges.iter_mut().zip(&asked) {
                let free = asked.or_else(|| range.next_free(now).and_then(|offset| range.address(offset)));
                let ip = free.ok_or(GrantError::Exhausted(range.net()))?;
                // The range's own prefix length always fits its family.
                addresses.extend(IpNet::new(ip, range.net().prefix_len()));
            }
            let first = addresses.first().map(IpNet::addr).ok_or(GrantError::NotReady)?;
            let mac = wish.mac.unwrap_or_else(|| MacAddr::from_ip(first));
            match self.mac_is_free(mac, owner) {
                Ok(()) => break Grant { addresses, mac },
                // Another free address has another MAC address.
                Err(_) if asked.first() == Some(&None) && passed < MAX_PASSED => passed += 1,
                Err(error) => return Err(error),
            }
        };
        for (range, net) in self.ranges.iter_mut().zip(&grant.addresses) {
            if let Some(offset) = range.offset(net.addr()) {
                range.take(offset);
            }
            self.ips.insert(net.addr(), owner.clone());
        }
        self.macs.insert(grant.mac, owner.clone());
        self.grants.insert(owner.clone(), grant.clone());
        Ok(grant)
    }

    fn release(&mut self, owner: &Owner, now: Instant) {
        let Some(grant) = self.grants.remove(owner) else { return };
        for net in &grant.addresses {
            self.ips.remove(&net.addr());
            for range in &mut self.ranges {
                if let Some(offset) = range.offset(net.addr()) {
                    range.give_back(offset, now);
                }
            }
        }
        self.macs.remove(&grant.mac);
    }
}

/// The addresses of all networks.
#[derive(Debug, Default)]
pub struct NetworkIpam {
    pools: BTreeMap<NamespacedName, Pool>,
    /// What each pod has, by its UID: network and key.
    pods: HashMap<String, BTreeSet<(NamespacedName, String)>>,
}

impl NetworkIpam {
    /// Sets the ranges of a network. `router`: MAC address of its port on a router, if it has one. A network that had others
    /// loses what it gave, unless only what is excluded changed.
    pub fn set(&mut self, network: &NamespacedName, subnets: &[Subnet], router: Option<MacAddr>) {
        let known = self.pools.get(network);
        if known.is_some_and(|pool| pool.subnets == subnets && pool.router == router) {
            return;
        }
        if let Some(pool) = self.pools.get_mut(network)
            && pool.differs_in_exclusions_only(subnets, router)
        {
            pool.exclude(subnets);
            return;
        }
        self.remove(network);
        self.pools.insert(network.clone(), Pool::new(subnets, router));
    }

    /// Removes a network with everything that it gave.
    pub fn remove(&mut self, network: &NamespacedName) {
        let Some(pool) = self.pools.remove(network) else { return };
        for owner in pool.grants.into_keys() {
            self.forget(network, &owner);
        }
    }

    fn forget(&mut self, network: &NamespacedName, owner: &Owner) {
        if let Some(held) = self.pods.get_mut(&owner.uid) {
            held.remove(&(network.clone(), owner.key.clone()));
            if held.is_empty() {
                self.pods.remove(&owner.uid);
            }
        }
    }

    /// What an owner has on a network.
    pub fn get(&self, network: &NamespacedName, owner: &Owner) -> Option<&Grant> {
        self.pools.get(network)?.grants.get(owner)
    }

    /// Whether a pod has anything on any network.
    pub fn has_pod(&self, uid: &str) -> bool {
        self.pods.contains_key(uid)
    }

    /// Gives an owner addresses on a network, or what it has.
    ///
    /// # Errors
    /// What it asks for is not possible, or nothing is left. It gets nothing then.
    pub fn give(
        &mut self,
        network: &NamespacedName,
        owner: &Owner,
        wish: Wish<'_>,
        now: Instant,
    ) -> Result<Grant, GrantError> {
        let pool = self.pools.get_mut(network).ok_or(GrantError::NotReady)?;
        if let Some(grant) = pool.grants.get(owner) {
            return Ok(grant.clone());
        }
        let grant = pool.give(owner, wish, now)?;
        self.pods.entry(owner.uid.clone()).or_default().insert((network.clone(), owner.key.clone()));
        Ok(grant)
    }

    /// Takes back what was given on one network.
    pub fn take_back(&mut self, network: &NamespacedName, owner: &Owner, now: Instant) {
        if let Some(pool) = self.pools.get_mut(network) {
            pool.release(owner, now);
        }
        self.forget(network, owner);
    }

    /// Frees all that a pod has, and returns the networks. The addresses rest before another pod gets them.
    pub fn release(&mut self, uid: &str, now: Instant) -> BTreeSet<NamespacedName> {
        let held = self.pods.remove(uid).unwrap_or_default();
        for (network, key) in &held {
            if let Some(pool) = self.pools.get_mut(network) {
                pool.release(&Owner { uid: uid.to_owned(), key: key.clone() }, now);
            }
        }
        held.into_iter().map(|(network, _)| network).collect()
    }

    /// Number of interfaces that have addresses of a network, and of those that could get some besides.
    pub fn counts(&self, network: &NamespacedName) -> (u64, u64) {
        let Some(pool) = self.pools.get(network) else { return (0, 0) };
        let used = u64::try_from(pool.grants.len()).unwrap_or(u64::MAX);
        (used, pool.ranges.iter().map(Range::free).min().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests;
