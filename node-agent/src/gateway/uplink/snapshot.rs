//! Snapshots of addresses and routes as complete netlink messages, so that they can be moved to another interface and back without
//! losing attributes (metric, scope, lifetime, source, multiple next hops).

use std::fmt;
use std::net::IpAddr;

use futures::StreamExt;
use ipnet::IpNet;
use rtnetlink::packet_core::{
    Emitable, NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload, Parseable,
};
use rtnetlink::packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, AddressScope, CacheInfo,
};
use rtnetlink::packet_route::neighbour::{NeighbourAttribute, NeighbourMessage, NeighbourState};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteNextHopFlags, RouteProtocol, RouteType,
};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use serde::{Deserialize, Serialize};

use crate::kernel::link::{LinkError, Netlink};

/// Table of addresses that are the node's own (`RT_TABLE_LOCAL`, linux/rtnetlink.h).
const LOCAL_TABLE: u8 = 255;

/// The main table, as routes' headers have it.
const MAIN_TABLE: u8 = 254;
/// Routing protocols of routing daemons (/etc/iproute2/rt_protos): zebra, bird, keepalived, babel, openr; and from bgp to eigrp.
const DAEMONS: [u8; 5] = [11, 12, 18, 42, 99];
const ROUTING: std::ops::RangeInclusive<u8> = 186..=192;
/// Clock ticks of a second in messages of routes (`USER_HZ`).
const TICKS: u32 = 100;
/// A lifetime without an end (`INFINITY_LIFE_TIME`, linux/if_addr.h).
const FOR_EVER: u32 = u32::MAX;
/// Origin of an address (`IFA_PROTO`): the kernel, from a router advertisement; keepalived (as in /etc/iproute2/rt_protos).
const BY_ADVERTISEMENT: u8 = 2;
const BY_KEEPALIVED: u8 = 18;

/// An address with all attributes that the kernel reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedAddress {
    /// Address and prefix length.
    pub address: IpNet,
    /// Lifetime in seconds (valid, preferred) of an address from router advertisements; without them the kernel removes it at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::gateway) lifetime: Option<(u32, u32)>,
    /// The address has a lifetime set by a DHCP client. It is saved without one, as the client renews it on the other interface.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leased: bool,
    /// Not the first address of its subnet (IPv4), or a temporary address (IPv6).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub secondary: bool,
    /// keepalived added the address.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub moves: bool,
    /// Label (`eth0:1`), which must begin with the interface's name, so it is valid on that interface only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::gateway) label: Option<String>,
    /// The kernel's message (linux/rtnetlink.h, `RTM_NEWADDR`), hexadecimal.
    pub(in crate::gateway) message: String,
}

/// A route with all attributes that the kernel reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedRoute {
    /// The route as `ip route` would print it.
    pub text: String,
    /// True when it has a next hop, so that other routes must exist first.
    pub has_gateway: bool,
    /// Remaining lifetime in seconds of a route from a router advertisement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires: Option<u32>,
    /// The kernel's message (linux/rtnetlink.h, `RTM_NEWROUTE`), hexadecimal.
    message: String,
}

impl fmt::Display for SavedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

