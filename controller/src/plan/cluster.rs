//! Rows that exist once per cluster: load balancer groups, control-plane protection, meters, cluster-wide port groups, the cluster
//! router and the join switch.

use std::collections::BTreeMap;

use api::{MacAddr, ovn_name};
use ovsdb_client::Datum;

use super::columns::{ALLOW_PRIORITY, POLICY_TIER, map, owner_ids};
use super::{DesiredRow, Item, RowKey, Table, key};
use crate::config::Config;

/// Protocols that OVN can limit towards the controller, and their meters `<protocol>-rate-limiter`.
const PROTECTED: [&str; 9] = [
    "arp",
    "arp-resolve",
    "bfd",
    "event-elb",
    "icmp4-error",
    "icmp6-error",
    "reject",
    "svc-monitor",
    "tcp-reset",
];
/// Packets a second that one protected protocol may send to the controller.
const PROTECTED_RATE: i64 = 25;
/// ACL log lines a second.
const ACL_LOG_RATE: i64 = 20;

/// The load balancer group of this name.
pub fn load_balancer_group(name: &str) -> RowKey {
    RowKey::new(Table::LoadBalancerGroup, name)
}

/// The port group of an id; its name is the id's hash.
pub fn port_group(id: &str) -> RowKey {
    RowKey::new(Table::PortGroup, id)
}

/// The port group of all management ports.
pub fn cluster_port_group() -> RowKey {
    port_group(&ovn_name::owner_id("Cluster", &["clusterPortGroup"]))
}

/// The items that exist once.
pub fn items(config: &Config) -> Vec<Item> {
    let mut items = Vec::new();
    if config.features.load_balancer_group {
        for name in [ovn_name::CLUSTER_LB_GROUP, ovn_name::SWITCH_LB_GROUP, ovn_name::ROUTER_LB_GROUP] {
            items.push(DesiredRow::new(load_balancer_group(name)).with("name", name).into());
        }
    }
    meters(config, &mut items);
    port_groups(config, &mut items);
    router_and_join(config, &mut items);
    items
}

fn meters(config: &Config, items: &mut Vec<Item>) {
    let mut meter = |name: &str, rate: i64| {
        let band = key::meter_band("drop", rate, 0);
        let row = RowKey::new(Table::Meter, name);
        items.push(
            DesiredRow::new(band.clone())
                .with("action", "drop")
                .with("rate", rate)
                .with("burst_size", 0)
                .into(),
        );
        items.push(
            DesiredRow::new(row.clone()).with("name", name).with("unit", "pktps").with("fair", true).into(),
        );
        items.push(Item::link(&row, "bands", &band));
    };
    meter(ovn_name::ACL_METER, ACL_LOG_RATE);
    if config.features.copp {
        for protocol in PROTECTED {
            meter(&format!("{protocol}-rate-limiter"), PROTECTED_RATE);
        }
        let meters = PROTECTED.map(|protocol| (protocol, format!("{protocol}-rate-limiter")));
        let copp = DesiredRow::new(copp()).with("name", ovn_name::COPP).with("meters", Datum::map(meters));
        items.push(copp.into());
    }
}

/// The control-plane protection profile.
pub fn copp() -> RowKey {
    RowKey::new(Table::Copp, ovn_name::COPP)
}

fn port_groups(config: &Config, items: &mut Vec<Item>) {
    for name in ["clusterPortGroup", "clusterRtrPortGroup"] {
        let id = ovn_name::owner_id("Cluster", &[name]);
        let group = port_group(&id);
        let row = DesiredRow::new(group.clone()).with("name", group.hashed_name());
        items.push(row.with("external_ids", owner_ids(&id, "Cluster", name, &[])).into());
    }
    // A pod that reaches itself through a service is seen with the hairpin address as source: no policy may stop it.
    let sources: Vec<String> = config
        .families()
        .into_iter()
        .filter_map(|family| config.masquerade(family))
        .map(|addresses| {
            let family = if addresses.hairpin.is_ipv4() { "ip4" } else { "ip6" };
            format!("{family}.src == {}", addresses.hairpin)
        })
        .collect();
    for (direction, column) in [("Egress", "from-lport"), ("Ingress", "to-lport")] {
        let id = ovn_name::owner_id("NetpolDefault", &["allow-hairpinning", direction]);
        let acl = RowKey::new(Table::Acl, id.clone());
        let ids = owner_ids(&id, "NetpolDefault", "allow-hairpinning", &[("direction", direction)]);
        let mut row = DesiredRow::new(acl.clone())
            .with("action", "allow-related")
            .with("direction", column)
            .with("match", sources.join(" || "))
            .with("meter", ovn_name::ACL_METER)
            .with("priority", ALLOW_PRIORITY)
            .with("external_ids", ids);
        if direction == "Egress" {
            row = row.with("options", map([("apply-after-lb", "true")]));
        }
        if config.features.acl_tier {
            row = row.with("tier", POLICY_TIER);
        }
        items.push(row.into());
        items.push(Item::link(&cluster_port_group(), "acls", &acl));
    }
    if config.features.acl_tier {
        lower_tiers(items);
    }
}

