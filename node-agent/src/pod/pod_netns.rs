//! Configuration of the interface in a pod's network namespace, and its verification for CHECK.

use crate::kernel::sysctl;
use std::net::IpAddr;

use api::MacAddr;
use api::annotation::PodNetwork;
use ipnet::IpNet;

use crate::kernel::link::{Link, LinkError, Netlink, Route, ethtool};
use crate::kernel::netns::Netns;
use crate::pod::AttachError;

/// Expected configuration of an interface in a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodSide {
    /// Interface name.
    pub ifname: String,
    /// MAC address.
    pub mac: MacAddr,
    /// The MAC address was set at creation already.
    pub mac_is_set: bool,
    /// Addresses.
    pub addresses: Vec<IpNet>,
    /// Default gateways.
    pub gateways: Vec<IpAddr>,
    /// Additional routes: destination and next hop.
    pub routes: Vec<(IpNet, IpAddr)>,
    /// Turn transmit checksum offload off.
    pub complete_checksums: bool,
    /// Default routes of this interface take the place of those that the pod has: of another plugin, whose interface came before.
    pub takes_default: bool,
    /// The addresses and routes are not set with the rest but by [`address`]: first the network is asked whether others use them.
    pub addresses_later: bool,
}

/// Default gateways of an entry of the pod's annotation.
pub fn gateways(network: &PodNetwork) -> Vec<IpAddr> {
    // Older writers set the singular form only.
    match (&network.gateway_ips[..], network.gateway_ip) {
        ([], Some(one)) => vec![one],
        (list, _) => list.to_vec(),
    }
}

/// Configures interfaces of one pod, one after the other.
///
/// # Errors
/// An interface cannot be configured; the ones after it are left as they are.
pub async fn configure(sides: Vec<PodSide>, netns: &Netns) -> Result<(), AttachError> {
    let work = async move |netlink: Netlink| {
        for side in &sides {
            side.apply(&netlink).await?;
        }
        Ok::<_, LinkError>(())
    };
    inside(netns, work).await?.map_err(AttachError::from)
}

/// Sets the addresses and routes of interfaces of one pod that [`configure`] left out.
///
/// # Errors
/// An interface cannot be configured; the ones after it are left as they are.
pub async fn address(sides: Vec<PodSide>, netns: &Netns) -> Result<(), AttachError> {
    let work = async move |netlink: Netlink| {
        for side in sides.iter().filter(|side| side.addresses_later) {
            let index = netlink.get(&side.ifname).await?.index;
            side.add_addresses(&netlink, index).await?;
            side.add_routes(&netlink, index).await?;
        }
        Ok::<_, LinkError>(())
    };
    inside(netns, work).await?.map_err(AttachError::from)
}

/// Compares interfaces of one pod with the expected configuration; returns the differences. Additional addresses and routes are
/// ignored.
///
/// # Errors
/// An interface cannot be read.
pub async fn differences(sides: Vec<PodSide>, netns: &Netns) -> Result<Vec<String>, AttachError> {
    let work = async move |netlink: Netlink| {
        let mut wrong = Vec::new();
        for side in &sides {
            wrong.extend(side.compare(&netlink).await?);
        }
        Ok::<_, LinkError>(wrong)
    };
    inside(netns, work).await?.map_err(AttachError::from)
}

impl PodSide {
    /// Configuration from the pod's annotation.
    pub fn new(ifname: &str, network: &PodNetwork, mac_is_set: bool, complete_checksums: bool) -> Self {
        Self {
            ifname: ifname.to_owned(),
            mac: network.mac_address,
            mac_is_set,
            addresses: network.ip_addresses.clone(),
            gateways: gateways(network),
            routes: network.routes.iter().map(|r| (r.dest, r.next_hop)).collect(),
            complete_checksums,
            takes_default: false,
            addresses_later: network.detect_duplicates,
        }
    }

    /// Gateway with the IP version of `address`.
    pub fn gateway_of(&self, address: &IpNet) -> Option<IpAddr> {
        self.gateways.iter().copied().find(|g| g.is_ipv4() == address.addr().is_ipv4())
    }