impl fmt::Display for SavedRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl SavedAddress {
    fn read(message: &AddressMessage) -> Option<Self> {
        let mut message = message.clone();
        let ip = address_of(&message)?;
        let address = IpNet::new(ip, message.header.prefix_len).ok()?;
        let label = message.attributes.iter().find_map(|a| match a {
            AddressAttribute::Label(label) => Some(label.clone()),
            _ => None,
        });
        let all = message
            .attributes
            .iter()
            .find_map(|a| match a {
                AddressAttribute::Flags(flags) => Some(*flags),
                _ => None,
            })
            .unwrap_or(AddressFlags::empty());
        // Not usable: duplicate address detection is running or has failed. The kernel sends a notification when it has ended.
        if all.intersects(AddressFlags::Tentative | AddressFlags::Dadfailed)
            && !all.contains(AddressFlags::Optimistic)
        {
            return None;
        }
        let end = message.attributes.iter().find_map(|a| match a {
            AddressAttribute::CacheInfo(times) if times.ifa_valid != FOR_EVER => {
                Some((times.ifa_valid, times.ifa_preferred))
            }
            _ => None,
        });
        let maker = message.attributes.iter().find_map(|a| match a {
            AddressAttribute::Protocol(maker) => Some(u8::from(*maker)),
            _ => None,
        });
        // Before Linux 5.18 the kernel does not report who added an address. Programs that handle advertisements themselves also add
        // the route themselves.
        let by_kernel = ip.is_ipv6()
            && match maker {
                Some(maker) if maker != 0 => maker == BY_ADVERTISEMENT,
                _ => message.header.prefix_len == 64 && !all.contains(AddressFlags::Noprefixroute),
            };
        let mut flags =
            all & (AddressFlags::Noprefixroute | AddressFlags::Managetempaddr | AddressFlags::Mcautojoin);
        if address.addr().is_ipv6() {
            // The address is in use already, so no duplicate address detection is needed.
            flags |= AddressFlags::Nodad;
        }
        message.header.flags = AddressHeaderFlags::empty();
        message.attributes.retain(|a| {
            let apart = matches!(a, AddressAttribute::Label(_) | AddressAttribute::Flags(_));
            !apart && !matches!(a, AddressAttribute::CacheInfo(_))
        });
        message.attributes.push(AddressAttribute::Flags(flags));
        Some(Self {
            address,
            lifetime: end.filter(|_| by_kernel),
            leased: end.is_some() && !by_kernel,
            secondary: all.contains(AddressFlags::Secondary),
            moves: maker == Some(BY_KEEPALIVED),
            label,
            message: to_hex(&message),
        })
    }

    /// An address without other attributes.
    #[cfg(test)]
    pub(crate) fn for_test(address: IpNet) -> Self {
        let (label, message) = (None, String::new());
        Self { address, lifetime: None, leased: false, secondary: false, moves: false, label, message }
    }

    /// Restores the label that the address had before.
    pub fn keep_label(&mut self, before: Option<&Self>) {
        if let Some(before) = before {
            self.label.clone_from(&before.label);
        }
    }

    /// True when it is the same address with the same prefix.
    pub fn is_same(&self, other: &Self) -> bool {
        self.address == other.address
    }

    fn message(&self, index: u32, name: &str) -> Result<AddressMessage, String> {
        let mut message = AddressMessage::parse(&from_hex(&self.message)?).map_err(|e| e.to_string())?;
        message.header.index = index;
        if let Some((valid, preferred)) = self.lifetime {
            let mut times = CacheInfo::default();
            (times.ifa_valid, times.ifa_preferred) = (valid, preferred);
            message.attributes.push(AddressAttribute::CacheInfo(times));
        }
        if let Some(label) = self.label.as_ref().filter(|label| label.starts_with(name)) {
            message.attributes.push(AddressAttribute::Label(label.clone()));
        }
        Ok(message)
    }
}

impl SavedRoute {
    fn read(message: &RouteMessage) -> Self {
        let mut message = message.clone();
        let expires = message.attributes.iter().find_map(|a| match a {
            RouteAttribute::CacheInfo(times) if message.header.protocol == RouteProtocol::Ra => {
                Some(times.expires / TICKS)
            }
            _ => None,
        });
        let transient = |a: &RouteAttribute| {
            matches!(a, RouteAttribute::CacheInfo(_) | RouteAttribute::Uid(_) | RouteAttribute::Expires(_))
        };
        message.attributes.retain(|a| !transient(a));
        message.header.flags &= RouteFlags::Onlink;
        for attribute in &mut message.attributes {
            if let RouteAttribute::MultiPath(hops) = attribute {
                // The kernel sets the other flags, such as whether a next hop is dead.
                hops.iter_mut().for_each(|hop| hop.flags &= RouteNextHopFlags::Onlink);
            }
        }
        let has_gateway = message.attributes.iter().any(|a| {
            matches!(a, RouteAttribute::Gateway(_) | RouteAttribute::Via(_) | RouteAttribute::MultiPath(_))
        });
        let expires = expires.filter(|seconds| *seconds > 0);
        Self { text: text_of(&message), has_gateway, expires, message: to_hex(&message) }
    }

    /// True when it is the same route; interface and remaining lifetime are ignored.
    pub fn is_same(&self, other: &Self) -> bool {
        let plain = |route: &Self| Self { expires: None, ..route.clone() }.message(0).ok();
        self.text == other.text && plain(self) == plain(other)
    }

