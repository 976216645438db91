//! Addresses of pods on virtual networks: each network gives its own, over all nodes. A pod may ask for an address or a MAC address;
//! what it does not ask for is given as on the cluster's network. Networks may have the same ranges, so everything is kept by
//! network. What an IPAMClaim keeps is given to nobody but pods that use the claim, one at a time.

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
    /// MAC address that the pod asks for.
    pub mac: Option<MacAddr>,
    /// The IPAMClaim that the pod uses: it gets the addresses that the claim keeps, and the claim keeps those that it gets.
    pub claim: Option<&'a NamespacedName>,
    /// The pod has the addresses already, whoever they are kept for.
    pub is_old: bool,
}

/// What a pod has on a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// One address of each of the network's ranges, in their order, with the range's prefix length.
    pub addresses: Vec<IpNet>,
    /// MAC address of the pod's interface.
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
    /// A claim keeps the address.
    #[error("address {ip} is kept by IPAMClaim {claim}; a pod that names the claim gets it")]
    Kept {
        /// The address.
        ip: IpAddr,
        /// The claim.
        claim: NamespacedName,
    },
    /// The pod asks for one address, and its claim keeps another.
    #[error(
        "IPAMClaim {claim} keeps address {kept}, and the pod asks for {asked}; the pod must leave one of them out"
    )]
    ClaimDiffers {
        /// The claim.
        claim: NamespacedName,
        /// The address that it keeps.
        kept: IpAddr,
        /// The address that the pod asks for.
        asked: IpAddr,
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
    /// First bytes of MAC addresses that follow from addresses.
    prefix: [u8; 2],
    ranges: Vec<Range>,
    ips: HashMap<IpAddr, Owner>,
    macs: HashMap<MacAddr, Owner>,
    grants: HashMap<Owner, Grant>,
    /// Addresses that claims keep.
    kept: HashMap<IpAddr, NamespacedName>,
    /// Addresses kept, by claim.
    claims: HashMap<NamespacedName, Vec<IpAddr>>,
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
            prefix: MacAddr::PREFIX,
            ranges: subnets.iter().map(range).collect(),
            ips: HashMap::new(),
            macs: HashMap::new(),
            grants: HashMap::new(),
            kept: HashMap::new(),
            claims: HashMap::new(),
        }
    }

    /// Whether these are the network's own but for what is excluded.
    fn differs_in_exclusions_only(&self, subnets: &[Subnet]) -> bool {
        let bare = |all: &[Subnet]| all.iter().map(|one| (one.net, one.gateway)).collect::<Vec<_>>();
        bare(&self.subnets) == bare(subnets)
    }

    /// Excludes other addresses. What was given stays given; what rested does no more.
    fn exclude(&mut self, subnets: &[Subnet]) {
        let Self { subnets: own, ranges, .. } = Self::new(subnets, self.router);
        (self.subnets, self.ranges) = (own, ranges);
        for ip in self.ips.keys().chain(self.kept.keys()) {
            take(&mut self.ranges, *ip);
        }
    }

    /// The place of the subnet that an address which is asked for belongs to.
    fn asked(&self, wish: StaticIp) -> Result<usize, GrantError> {
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
        Ok(at)
    }

    fn is_free(&self, ip: IpAddr, owner: Option<&Owner>) -> Result<(), GrantError> {
        match self.ips.get(&ip).filter(|other| Some(*other) != owner) {
            Some(other) => Err(GrantError::AddressTaken { ip, uid: other.uid.clone() }),
            None => Ok(()),
        }
    }

    fn is_not_kept(&self, ip: IpAddr, claim: Option<&NamespacedName>) -> Result<(), GrantError> {
        match self.kept.get(&ip).filter(|other| Some(*other) != claim) {
            Some(other) => Err(GrantError::Kept { ip, claim: other.clone() }),
            None => Ok(()),
        }
    }

    /// The addresses that a pod asks for, itself and by its claim, by the place of their subnets.
    fn wanted(&self, owner: &Owner, wish: Wish<'_>) -> Result<Vec<Option<IpAddr>>, GrantError> {
        let mut wanted: Vec<Option<IpAddr>> = vec![None; self.subnets.len()];
        for one in wish.ips {
            let at = self.asked(*one)?;
            if !wish.is_old {
                self.is_not_kept(one.ip, wish.claim)?;
            }
            wanted[at] = Some(one.ip);
        }
        if let Some((claim, kept)) =
            wish.claim.filter(|_| !wish.is_old).and_then(|claim| self.claims.get_key_value(claim))
        {
            for kept in kept.iter().copied() {
                let found = self.subnets.iter().position(|subnet| subnet.net.contains(&kept));
                let Some(place) = found.and_then(|at| wanted.get_mut(at)) else { continue };
                if let Some(asked) = place.replace(kept).filter(|asked| *asked != kept) {
                    return Err(GrantError::ClaimDiffers { claim: claim.clone(), kept, asked });
                }
            }
        }
        for ip in wanted.iter().flatten() {
            self.is_free(*ip, Some(owner))?;
        }
        Ok(wanted)
    }

    /// A claim keeps these addresses from now on, and no others.
    fn keep(&mut self, claim: &NamespacedName, ips: Vec<IpAddr>, now: Instant) {
        self.let_go(claim, now);
        for ip in &ips {
            self.kept.insert(*ip, claim.clone());
            take(&mut self.ranges, *ip);
        }
        self.claims.insert(claim.clone(), ips);
    }

    /// A claim keeps nothing any more. What no pod has is free.
    fn let_go(&mut self, claim: &NamespacedName, now: Instant) {
        for ip in self.claims.remove(claim).unwrap_or_default() {
            self.kept.remove(&ip);
            if !self.ips.contains_key(&ip) {
                give_back(&mut self.ranges, ip, now);
            }
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
        let asked = self.wanted(owner, wish)?;
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
            let mac = wish.mac.unwrap_or_else(|| MacAddr::with_prefix(self.prefix, first));
            match self.mac_is_free(mac, owner) {
                Ok(()) => break Grant { addresses, mac },
                // Another free address has another MAC address.
                Err(_) if asked.first() == Some(&None) && passed < MAX_PASSED => passed += 1,
                Err(error) => return Err(error),
            }
        };
        let ips: Vec<IpAddr> = grant.addresses.iter().map(IpNet::addr).collect();
        for ip in &ips {
            take(&mut self.ranges, *ip);
            self.ips.insert(*ip, owner.clone());
        }
        self.macs.insert(grant.mac, owner.clone());
        self.grants.insert(owner.clone(), grant.clone());
        // A claim that keeps something else keeps that for the pod's next life.
        let may_keep = |claim: &&NamespacedName| {
            ips.iter().all(|ip| self.is_not_kept(*ip, Some(claim)).is_ok())
                && (!wish.is_old || !self.claims.contains_key(*claim))
        };
        if let Some(claim) = wish.claim.filter(may_keep) {
            self.keep(claim, ips, now);
        }
        Ok(grant)
    }

    fn release(&mut self, owner: &Owner, now: Instant) {
        let Some(grant) = self.grants.remove(owner) else { return };
        for net in &grant.addresses {
            self.ips.remove(&net.addr());
            if !self.kept.contains_key(&net.addr()) {
                give_back(&mut self.ranges, net.addr(), now);
            }
        }
        self.macs.remove(&grant.mac);
    }
}