    /// All routes: destination and next hop, default routes first.
    pub fn all_routes(&self) -> Vec<(IpNet, IpAddr)> {
        let route = |route: Route| Some((route.dest, route.gateway?));
        self.routes_of(0).into_iter().filter_map(route).collect()
    }

    fn routes_of(&self, index: u32) -> Vec<Route> {
        let defaults = self.gateways.iter().map(|gateway| Route::default_via(*gateway, index));
        defaults.chain(self.routes.iter().map(|(dest, via)| Route::via(*dest, *via, index))).collect()
    }

    async fn apply(&self, netlink: &Netlink) -> Result<(), LinkError> {
        let name = &self.ifname;
        let index = netlink.get(name).await?.index;
        if !self.mac_is_set {
            netlink.set_mac(index, name, self.mac).await?;
        }
        if self.addresses.iter().any(|a| a.addr().is_ipv6()) {
            sysctl::set_interface("ipv6", name, "disable_ipv6", "0")?;
            sysctl::set_interface("ipv6", name, "accept_dad", "0")?;
            sysctl::set_interface("ipv6", name, "accept_ra", "0")?;
        } else {
            netlink.no_ipv6_address(index, name).await?;
        }
        if self.complete_checksums {
            ethtool::disable_tx_checksum(name)?;
        }
        if self.addresses_later {
            return netlink.set_up(index, name).await;
        }
        self.add_addresses(netlink, index).await?;
        netlink.set_up(index, name).await?;
        self.add_routes(netlink, index).await
    }

    async fn add_addresses(&self, netlink: &Netlink, index: u32) -> Result<(), LinkError> {
        for address in &self.addresses {
            netlink.add_address(index, &self.ifname, *address).await?;
        }
        Ok(())
    }

    async fn add_routes(&self, netlink: &Netlink, index: u32) -> Result<(), LinkError> {
        let name = &self.ifname;
        for route in self.routes_of(index) {
            if self.takes_default && route.dest.prefix_len() == 0 {
                netlink.replace_route(name, &route).await?;
            } else {
                netlink.add_route(name, &route).await?;
            }
        }
        Ok(())
    }

    async fn compare(&self, netlink: &Netlink) -> Result<Vec<String>, LinkError> {
        let name = &self.ifname;
        let Some(link) = netlink.find(name).await? else {
            return Ok(vec![format!("interface {name} is not in the namespace")]);
        };
        let mut wrong = self.link_differences(&link);
        let addresses = netlink.addresses(link.index, name).await?;
        for address in &self.addresses {
            if !addresses.contains(address) {
                wrong.push(format!("{name}: address {address} is missing"));
            }
        }
        let mut routes = netlink.routes(false, 254).await?;
        routes.extend(netlink.routes(true, 254).await?);
        for want in self.routes_of(link.index) {
            let same = |r: &&Route| {
                r.dest.trunc() == want.dest.trunc()
                    && r.gateway == want.gateway
                    && r.interface == want.interface
            };
            if routes.iter().find(same).is_none() {
                wrong.push(format!("{name}: {want} is missing"));
            }
        }
        Ok(wrong)
    }

    fn link_differences(&self, link: &Link) -> Vec<String> {
        let name = &self.ifname;
        let mut wrong = Vec::new();
        if !link.up {
            wrong.push(format!("interface {name} is down"));
        }
        if link.mac != Some(self.mac) {
            let has = link.mac.map_or_else(|| "none".to_owned(), |m| m.to_string());
            wrong.push(format!("{name}: MAC address is {has}, not {}", self.mac));
        }
        wrong
    }
}

/// Runs `work` with a netlink handle of the namespace, on a thread in it.
async fn inside<T, F, Fut>(netns: &Netns, work: F) -> Result<T, AttachError>
where
    T: Send + 'static,
    F: FnOnce(Netlink) -> Fut + Send + 'static,
    Fut: Future<Output = T>,
{
    let body = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        let runtime = runtime.map_err(|e| AttachError::Thread {
            what: "start a runtime in the pod".to_owned(),
            reason: e.to_string(),
        })?;
        runtime.block_on(async move { Ok(work(Netlink::open()?).await) })
    };
    netns.run("cni-pod", body).await?
}