    /// Metric and next hops through interface `index`, if it is a default route of the main table.
    pub fn default_hops(&self, index: u32) -> Option<(u32, Vec<IpAddr>)> {
        let message = self.parsed().ok()?;
        let ip = |a: &RouteAddress| match a {
            RouteAddress::Inet(ip) => Some(IpAddr::V4(*ip)),
            RouteAddress::Inet6(ip) => Some(IpAddr::V6(*ip)),
            _ => None,
        };
        let (mut metric, mut hops) = (0, Vec::new());
        if message.header.destination_prefix_length != 0 || message.header.table != MAIN_TABLE {
            return None;
        }
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Priority(value) => metric = *value,
                RouteAttribute::Gateway(hop) => hops.extend(ip(hop)),
                RouteAttribute::MultiPath(several) => {
                    for hop in several.iter().filter(|hop| hop.interface_index == index) {
                        hops.extend(hop.attributes.iter().find_map(|a| match a {
                            RouteAttribute::Gateway(hop) => ip(hop),
                            _ => None,
                        }));
                    }
                }
                _ => {}
            }
        }
        (!hops.is_empty()).then_some((metric, hops))
    }

    /// True when a routing daemon added it, which adds it again by itself.
    pub fn is_by_daemon(&self) -> bool {
        self.parsed().is_ok_and(|message| {
            let by = u8::from(message.header.protocol);
            DAEMONS.contains(&by) || ROUTING.contains(&by)
        })
    }

    fn parsed(&self) -> Result<RouteMessage, String> {
        RouteMessage::parse(&from_hex(&self.message)?).map_err(|e| e.to_string())
    }

    /// True when destination or next hop lies in `net`.
    pub fn involves(&self, net: &IpNet) -> bool {
        let Ok(message) = self.parsed() else { return false };
        message.attributes.iter().any(|a| match a {
            RouteAttribute::Destination(RouteAddress::Inet(ip))
            | RouteAttribute::Gateway(RouteAddress::Inet(ip)) => net.contains(&IpAddr::V4(*ip)),
            RouteAttribute::Destination(RouteAddress::Inet6(ip))
            | RouteAttribute::Gateway(RouteAddress::Inet6(ip)) => net.contains(&IpAddr::V6(*ip)),
            _ => false,
        })
    }

    /// The route with its interface replaced by `to`.
    fn message(&self, to: u32) -> Result<RouteMessage, String> {
        let mut message = self.parsed()?;
        message.attributes.extend(self.expires.map(RouteAttribute::Expires));
        let from = oif(&message);
        for attribute in &mut message.attributes {
            match attribute {
                RouteAttribute::Oif(index) => *index = to,
                RouteAttribute::MultiPath(hops) => {
                    for hop in hops.iter_mut().filter(|h| from.is_none_or(|f| h.interface_index == f)) {
                        hop.interface_index = to;
                    }
                }
                _ => {}
            }
        }
        Ok(message)
    }
}

impl Netlink {
    /// The interface's addresses with a scope beyond the link.
    ///
    /// # Errors
    /// The addresses cannot be listed.
    pub async fn saved_addresses(&self, index: u32, name: &str) -> Result<Vec<SavedAddress>, LinkError> {
        let found = self.listed(|| self.raw().address().get().set_link_index_filter(index).execute()).await;
        let messages: Vec<AddressMessage> =
            found.map_err(|e| LinkError::netlink(name, "list addresses", e))?;
        Ok(messages
            .iter()
            .filter(|m| m.header.index == index && m.header.scope == AddressScope::Universe)
            .filter_map(SavedAddress::read)
            .collect())
    }

