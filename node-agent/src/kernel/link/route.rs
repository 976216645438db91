//! Routes of the namespace.

use std::net::IpAddr;

use ipnet::IpNet;
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteProtocol, RouteScope,
};

use super::{LinkError, Netlink};

/// Number of the main table (`RT_TABLE_MAIN`, linux/rtnetlink.h).
pub const MAIN_TABLE: u32 = 254;

/// A unicast route through one interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Destination; a prefix of length 0 is the default route.
    pub dest: IpNet,
    /// Next hop; `None` for destinations on the link.
    pub gateway: Option<IpAddr>,
    /// Index of the interface.
    pub interface: u32,
    /// Preferred source address.
    pub source: Option<IpAddr>,
    /// MTU of the route in bytes.
    pub mtu: Option<u32>,
    /// Priority (metric); lower is preferred. `None` for the kernel's choice.
    pub priority: Option<u32>,
    /// Table number.
    pub table: u32,
    /// `onlink`: the next hop need not be in a prefix of the interface.
    pub onlink: bool,
    /// Routing protocol (rtnetlink(7), /etc/iproute2/rt_protos); 3 (`boot`) is the default of `ip route add`.
    pub protocol: u8,
}

impl Route {
    /// A route of the main table through a next hop.
    pub fn via(dest: IpNet, gateway: IpAddr, interface: u32) -> Self {
        Self {
            dest,
            gateway: Some(gateway),
            interface,
            source: None,
            mtu: None,
            priority: None,
            table: MAIN_TABLE,
            onlink: false,
            protocol: 3,
        }
    }

    /// The default route through `gateway`.
    pub fn default_via(gateway: IpAddr, interface: u32) -> Self {
        let any = match gateway {
            IpAddr::V4(_) => IpNet::V4(ipnet::Ipv4Net::default()),
            IpAddr::V6(_) => IpNet::V6(ipnet::Ipv6Net::default()),
        };
        Self::via(any, gateway, interface)
    }

    fn message(&self) -> Result<RouteMessage, String> {
        let mut builder = RouteMessageBuilder::<IpAddr>::new()
            .output_interface(self.interface)
            .table_id(self.table)
            .protocol(RouteProtocol::from(self.protocol))
            .destination_prefix(self.dest.network(), self.dest.prefix_len())
            .map_err(|e| format!("destination: {e}"))?;
        builder = match self.gateway {
            Some(gateway) => builder.gateway(gateway).map_err(|e| format!("next hop: {e}"))?,
            None => builder.scope(RouteScope::Link),
        };
        if let Some(source) = self.source {
            builder = builder.pref_source(source).map_err(|e| format!("source: {e}"))?;
        }
        if let Some(priority) = self.priority {
            builder = builder.priority(priority);
        }
        if self.onlink {
            builder = builder.onlink();
        }
        if let Some(mtu) = self.mtu {
            builder.get_mut().attributes.push(RouteAttribute::Metrics(vec![RouteMetric::Mtu(mtu)]));
        }
        Ok(builder.build())
    }
}

impl std::fmt::Display for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "route {}", self.dest)?;
        if let Some(gateway) = self.gateway {
            write!(f, " via {gateway}")?;
        }
        Ok(())
    }
}

#[expect(
    clippy::missing_errors_doc,
    reason = "each fails with LinkError, which names interface and operation"
)]
impl Netlink {
    /// Adds a route. `name` is the name of the interface, for the error.
    pub async fn add_route(&self, name: &str, route: &Route) -> Result<(), LinkError> {
        self.put_route(name, route, false).await
    }

    /// Adds a route, replacing one with the same destination, table and priority.
    pub async fn replace_route(&self, name: &str, route: &Route) -> Result<(), LinkError> {
        self.put_route(name, route, true).await
    }

    async fn put_route(&self, name: &str, route: &Route, replace: bool) -> Result<(), LinkError> {
        let object = || format!("{name} {route}");
        let invalid = |e| LinkError::new(object(), "add a route", std::io::Error::other(e));
        let request = self.raw().route().add(route.message().map_err(invalid)?);
        let request = if replace { request.replace() } else { request };
        request.execute().await.map_err(|e| LinkError::netlink(object(), "add a route", e))
    }

    /// Removes a route; `false` when it did not exist.
    pub async fn delete_route(&self, name: &str, route: &Route) -> Result<bool, LinkError> {
        let object = || format!("{name} {route}");
        let invalid = |e| LinkError::new(object(), "remove a route", std::io::Error::other(e));
        match self.raw().route().del(route.message().map_err(invalid)?).execute().await {
            Ok(()) => Ok(true),
            Err(e) => {
                let error = LinkError::netlink(object(), "remove a route", e);
                if error.is_missing() { Ok(false) } else { Err(error) }
            }
        }
    }

    /// Lists unicast routes of one family in one table, except multipath routes.
    pub async fn routes(&self, ipv6: bool, table: u32) -> Result<Vec<Route>, LinkError> {
        let mut filter = RouteMessage::default();
        filter.header.address_family = if ipv6 { AddressFamily::Inet6 } else { AddressFamily::Inet };
        let found = self.listed(|| self.raw().route().get(filter.clone()).execute()).await;
        let messages: Vec<RouteMessage> = found.map_err(|e| LinkError::netlink("(all)", "list routes", e))?;
        Ok(messages.iter().filter_map(route_of).filter(|r| r.table == table).collect())
    }
}

fn route_of(message: &RouteMessage) -> Option<Route> {
    let any = match message.header.address_family {
        AddressFamily::Inet => IpNet::V4(ipnet::Ipv4Net::default()),
        AddressFamily::Inet6 => IpNet::V6(ipnet::Ipv6Net::default()),
        _ => return None,
    };
    let mut route = Route::via(any, any.addr(), 0);
    route.gateway = None;
    route.table = u32::from(message.header.table);
    route.protocol = u8::from(message.header.protocol);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(ip) => {
                route.dest = IpNet::new(ip_of(ip)?, message.header.destination_prefix_length).ok()?;
            }
            RouteAttribute::Gateway(ip) => route.gateway = ip_of(ip),
            RouteAttribute::Oif(index) => route.interface = *index,
            RouteAttribute::PrefSource(ip) => route.source = ip_of(ip),
            RouteAttribute::Priority(priority) => route.priority = Some(*priority),
            RouteAttribute::Table(table) => route.table = *table,
            RouteAttribute::Metrics(metrics) => {
                route.mtu = metrics.iter().find_map(|m| match m {
                    RouteMetric::Mtu(mtu) => Some(*mtu),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    let flags = message.header.flags;
    route.onlink = flags.contains(rtnetlink::packet_route::route::RouteFlags::Onlink);
    (route.interface != 0).then_some(route)
}

fn ip_of(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(ip) => Some(IpAddr::V4(*ip)),
        RouteAddress::Inet6(ip) => Some(IpAddr::V6(*ip)),
        _ => None,
    }
}