/// Adds ACLs with action `pass` to the tiers before the policies' tier. Where none of a tier's ACLs matches, OVN lets
/// a connection that was cut off (`ct_mark.blocked`) pass before it comes to the next tier (northd 25.03, `build_acls`: the
/// flow of priority 1 sets the verdict): every second packet of a TCP connection would pass whatever policies say.
fn lower_tiers(items: &mut Vec<Item>) {
    for tier in 0..POLICY_TIER {
        for (direction, column) in [("Egress", "from-lport"), ("Ingress", "to-lport")] {
            let (name, number) = ("pass-to-policies", tier.to_string());
            let id = ovn_name::owner_id("NetpolDefault", &[name, direction, &number]);
            let acl = RowKey::new(Table::Acl, id.clone());
            let ids = [("direction", direction), ("tier", number.as_str())];
            let mut row = DesiredRow::new(acl.clone())
                .with("action", "pass")
                .with("direction", column)
                .with("match", "ip")
                .with("priority", 0)
                .with("tier", tier)
                .with("external_ids", owner_ids(&id, "NetpolDefault", name, &ids));
            if direction == "Egress" {
                row = row.with("options", map([("apply-after-lb", "true")]));
            }
            items.push(row.into());
            items.push(Item::link(&cluster_port_group(), "acls", &acl));
        }
    }
}

fn router_and_join(config: &Config, items: &mut Vec<Item>) {
    let router = RowKey::new(Table::LogicalRouter, ovn_name::CLUSTER_ROUTER);
    items.push(
        DesiredRow::new(router.clone())
            .with("name", ovn_name::CLUSTER_ROUTER)
            .with("external_ids", map([("k8s-cluster-router", "yes")]))
            .with("options", map([("always_learn_from_arp_request", "false")]))
            .into(),
    );
    if config.features.copp {
        items.push(Item::link(&router, "copp", &copp()));
    }
    let join = RowKey::new(Table::LogicalSwitch, ovn_name::JOIN_SWITCH);
    items.push(DesiredRow::new(join).with("name", ovn_name::JOIN_SWITCH).into());
    join_ports(config, &router, 1, None, items);
}

/// Options of a router port: packets longer than this, in bytes, that would leave by the port are refused with ICMP.
pub fn gateway_mtu(mtu: Option<u16>) -> Datum {
    Datum::map(mtu.map(|mtu| ("gateway_mtu", mtu.to_string())))
}

/// The pair of ports between `router` (number `id`) and the join switch.
pub fn join_ports(
    config: &Config,
    router: &RowKey,
    id: u32,
    gateway_mtu: Option<u16>,
    items: &mut Vec<Item>,
) {
    let join = RowKey::new(Table::LogicalSwitch, ovn_name::JOIN_SWITCH);
    let router_port = RowKey::new(Table::LogicalRouterPort, ovn_name::router_to_join(&router.key));
    let switch_port = RowKey::new(Table::LogicalSwitchPort, ovn_name::join_to_router(&router.key));
    let networks = config.join_addresses(id);
    let mac = networks.first().map(|net| MacAddr::from_ip(net.addr())).unwrap_or_default();
    let row = DesiredRow::new(router_port.clone())
        .with("name", router_port.key.clone())
        .with("mac", mac.to_string())
        .with("networks", Datum::set(networks.iter().map(ToString::to_string)))
        .with("options", self::gateway_mtu(gateway_mtu));
    items.push(row.into());
    items.push(Item::link(router, "ports", &router_port));
    items.push(router_side(&switch_port, &router_port, "router", &[]).into());
    items.push(Item::link(&join, "ports", &switch_port));
}

/// A switch port of type `router` that is the peer of `router_port`.
pub fn router_side(
    port: &RowKey,
    router_port: &RowKey,
    address: &str,
    options: &[(&str, &str)],
) -> DesiredRow {
    let mut all = BTreeMap::from([("router-port", router_port.key.as_str())]);
    all.extend(options.iter().copied());
    DesiredRow::new(port.clone())
        .with("name", port.key.clone())
        .with("type", "router")
        .with("addresses", address)
        .with("options", Datum::map(all))
}