    /// The routes through the interface, in all tables, except those that the kernel added with an address; those without a next hop
    /// first.
    ///
    /// # Errors
    /// The routes cannot be listed.
    pub async fn saved_routes(&self, index: u32, name: &str) -> Result<Vec<SavedRoute>, LinkError> {
        let mut routes = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut filter = RouteMessage::default();
            filter.header.address_family = family;
            let found = self.listed(|| self.raw().route().get(filter.clone()).execute()).await;
            let messages: Vec<RouteMessage> =
                found.map_err(|e| LinkError::netlink(name, "list routes", e))?;
            routes.extend(
                messages.iter().filter(|m| oif(m) == Some(index) && is_added(m)).map(SavedRoute::read),
            );
        }
        routes.sort_by_key(|r| r.has_gateway);
        Ok(routes)
    }

    /// Adds a saved address to an interface. Returns `false` when it existed already.
    ///
    /// # Errors
    /// The kernel rejects the request, or the saved message cannot be parsed.
    pub async fn put_saved_address(
        &self,
        index: u32,
        name: &str,
        saved: &SavedAddress,
    ) -> Result<bool, LinkError> {
        const WHAT: &str = "add an address";
        let object = || format!("{name} {saved}");
        let message = saved
            .message(index, name)
            .map_err(|e| LinkError::new(object(), WHAT, std::io::Error::other(e)))?;
        let flags = NLM_F_CREATE | rtnetlink::packet_core::NLM_F_EXCL;
        done(
            self.send(RouteNetlinkMessage::NewAddress(message), flags).await,
            object(),
            WHAT,
            LinkError::already_exists,
        )
    }

    /// Removes a saved address from an interface. Returns `false` when it did not exist.
    ///
    /// # Errors
    /// The kernel rejects the request, or the saved message cannot be parsed.
    pub async fn take_saved_address(
        &self,
        index: u32,
        name: &str,
        saved: &SavedAddress,
    ) -> Result<bool, LinkError> {
        const WHAT: &str = "remove an address";
        let object = || format!("{name} {saved}");
        let message = saved
            .message(index, name)
            .map_err(|e| LinkError::new(object(), WHAT, std::io::Error::other(e)))?;
        done(
            self.send(RouteNetlinkMessage::DelAddress(message), 0).await,
            object(),
            WHAT,
            LinkError::is_missing,
        )
    }

    /// Adds a saved route through an interface, beside other routes to the same destination. Returns `false` when it existed already.
    ///
    /// # Errors
    /// The kernel rejects the request, or the saved message cannot be parsed.
    pub async fn put_saved_route(
        &self,
        index: u32,
        name: &str,
        saved: &SavedRoute,
    ) -> Result<bool, LinkError> {
        const WHAT: &str = "add a route";
        let object = || format!("{name} {saved}");
        let message =
            saved.message(index).map_err(|e| LinkError::new(object(), WHAT, std::io::Error::other(e)))?;
        let flags = NLM_F_CREATE | NLM_F_APPEND;
        done(
            self.send(RouteNetlinkMessage::NewRoute(message), flags).await,
            object(),
            WHAT,
            LinkError::already_exists,
        )
    }

    /// Puts back a route like [`Netlink::put_saved_route`], but leaves out a route whose next hop is unreachable, as the kernel rejects it.
    /// That happens when another process removed the address whose subnet has the next hop.
    ///
    /// # Errors
    /// As [`Netlink::put_saved_route`], except for an unreachable next hop.
    pub async fn put_usable_route(
        &self,
        index: u32,
        name: &str,
        saved: &SavedRoute,
    ) -> Result<bool, LinkError> {
        match self.put_saved_route(index, name, saved).await {
            Err(error) if error.is_unreachable() => {
                tracing::warn!(interface = name, route = saved.text, %error, "route with an unreachable next hop omitted");
                Ok(false)
            }
            done => done,
        }
    }

    /// Removes a saved route through an interface. Returns `false` when it did not exist.
    ///
    /// # Errors
    /// The kernel rejects the request, or the saved message cannot be parsed.
    pub async fn take_saved_route(
        &self,
        index: u32,
        name: &str,
        saved: &SavedRoute,
    ) -> Result<bool, LinkError> {
        const WHAT: &str = "remove a route";
        let object = || format!("{name} {saved}");
        let message =
            saved.message(index).map_err(|e| LinkError::new(object(), WHAT, std::io::Error::other(e)))?;
        done(
            self.send(RouteNetlinkMessage::DelRoute(message), 0).await,
            object(),
            WHAT,
            LinkError::is_missing,
        )
    }

    /// Copies the neighbours that interface `from` knows to interface `to`, so that they need not be resolved again. While the
    /// migration switches between the two, replies to requests of one interface arrive on the other. A neighbour that cannot be copied
    /// is resolved as usual.
    pub async fn copy_neighbours(&self, from: u32, to: u32) {
        let found = self.listed(|| self.raw().neighbours().get().execute()).await;
        let found: Vec<NeighbourMessage> = found.unwrap_or_else(|error| {
            tracing::debug!(from, %error, "cannot list neighbour entries");
            Vec::new()
        });
        let mut known = Vec::new();
        for message in found {
            let usable = matches!(
                message.header.state,
                NeighbourState::Reachable
                    | NeighbourState::Stale
                    | NeighbourState::Delay
                    | NeighbourState::Probe
            );
            if message.header.ifindex == from && usable {
                known.push(message);
            }
        }
        for mut message in known {
            message.header.ifindex = to;
            message.header.state = NeighbourState::Reachable;
            let wanted = |a: &NeighbourAttribute| {
                matches!(a, NeighbourAttribute::Destination(_) | NeighbourAttribute::LinkLayerAddress(_))
            };
            message.attributes.retain(wanted);
            if let Err(error) = self.send(RouteNetlinkMessage::NewNeighbour(message), NLM_F_CREATE).await {
                tracing::debug!(to, %error, "cannot copy a neighbour entry");
            }
        }
    }

    async fn send(&self, message: RouteNetlinkMessage, flags: u16) -> Result<(), rtnetlink::Error> {
        let mut request = NetlinkMessage::from(message);
        request.header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        let mut answers = self.raw().clone().request(request)?;
        while let Some(answer) = answers.next().await {
            if let NetlinkPayload::Error(error) = answer.payload
                && error.code.is_some()
            {
                return Err(rtnetlink::Error::NetlinkError(error));
            }
        }
        Ok(())
    }
}

