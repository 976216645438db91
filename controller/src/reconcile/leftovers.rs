//! Leftovers: rows of this controller in the database that no unit wants, from before its last start. Rows are recognised by
//! their owner ids, or, where ovn-kubernetes' format has none, by their names and columns. Rows that are not recognised belong
//! to other clients and are never touched.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use api::addr;
use api::host_port::OWNER_KEY;
use api::ovn_name::{self, key};
use ipnet::IpNet;
use ovsdb_client::{Atom, Map, Uuid, nb};

use super::desired::Desired;
use super::diff::Changes;
use super::foreign::{is_ours, of_other_network, of_virtual_network};
use super::observed::{BY_KEY, ReplicaView};
use crate::config::Config;
use crate::plan::uplink::router_of;
use crate::plan::{self, Member, RowKey, Table, external_gateways};

/// Whether a row is of a kind that the controller puts into a port group: members of other clients stay. Multicast has ACLs,
/// and ports of the cluster router, in the groups that exist once.
pub(super) fn may_leave(view: &ReplicaView<'_>, table: Table, uuid: Uuid) -> bool {
    match table {
        Table::Acl => {
            let row = view.snapshot().table::<nb::Acl>().get(&uuid);
            row.is_some_and(|row| is_ours(&row.external_ids))
        }
        Table::LogicalSwitchPort => {
            let row = view.snapshot().table::<nb::LogicalSwitchPort>().get(&uuid);
            row.is_none_or(|row| row.r#type != "router")
        }
        _ => true,
    }
}

/// Nodes whose gateway is not known, with their join and management addresses, one of which is the way out of their pods. Their gateways'
/// rows in the database stay.
pub type KeptGateways = BTreeMap<String, Vec<IpAddr>>;

/// Owner types of the groups whose ACLs deny; everything else in a group or an address set allows.
const DENYING: [&str; 2] = ["NetpolNamespace", "MultiNetpolNamespace"];

/// Removes what allows something and is ours and not wanted: ports and ACLs of policies' groups, addresses of sets. To be
/// called only when everything that is wanted has been planned, and before anything is added.
pub fn closing(desired: &Desired, view: &ReplicaView<'_>, config: &Config) -> Changes {
    let kept = KeptGateways::new();
    let mut removal = Removal { desired, view, config, kept: &kept, changes: Changes::default() };
    removal.marked(|ids| {
        let kind = ids.get(key::OWNER_TYPE).map(String::as_str);
        kind.is_none_or(|kind| kind != external_gateways::OWNER_TYPE && !DENYING.contains(&kind))
    });
    removal.changes
}

/// Whether a route leads what comes from a range to its management address, as in gateway mode local.
fn is_to_management(route: &nb::LogicalRouterStaticRoute) -> bool {
    let range: Option<IpNet> = route.ip_prefix.parse().ok();
    let management = range.and_then(|range| addr::management_of(&range));
    management.is_some_and(|management| route.nexthop.parse() == Ok(management))
}

/// The node of an external switch, by the switch's name, and the name of its port towards the gateway router.
fn external_switch(name: &str) -> Option<(&str, String)> {
    if let Some(node) = name.strip_prefix("ext_") {
        return Some((node, ovn_name::external_to_router(node)));
    }
    let node = name.strip_prefix(&ovn_name::of_second_uplink("ext_"))?;
    Some((node, ovn_name::of_second_uplink(&ovn_name::external_to_router(node))))
}

/// The kinds of leftovers that are removed together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Port groups and address sets.
    Marked,
    /// Load balancers.
    LoadBalancers,
    /// Logical switches, with their ports.
    Switches,
    /// Logical routers, with their ports, routes and policies.
    Routers,
    /// Static MAC bindings.
    MacBindings,
    /// BFD sessions with external gateways.
    BfdSessions,
}

impl Part {
    /// All parts in their order.
    pub const ALL: [Self; 6] = [
        Self::Marked,
        Self::LoadBalancers,
        Self::Switches,
        Self::Routers,
        Self::MacBindings,
        Self::BfdSessions,
    ];
}