fn take(ranges: &mut [Range], ip: IpAddr) {
    for range in ranges {
        if let Some(offset) = range.offset(ip) {
            range.take(offset);
        }
    }
}

fn give_back(ranges: &mut [Range], ip: IpAddr, now: Instant) {
    for range in ranges {
        if let Some(offset) = range.offset(ip) {
            range.give_back(offset, now);
        }
    }
}

/// The addresses of all networks.
#[derive(Debug, Default)]
pub struct NetworkIpam {
    pools: BTreeMap<NamespacedName, Pool>,
    /// What each pod has, by its UID: network and key.
    pods: HashMap<String, BTreeSet<(NamespacedName, String)>>,
    /// The network of each claim that keeps something.
    claims: HashMap<NamespacedName, NamespacedName>,
}

impl NetworkIpam {
    /// Sets the ranges of a network. `router`: MAC address of its port on a router, if it has one. A network that had others
    /// loses what it gave, unless only what is excluded changed or a router came or went.
    pub fn set(&mut self, network: &NamespacedName, subnets: &[Subnet], router: Option<MacAddr>) {
        let known = self.pools.get(network);
        if known.is_some_and(|pool| pool.subnets == subnets && pool.router == router) {
            return;
        }
        if let Some(pool) = self.pools.get_mut(network)
            && pool.differs_in_exclusions_only(subnets)
        {
            pool.router = router;
            pool.exclude(subnets);
            return;
        }
        self.remove(network);
        self.pools.insert(network.clone(), Pool::new(subnets, router));
    }