/// `true` on success, `false` when the error means that there was nothing to do.
fn done(
    result: Result<(), rtnetlink::Error>,
    object: String,
    operation: &'static str,
    nothing_to_do: fn(&LinkError) -> bool,
) -> Result<bool, LinkError> {
    match result.map_err(|e| LinkError::netlink(object, operation, e)) {
        Ok(()) => Ok(true),
        Err(e) if nothing_to_do(&e) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Output interface of a route, the first of several.
pub(in crate::gateway) fn oif(message: &RouteMessage) -> Option<u32> {
    message.attributes.iter().find_map(|a| match a {
        RouteAttribute::Oif(index) => Some(*index),
        RouteAttribute::MultiPath(hops) => hops.first().map(|h| h.interface_index),
        _ => None,
    })
}

/// True for routes that the kernel did not add together with an address.
fn is_added(message: &RouteMessage) -> bool {
    let header = &message.header;
    header.kind == RouteType::Unicast
        && header.protocol != RouteProtocol::Kernel
        && header.table != LOCAL_TABLE
        && !header.flags.contains(RouteFlags::Cloned)
}

fn address_of(message: &AddressMessage) -> Option<IpAddr> {
    let local = message.attributes.iter().find_map(|a| match a {
        AddressAttribute::Local(ip) => Some(*ip),
        _ => None,
    });
    local.or_else(|| {
        message.attributes.iter().find_map(|a| match a {
            AddressAttribute::Address(ip) => Some(*ip),
            _ => None,
        })
    })
}

fn text_of(message: &RouteMessage) -> String {
    let ip = |a: &RouteAddress| match a {
        RouteAddress::Inet(ip) => ip.to_string(),
        RouteAddress::Inet6(ip) => ip.to_string(),
        other => format!("{other:?}"),
    };
    let mut dest = "default".to_owned();
    let mut rest = String::new();
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(a) => {
                dest = format!("{}/{}", ip(a), message.header.destination_prefix_length);
            }
            RouteAttribute::Gateway(a) => rest.push_str(&format!(" via {}", ip(a))),
            RouteAttribute::Priority(metric) => rest.push_str(&format!(" metric {metric}")),
            RouteAttribute::Table(table) if *table != 254 => rest.push_str(&format!(" table {table}")),
            RouteAttribute::MultiPath(hops) => rest.push_str(&format!(" with {} next hops", hops.len())),
            _ => {}
        }
    }
    dest + &rest
}

fn to_hex(message: &impl Emitable) -> String {
    let mut bytes = vec![0; message.buffer_len()];
    message.emit(&mut bytes);
    hex::encode(bytes)
}

fn from_hex(text: &str) -> Result<Vec<u8>, String> {
    hex::decode(text).map_err(|why| format!("`{text}` is not hexadecimal ({why}); the journal is corrupt"))
}
