//! `loadBalancerSourceRanges`: ACLs that drop packets to a load balancer's address from other sources. They are on every
//! node's switch, for pods, and on every external switch, for the outside, before any load balancing.

use api::ovn_name;

use super::{NodesView, has_gateway};
use crate::config::{Config, same_family};
use crate::plan::columns::{POLICY_TIER, owner_ids};
use crate::plan::{DesiredRow, Item, RowKey, Table};
use api::service::Service;

/// Owner type of the ACLs.
const TYPE: &str = "ServiceSourceRanges";
/// Before policies, which apply to packets after load balancing.
const PRIORITY: i64 = 2000;

/// The ACLs of a service, one for each port and address that its ranges restrict.
pub(super) fn items(service: &Service, nodes: NodesView<'_>, config: &Config) -> Vec<Item> {
    let mut items = Vec::new();
    for ip in &service.ingress_ips {
        let ranges: Vec<String> = service
            .source_ranges
            .iter()
            .filter(|range| same_family(range.addr(), *ip))
            .map(ToString::to_string)
            .collect();
        // Ranges of only the other family restrict nothing here. The family of a range that cannot be read is not known.
        if ranges.is_empty() && !service.unreadable_ranges {
            continue;
        }
        let family = if ip.is_ipv4() { "ip4" } else { "ip6" };
        for port in &service.ports {
            let (tcp, number, name) = (port.protocol.lower(), port.port, service.name.to_string());
            let id = ovn_name::owner_id(TYPE, &[&name, tcp, &number.to_string(), &ip.to_string()]);
            let acl = RowKey::new(Table::Acl, id.clone());
            let elsewhere = match &ranges[..] {
                [] => String::new(),
                ranges => format!(" && {family}.src != {{{}}}", ranges.join(", ")),
            };
            let mut row = DesiredRow::new(acl.clone())
                .with("action", "drop")
                .with("direction", "from-lport")
                .with("match", format!("{family}.dst == {ip} && {tcp} && {tcp}.dst == {number}{elsewhere}"))
                .with("meter", ovn_name::ACL_METER)
                .with("priority", PRIORITY)
                .with("external_ids", owner_ids(&id, TYPE, &name, &[("ip", &ip.to_string())]));
            if config.features.acl_tier {
                row = row.with("tier", POLICY_TIER);
            }
            items.push(row.into());
            for node in nodes.with_switch() {
                let external = has_gateway(node).then(|| ovn_name::external_switch(&node.name));
                for switch in [Some(node.name.clone()), external].into_iter().flatten() {
                    items.push(Item::link(&RowKey::new(Table::LogicalSwitch, switch), "acls", &acl));
                }
            }
        }
    }
    items
}