    /// Sets the first bytes of the MAC addresses that a network gives from now on.
    pub fn set_mac_prefix(&mut self, network: &NamespacedName, prefix: [u8; 2]) {
        if let Some(pool) = self.pools.get_mut(network) {
            pool.prefix = prefix;
        }
    }

    /// What a pod has of that which a router would need, and the pod's UID.
    pub fn holder(
        &self,
        network: &NamespacedName,
        gateways: &[IpAddr],
        mac: MacAddr,
    ) -> Option<(String, String)> {
        let pool = self.pools.get(network)?;
        let address = |ip: &IpAddr| Some((format!("address {ip}"), pool.ips.get(ip)?.uid.clone()));
        let by_mac = || Some((format!("MAC address {mac}"), pool.macs.get(&mac)?.uid.clone()));
        gateways.iter().find_map(address).or_else(by_mac)
    }

    /// Removes a network with everything that it gave.
    pub fn remove(&mut self, network: &NamespacedName) {
        let Some(pool) = self.pools.remove(network) else { return };
        for owner in pool.grants.into_keys() {
            self.forget(network, &owner);
        }
        for claim in pool.claims.into_keys() {
            self.claims.remove(&claim);
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
        // A claim keeps addresses of one network.
        let claim = wish.claim.filter(|claim| self.claims.get(*claim).is_none_or(|other| other == network));
        let wish = Wish { claim, ..wish };
        let grant = pool.give(owner, wish, now)?;
        self.claims.extend(
            wish.claim
                .filter(|claim| pool.claims.contains_key(*claim))
                .map(|claim| (claim.clone(), network.clone())),
        );
        self.pods.entry(owner.uid.clone()).or_default().insert((network.clone(), owner.key.clone()));
        Ok(grant)
    }

    /// A claim keeps these addresses of a network from now on, whether or not a pod has them; one that keeps others goes on with those.
    ///
    /// # Errors
    /// They are not the network's, or somebody else has one of them or keeps it. The claim keeps nothing then.
    pub fn keep(
        &mut self,
        network: &NamespacedName,
        claim: &NamespacedName,
        ips: &[IpNet],
        now: Instant,
    ) -> Result<(), GrantError> {
        if self.claims.contains_key(claim) {
            return Ok(());
        }
        let pool = self.pools.get_mut(network).ok_or(GrantError::NotReady)?;
        for net in ips {
            pool.asked(StaticIp { ip: net.addr(), prefix_len: Some(net.prefix_len()) })?;
            pool.is_not_kept(net.addr(), None)?;
            pool.is_free(net.addr(), None)?;
        }
        pool.keep(claim, ips.iter().map(IpNet::addr).collect(), now);
        self.claims.insert(claim.clone(), network.clone());
        Ok(())
    }

    /// A claim keeps what an owner has, unless it keeps something else, or another claim keeps one of the addresses.
    pub fn adopt(&mut self, network: &NamespacedName, owner: &Owner, claim: &NamespacedName, now: Instant) {
        let Some(pool) = self.pools.get_mut(network).filter(|_| !self.claims.contains_key(claim)) else {
            return;
        };
        let Some(grant) = pool.grants.get(owner) else { return };
        let ips: Vec<IpAddr> = grant.addresses.iter().map(IpNet::addr).collect();
        if ips.iter().all(|ip| pool.is_not_kept(*ip, None).is_ok()) {
            pool.keep(claim, ips, now);
            self.claims.insert(claim.clone(), network.clone());
        }
    }

    /// The network of a claim, and the addresses that it keeps there; none if it keeps nothing.
    pub fn kept(&self, claim: &NamespacedName) -> Option<(&NamespacedName, Vec<IpNet>)> {
        let network = self.claims.get(claim)?;
        let pool = self.pools.get(network)?;
        let with_length = |ip: &IpAddr| {
            let subnet = pool.subnets.iter().find(|subnet| subnet.net.contains(ip))?;
            IpNet::new(*ip, subnet.net.prefix_len()).ok()
        };
        Some((network, pool.claims.get(claim)?.iter().filter_map(with_length).collect()))
    }

    /// A claim keeps nothing any more. Returns its network.
    pub fn let_go(&mut self, claim: &NamespacedName, now: Instant) -> Option<NamespacedName> {
        let network = self.claims.remove(claim)?;
        self.pools.get_mut(&network)?.let_go(claim, now);
        Some(network)
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
