//! Keys of rows that have no name of their own. Rows that belong to one router are keyed `ROUTER|CONTENT`, where the
//! content distinguishes the rows of a router; the reconciler builds the same text from rows it finds.

use std::fmt::Display;

use super::{RowKey, Table};

/// Between the owner and the content.
const SEPARATOR: char = '|';

/// The key of a row of `owner`, a router.
pub fn in_router(table: Table, owner: &str, content: &str) -> RowKey {
    RowKey::new(table, format!("{owner}{SEPARATOR}{content}"))
}

/// The owner's name and the content of a key made here.
pub fn split(key: &str) -> Option<(&str, &str)> {
    key.split_once(SEPARATOR)
}

/// What distinguishes the static routes of a router.
pub fn static_route_content(prefix: &str, nexthop: &str, policy: &str, output_port: &str) -> String {
    format!("{prefix} via {nexthop} {policy} {output_port}")
}

/// A static route of `router`.
pub fn static_route(
    router: &str,
    prefix: &str,
    nexthop: &str,
    policy: Option<&str>,
    output_port: Option<&str>,
) -> RowKey {
    let content =
        static_route_content(prefix, nexthop, policy.unwrap_or_default(), output_port.unwrap_or_default());
    in_router(Table::LogicalRouterStaticRoute, router, &content)
}

/// What distinguishes the static routes of a router that are in a route table of their own.
pub fn static_route_in_table_content(content: &str, table: &str) -> String {
    format!("{content} table {table}")
}

/// A static route of `router` for the packets of the ports that use this route table.
pub fn static_route_in_table(router: &str, prefix: &str, nexthop: &str, table: &str) -> RowKey {
    let content = static_route_in_table_content(&static_route_content(prefix, nexthop, "", ""), table);
    in_router(Table::LogicalRouterStaticRoute, router, &content)
}

/// What distinguishes the NAT rules of a router.
pub fn nat_content(kind: &str, external_ip: &str, logical_ip: &str) -> String {
    format!("{kind} {external_ip} {logical_ip}")
}

/// A NAT rule of `router`.
pub fn nat(router: &str, kind: &str, external_ip: impl Display, logical_ip: impl Display) -> RowKey {
    in_router(Table::Nat, router, &nat_content(kind, &external_ip.to_string(), &logical_ip.to_string()))
}

/// What distinguishes the routing policies of a router.
pub fn policy_content(priority: i64, matching: &str) -> String {
    format!("{priority} {matching}")
}

/// A routing policy of `router`.
pub fn policy(router: &str, priority: i64, matching: &str) -> RowKey {
    in_router(Table::LogicalRouterPolicy, router, &policy_content(priority, matching))
}

/// A meter band. Bands have no owner in their key: meters of the same rate share one.
pub fn meter_band(action: &str, rate: i64, burst: i64) -> RowKey {
    RowKey::new(Table::MeterBand, format!("{action} {rate} {burst}"))
}

/// A BFD session, by port and the other side's address.
pub fn bfd(port: &str, destination: impl Display) -> RowKey {
    RowKey::new(Table::Bfd, format!("{port} {destination}"))
}

/// A static MAC binding, by port and address.
pub fn mac_binding(port: &str, ip: impl Display) -> RowKey {
    RowKey::new(Table::StaticMacBinding, format!("{port} {ip}"))
}
