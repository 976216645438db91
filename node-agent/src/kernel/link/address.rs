//! Addresses and permanent neighbour entries of interfaces.

use std::net::IpAddr;

use api::MacAddr;
use ipnet::IpNet;
use rtnetlink::packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage, CacheInfo};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};

use super::{LinkError, Netlink};

/// A permanent neighbour entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neighbour {
    /// IP address.
    pub ip: IpAddr,
    /// MAC address.
    pub mac: MacAddr,
}

#[expect(
    clippy::missing_errors_doc,
    reason = "each fails with LinkError, which names interface and operation"
)]
impl Netlink {
    /// Adds an address with its prefix length. IPv6 addresses are added without duplicate address detection, for immediate use.
    pub async fn add_address(&self, index: u32, name: &str, address: IpNet) -> Result<(), LinkError> {
        self.put_address(index, name, address, false, false).await
    }

    /// Adds an address as [`Netlink::add_address`] does; an existing address is not an error.
    pub async fn replace_address(&self, index: u32, name: &str, address: IpNet) -> Result<(), LinkError> {
        self.put_address(index, name, address, true, false).await
    }

    /// Makes sure of an address that no connection gets as its source by the kernel's choice: an IPv6 address is deprecated (RFC 6724, rule 3
    /// of source address selection). IPv4 has no such addresses; there the choice is one of the next hop's subnet.
    pub async fn ensure_passive_address(
        &self,
        index: u32,
        name: &str,
        address: IpNet,
    ) -> Result<(), LinkError> {
        let there = self.address_messages(index, name).await?.into_iter();
        let there = there.filter(|message| address_of(message) == Some(address)).collect::<Vec<_>>();
        let is_passive = |message: &AddressMessage| {
            address.addr().is_ipv4() || message.header.flags.contains(AddressHeaderFlags::Deprecated)
        };
        if there.iter().any(is_passive) {
            return Ok(());
        }
        self.put_address(index, name, address, true, true).await
    }

    async fn put_address(
        &self,
        index: u32,
        name: &str,
        address: IpNet,
        replace: bool,
        passive: bool,
    ) -> Result<(), LinkError> {
        let mut request = self.raw().address().add(index, address.addr(), address.prefix_len());
        if address.addr().is_ipv6() {
            let message = request.message_mut();
            message.header.flags |= AddressHeaderFlags::Nodad;
            if passive {
                let mut lifetimes = CacheInfo::default();
                (lifetimes.ifa_preferred, lifetimes.ifa_valid) = (0, u32::MAX);
                message.attributes.push(AddressAttribute::CacheInfo(lifetimes));
            }
        }
        let request = if replace { request.replace() } else { request };
        let object = || format!("{name} {address}");
        request.execute().await.map_err(|e| LinkError::netlink(object(), "add an address", e))
    }

    /// Removes an address; `false` when it did not exist.
    pub async fn delete_address(&self, index: u32, name: &str, address: IpNet) -> Result<bool, LinkError> {
        let found = self.listed(|| self.raw().address().get().set_link_index_filter(index).execute()).await;
        let messages: Vec<AddressMessage> =
            found.map_err(|e| LinkError::netlink(name, "list addresses", e))?;
        for message in messages {
            if address_of(&message) == Some(address) {
                let object = format!("{name} {address}");
                return match self.raw().address().del(message).execute().await {
                    Ok(()) => Ok(true),
                    Err(e) => {
                        let error = LinkError::netlink(object, "remove an address", e);
                        if error.is_missing() { Ok(false) } else { Err(error) }
                    }
                };
            }
        }
        Ok(false)
    }

    /// Lists addresses of an interface, including link-local ones, in the kernel's order.
    pub async fn addresses(&self, index: u32, name: &str) -> Result<Vec<IpNet>, LinkError> {
        Ok(self.address_messages(index, name).await?.iter().filter_map(address_of).collect())
    }

    async fn address_messages(&self, index: u32, name: &str) -> Result<Vec<AddressMessage>, LinkError> {
        let found = self.listed(|| self.raw().address().get().set_link_index_filter(index).execute()).await;
        let mut messages: Vec<AddressMessage> =
            found.map_err(|e| LinkError::netlink(name, "list addresses", e))?;
        // Older kernels do not filter.
        messages.retain(|message| message.header.index == index);
        Ok(messages)
    }

    /// Sets a permanent neighbour entry, replacing an existing one.
    pub async fn replace_neighbour(
        &self,
        index: u32,
        name: &str,
        neighbour: Neighbour,
    ) -> Result<(), LinkError> {
        let request = self
            .raw()
            .neighbours()
            .add(index, neighbour.ip)
            .link_layer_address(&neighbour.mac.0)
            .state(NeighbourState::Permanent)
            .replace();
        let object = || format!("{name} {}", neighbour.ip);
        request.execute().await.map_err(|e| LinkError::netlink(object(), "set a permanent neighbour", e))
    }

    /// Removes the neighbour entry of `ip`; `false` when it did not exist.
    pub async fn delete_neighbour(&self, index: u32, name: &str, ip: IpAddr) -> Result<bool, LinkError> {
        let found = self.listed(|| self.raw().neighbours().get().execute()).await;
        let messages: Vec<NeighbourMessage> =
            found.map_err(|e| LinkError::netlink(name, "list neighbours", e))?;
        for message in messages {
            if message.header.ifindex == index && neighbour_ip(&message) == Some(ip) {
                return match self.raw().neighbours().del(message).execute().await {
                    Ok(()) => Ok(true),
                    Err(e) => {
                        let error = LinkError::netlink(format!("{name} {ip}"), "remove a neighbour", e);
                        if error.is_missing() { Ok(false) } else { Err(error) }
                    }
                };
            }
        }
        Ok(false)
    }

    /// Lists permanent neighbour entries of an interface.
    pub async fn permanent_neighbours(&self, index: u32, name: &str) -> Result<Vec<Neighbour>, LinkError> {
        let found = self.listed(|| self.raw().neighbours().get().execute()).await;
        let messages: Vec<NeighbourMessage> =
            found.map_err(|e| LinkError::netlink(name, "list neighbours", e))?;
        let permanent = messages
            .iter()
            .filter(|m| m.header.ifindex == index && m.header.state == NeighbourState::Permanent);
        Ok(permanent
            .filter_map(|m| Some(Neighbour { ip: neighbour_ip(m)?, mac: neighbour_mac(m)? }))
            .collect())
    }
}

fn address_of(message: &AddressMessage) -> Option<IpNet> {
    // For IPv4 `Local` is the address and `Address` the peer of a point-to-point link; for IPv6 there is `Address` only.
    let local = message.attributes.iter().find_map(|a| match a {
        AddressAttribute::Local(ip) => Some(*ip),
        _ => None,
    });
    let address = message.attributes.iter().find_map(|a| match a {
        AddressAttribute::Address(ip) => Some(*ip),
        _ => None,
    });
    IpNet::new(local.or(address)?, message.header.prefix_len).ok()
}

fn neighbour_ip(message: &NeighbourMessage) -> Option<IpAddr> {
    message.attributes.iter().find_map(|a| match a {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => Some(IpAddr::V4(*ip)),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)) => Some(IpAddr::V6(*ip)),
        _ => None,
    })
}

fn neighbour_mac(message: &NeighbourMessage) -> Option<MacAddr> {
    message.attributes.iter().find_map(|a| match a {
        NeighbourAttribute::LinkLayerAddress(bytes) => {
            <[u8; 6]>::try_from(bytes.as_slice()).ok().map(MacAddr)
        }
        _ => None,
    })
}