/// Removes what is ours and not wanted, and not of a kept gateway. To be called only when everything that is wanted has been
/// planned.
pub fn remove(
    desired: &Desired,
    view: &ReplicaView<'_>,
    config: &Config,
    kept: &KeptGateways,
    part: Part,
) -> Changes {
    let mut removal = Removal { desired, view, config, kept, changes: Changes::default() };
    match part {
        Part::Marked => removal.marked(|ids| {
            let of_node = ids.get(key::NAME).filter(|_| {
                ids.get(key::OWNER_TYPE).is_some_and(|kind| kind == external_gateways::OWNER_TYPE)
            });
            of_node.is_none_or(|node| !kept.contains_key(node))
        }),
        Part::LoadBalancers => removal.load_balancers(),
        Part::Switches => removal.switches(),
        Part::Routers => removal.routers(),
        Part::MacBindings => removal.mac_bindings(),
        Part::BfdSessions => removal.bfd_sessions(),
    }
    removal.changes
}

struct Removal<'a> {
    desired: &'a Desired,
    view: &'a ReplicaView<'a>,
    config: &'a Config,
    kept: &'a KeptGateways,
    changes: Changes,
}

impl Removal<'_> {
    fn wants(&self, table: Table, name: &str) -> bool {
        self.desired.row(&RowKey::new(table, name)).is_some()
    }

    /// True when the edge to a row is not desired. A row without key belongs to another client.
    fn unwanted(&self, owner: &RowKey, column: &'static str, member: Option<RowKey>) -> bool {
        member.is_some_and(|member| !self.desired.has_edge(owner, column, &Member::Row(member)))
    }

    /// Port groups and address sets carry owner ids, and no other client adds members to them.
    fn marked(&mut self, concerned: impl Fn(&Map<String, String>) -> bool) {
        let ours = |ids: &Map<String, String>| is_ours(ids) && concerned(ids);
        for row in self.view.snapshot().table::<nb::PortGroup>().iter().filter(|row| ours(&row.external_ids))
        {
            let Some(owner) = self.view.key_of(Table::PortGroup, row.uuid) else { continue };
            if self.desired.row(&owner).is_none() {
                self.changes.delete(Table::PortGroup, row.uuid);
                continue;
            }
            for (column, table, members) in
                [("ports", Table::LogicalSwitchPort, &row.ports), ("acls", Table::Acl, &row.acls)]
            {
                for member in members {
                    let key = self.view.key_of(table, *member);
                    if may_leave(self.view, table, *member) && self.unwanted(&owner, column, key) {
                        self.changes.remove(Table::PortGroup, row.uuid, column, Atom::Uuid(*member));
                    }
                }
            }
        }
        for row in self.view.snapshot().table::<nb::AddressSet>().iter().filter(|row| ours(&row.external_ids))
        {
            let Some(owner) = self.view.key_of(Table::AddressSet, row.uuid) else { continue };
            if self.desired.row(&owner).is_none() {
                self.changes.delete(Table::AddressSet, row.uuid);
                continue;
            }
            for address in &row.addresses {
                if !self.desired.has_edge(&owner, "addresses", &Member::Text(address.clone())) {
                    self.changes.remove(
                        Table::AddressSet,
                        row.uuid,
                        "addresses",
                        Atom::String(address.clone()),
                    );
                }
            }
        }
    }

    fn our_balancer(&self, uuid: &Uuid) -> Option<RowKey> {
        let row = self.view.snapshot().table::<nb::LoadBalancer>().get(uuid)?;
        if of_other_network(&row.external_ids) {
            return None;
        }
        let ours = row.external_ids.get(key::KIND).is_some_and(|kind| kind == "Service")
            || row.external_ids.contains_key(OWNER_KEY);
        ours.then(|| RowKey::new(Table::LoadBalancer, row.name.clone()))
    }

    fn load_balancers(&mut self) {
        for row in self.view.snapshot().table::<nb::LoadBalancer>().iter() {
            let Some(key) = self.our_balancer(&row.uuid) else { continue };
            // The table has no unique index: of several rows of one name the first is in use.
            let in_use = self.view.find_all(&key).first() == Some(&row.uuid);
            if self.is_kept_balancer(&row.uuid) {
                continue;
            }
            if self.desired.row(&key).is_none() || !in_use {
                self.changes.delete(Table::LoadBalancer, row.uuid);
            }
        }
        for row in self.view.snapshot().table::<nb::LoadBalancerGroup>().iter() {
            let owner = RowKey::new(Table::LoadBalancerGroup, row.name.clone());
            self.balancers_of(&owner, row.uuid, row.load_balancer.iter());
        }
    }

    /// The gateway routers that stay as they are.
    fn is_kept_router(&self, name: &str) -> bool {
        name.strip_prefix("GR_").is_some_and(|node| self.kept.contains_key(node))
    }

    /// The load balancers of such a router stay on it.
    fn is_kept_balancer(&self, uuid: &Uuid) -> bool {
        let routers = self.view.snapshot().table::<nb::LogicalRouter>();
        self.kept.keys().any(|node| {
            let name = ovn_name::gateway_router(node);
            let mut rows = routers.by_index(BY_KEY, &name);
            rows.any(|router| router.load_balancer.contains(uuid))
        })
    }

    fn balancers_of<'b>(&mut self, owner: &RowKey, uuid: Uuid, members: impl Iterator<Item = &'b Uuid>) {
        if self.desired.row(owner).is_none() {
            return;
        }
        for member in members {
            // Rows that are deleted leave their sets by themselves.
            let stays = |key: &RowKey| self.desired.row(key).is_some() || self.is_kept_balancer(member);
            let key = self.our_balancer(member).filter(stays);
            if self.unwanted(owner, "load_balancer", key) {
                self.changes.remove(owner.table, uuid, "load_balancer", Atom::Uuid(*member));
            }
        }
    }

    fn switches(&mut self) {
        let ports = self.view.snapshot().table::<nb::LogicalSwitchPort>();
        for row in self.view.snapshot().table::<nb::LogicalSwitch>().iter() {
            let owner = RowKey::new(Table::LogicalSwitch, row.name.clone());
            let held = || row.ports.iter().filter_map(|uuid| ports.get(uuid));
            if self.desired.row(&owner).is_none() {
                let external = external_switch(&row.name);
                let kept = external.as_ref().is_some_and(|(node, _)| self.kept.contains_key(*node));
                if kept || of_other_network(&row.external_ids) {
                    continue;
                }
                let peer = external.map_or_else(|| ovn_name::switch_to_router(&row.name), |(_, peer)| peer);
                // A node whose chassis was never known has only the management port.
                let management = ovn_name::management_port(&row.name);
                let ours = |port: &Arc<nb::LogicalSwitchPort>| {
                    (port.name == peer && port.r#type == "router") || port.name == management
                };
                if of_virtual_network(&row.external_ids) || held().any(ours) {
                    self.changes.delete(Table::LogicalSwitch, row.uuid);
                }
                continue;
            }
            for port in held() {
                let pod = port.external_ids.get("pod").is_some_and(|pod| pod == "true");
                let physical = port.options.get("network_name").map(String::as_str);
                let localnet = port.r#type == "localnet"
                    && [ovn_name::PHYSICAL_NETWORK, ovn_name::SECOND_PHYSICAL_NETWORK]
                        .map(Some)
                        .contains(&physical);
                let joined = port.name.strip_prefix("jtor-").filter(|router| router.starts_with("GR_"));
                let gateway =
                    port.r#type == "router" && joined.is_some_and(|router| !self.is_kept_router(router));
                let key = Some(RowKey::new(Table::LogicalSwitchPort, port.name.clone()));
                let of_network = of_virtual_network(&port.external_ids);
                if (pod || localnet || gateway || of_network) && self.unwanted(&owner, "ports", key) {
                    self.changes.remove(owner.table, row.uuid, "ports", Atom::Uuid(port.uuid));
                }
            }
            let acls = self.view.snapshot().table::<nb::Acl>();
            for acl in
                row.acls.iter().filter_map(|uuid| acls.get(uuid)).filter(|acl| is_ours(&acl.external_ids))
            {
                if self.unwanted(&owner, "acls", self.view.key_of(Table::Acl, acl.uuid)) {
                    self.changes.remove(owner.table, row.uuid, "acls", Atom::Uuid(acl.uuid));
                }
            }
            self.balancers_of(&owner, row.uuid, row.load_balancer.iter());
        }
    }

    fn routers(&mut self) {
        for row in self.view.snapshot().table::<nb::LogicalRouter>().iter() {
            let owner = RowKey::new(Table::LogicalRouter, row.name.clone());
            if self.desired.row(&owner).is_none() {
                let join_port = ovn_name::router_to_join(&row.name);
                let ports = self.view.snapshot().table::<nb::LogicalRouterPort>();
                let joined =
                    row.ports.iter().filter_map(|uuid| ports.get(uuid)).any(|port| port.name == join_port);
                let stays = self.is_kept_router(&row.name) || of_other_network(&row.external_ids);
                let of_peers = of_virtual_network(&row.external_ids);
                if of_peers || (row.name.starts_with("GR_") && joined && !stays) {
                    self.changes.delete(Table::LogicalRouter, row.uuid);
                }
                continue;
            }
            self.router_ports(&owner, row);
            self.routes(&owner, row);
            self.nats(&owner, row);
            self.balancers_of(&owner, row.uuid, row.load_balancer.iter());
        }
    }

    fn router_ports(&mut self, owner: &RowKey, row: &nb::LogicalRouter) {
        let ports = self.view.snapshot().table::<nb::LogicalRouterPort>();
        for port in row.ports.iter().filter_map(|uuid| ports.get(uuid)) {
            let key = RowKey::new(Table::LogicalRouterPort, port.name.clone());
            let second = ovn_name::of_second_uplink("rtoe-");
            let ours = port.name.starts_with("rtos-")
                || port.name.strip_prefix(&second) == Some(owner.key.as_str())
                || of_virtual_network(&port.external_ids);
            if ours && self.unwanted(owner, "ports", Some(key.clone())) {
                self.changes.remove(owner.table, row.uuid, "ports", Atom::Uuid(port.uuid));
                continue;
            }
            for chassis in &port.gateway_chassis {
                let member = self.view.key_of(Table::GatewayChassis, *chassis);
                let ours =
                    member.as_ref().is_some_and(|member| member.key.starts_with(&format!("{}-", port.name)));
                if ours && self.desired.row(&key).is_some() && self.unwanted(&key, "gateway_chassis", member)
                {
                    self.changes.remove(key.table, port.uuid, "gateway_chassis", Atom::Uuid(*chassis));
                }
            }
        }
    }

    fn is_join(&self, ip: &str) -> bool {
        ip.parse().is_ok_and(|ip: IpAddr| self.config.join_subnets.iter().any(|net| net.contains(&ip)))
    }

    fn is_kept_way_out(&self, ip: &str) -> bool {
        ip.parse().is_ok_and(|ip: IpAddr| self.kept.values().any(|ways| ways.contains(&ip)))
    }

    /// Without marks, ours are the static routes and policies of the shapes that [`plan::gateway`] writes.
    fn routes(&mut self, owner: &RowKey, row: &nb::LogicalRouter) {
        let routes = self.view.snapshot().table::<nb::LogicalRouterStaticRoute>();
        for route in row.static_routes.iter().filter_map(|uuid| routes.get(uuid)) {
            let ours = if route.external_ids.contains_key(external_gateways::MARK) {
                true
            } else if of_virtual_network(&route.external_ids) {
                !self.is_kept_way_out(&route.nexthop)
            } else if owner.key.as_str() == ovn_name::CLUSTER_ROUTER {
                let to_gateway = self.is_join(&route.nexthop);
                let by_source = route.policy.as_deref() == Some("src-ip");
                let shape = (to_gateway && (by_source || route.ip_prefix == route.nexthop))
                    || (by_source && is_to_management(route));
                shape && route.external_ids.is_empty() && !self.is_kept_way_out(&route.nexthop)
            } else {
                let node = owner.key.strip_prefix("GR_").unwrap_or_default();
                let out = route.output_port.as_deref() == Some(&ovn_name::router_to_external(node));
                let default = matches!(route.ip_prefix.as_str(), "0.0.0.0/0" | "::/0");
                let masquerade = route.external_ids.contains_key(plan::gateway::MASQUERADE_MARK);
                (out && default && route.external_ids.is_empty()) || masquerade
            };
            let key = self.view.key_in_router(&owner.key, Table::LogicalRouterStaticRoute, route.uuid);
            if ours && self.unwanted(owner, "static_routes", key) {
                self.changes.remove(owner.table, row.uuid, "static_routes", Atom::Uuid(route.uuid));
            }
        }
        let policies = self.view.snapshot().table::<nb::LogicalRouterPolicy>();
        for policy in row.policies.iter().filter_map(|uuid| policies.get(uuid)) {
            let marked = policy.external_ids.get(external_gateways::MARK);
            let key = self.view.key_in_router(&owner.key, Table::LogicalRouterPolicy, policy.uuid);
            if marked.is_some_and(|node| !self.kept.contains_key(node))
                && self.unwanted(owner, "policies", key)
            {
                self.changes.remove(owner.table, row.uuid, "policies", Atom::Uuid(policy.uuid));
                continue;
            }
            let node = policy.r#match.rsplit_once("/* ").and_then(|(_, tail)| tail.strip_suffix(" */"));
            let ours = node.is_some_and(|node| {
                if of_virtual_network(&policy.external_ids) {
                    return !self.kept.contains_key(node);
                }
                !self.kept.contains_key(node)
                    && policy.priority == plan::gateway::OWN_NODE_PRIORITY
                    && policy
                        .r#match
                        .starts_with(&format!("inport == \"{}\"", ovn_name::router_to_switch(node)))
            });
            let key = self.view.key_in_router(&owner.key, Table::LogicalRouterPolicy, policy.uuid);
            if ours && self.unwanted(owner, "policies", key) {
                self.changes.remove(owner.table, row.uuid, "policies", Atom::Uuid(policy.uuid));
            }
        }
    }

    fn nats(&mut self, owner: &RowKey, row: &nb::LogicalRouter) {
        let nats = self.view.snapshot().table::<nb::Nat>();
        for nat in row.nat.iter().filter_map(|uuid| nats.get(uuid)) {
            let clusters = self.config.cluster_subnets.iter().map(|subnet| subnet.cidr.to_string());
            let joined = self.is_join(&nat.logical_ip) || self.is_join(&nat.external_ip);
            let ours = nat.r#type == "snat"
                && nat.options.get("stateless").is_some_and(|stateless| stateless == "false")
                && nat.external_ids.is_empty()
                && (joined || clusters.clone().any(|cluster| cluster == nat.logical_ip));
            let key = self.view.key_in_router(&owner.key, Table::Nat, nat.uuid);
            let ours = ours || of_virtual_network(&nat.external_ids);
            if ours && self.unwanted(owner, "nat", key) {
                self.changes.remove(owner.table, row.uuid, "nat", Atom::Uuid(nat.uuid));
            }
        }
    }

    fn bfd_sessions(&mut self) {
        for row in self.view.snapshot().table::<nb::Bfd>().iter() {
            let ours = row.external_ids.contains_key(external_gateways::MARK);
            let kept = router_of(&row.logical_port).is_some_and(|router| self.is_kept_router(router));
            let wanted = self.desired.row(&plan::key::bfd(&row.logical_port, &row.dst_ip)).is_some();
            if ours && !kept && !wanted {
                self.changes.delete(Table::Bfd, row.uuid);
            }
        }
    }

    fn mac_bindings(&mut self) {
        let ours: Vec<String> = self
            .config
            .families()
            .into_iter()
            .filter_map(|family| Some(self.config.masquerade(family)?.next_hop.to_string()))
            .collect();
        for row in self.view.snapshot().table::<nb::StaticMacBinding>().iter() {
            let key = format!("{} {}", row.logical_port, row.ip);
            let router = row.logical_port.strip_prefix("rtoe-").filter(|router| router.starts_with("GR_"));
            let shape = router.is_some_and(|router| !self.is_kept_router(router)) && ours.contains(&row.ip);
            let mut port =
                self.view.snapshot().table::<nb::LogicalRouterPort>().by_index(BY_KEY, &row.logical_port);
            let other = port.next().is_some_and(|port| of_other_network(&port.external_ids));
            if shape && !other && !self.wants(Table::StaticMacBinding, &key) {
                self.changes.delete(Table::StaticMacBinding, row.uuid);
            }
        }
    }
}
