//! ACLs of policies.

use std::collections::BTreeSet;

use api::ovn_name;
use ovsdb_client::Datum;

use crate::index::Protocol;
use crate::index::policy::{Direction, NamedPort, Policy, PortSpec, Rule, Scope};
use crate::plan::columns::{ALLOW_PRIORITY, map};
use crate::plan::{DesiredRow, Item, RowKey, Table};

use super::domain::{Domain, Owner};
use super::matching::{self, Side};
use super::{block, set};

/// Priority of the ACLs that isolate a pod.
const DENY_PRIORITY: i64 = 1000;
/// Maximum number of characters of `ACL.name` (NB schema).
const MAX_NAME: usize = 63;
/// In the id: the peers are address sets, or all.
const SET_INDEX: &str = "-1";
/// In the id: the peers are address blocks.
const BLOCK_INDEX: &str = "-2";
/// In the id: no protocol is named.
const NO_PROTOCOL: &str = "None";

/// The parameters of an ACL besides its id and match.
struct Acl<'a> {
    id: String,
    external_ids: Datum,
    name: String,
    direction: Direction,
    action: &'a str,
    priority: i64,
    matching: String,
}

impl Acl<'_> {
    fn items(self, group: &RowKey, domain: &Domain<'_>) -> [Item; 2] {
        let key = RowKey::new(Table::Acl, self.id);
        let (direction, options) = match self.direction {
            Direction::Ingress => ("to-lport", Datum::Map(Vec::new())),
            // After load balancing, so that policy sees the endpoint and not the service.
            Direction::Egress => ("from-lport", map([("apply-after-lb", "true")])),
        };
        let mut row = DesiredRow::new(key.clone())
            .with("action", self.action)
            .with("direction", direction)
            .with("external_ids", self.external_ids)
            .with("label", 0)
            .with("log", false)
            .with("match", self.matching)
            .with("meter", ovn_name::ACL_METER)
            .with("name", self.name.chars().take(MAX_NAME).collect::<String>())
            .with("options", options)
            .with("priority", self.priority)
            .with("severity", Datum::EMPTY);
        if domain.config.features.acl_tier {
            row = row.with("tier", domain.tier());
        }
        [row.into(), Item::link(group, "acls", &key)]
    }
}

/// The ACLs that isolate the pods of a namespace's default-deny group. Address resolution (ARP, ND) is let through; otherwise
/// nothing that is allowed would work.
pub(super) fn deny_items(
    domain: &Domain<'_>,
    namespace: &str,
    direction: Direction,
    group: &RowKey,
) -> Vec<Item> {
    let ports = matching::port_group(direction, group);
    let make = |kind: &str, action, priority, matching| {
        let id = domain.id(Owner::Namespace, &[namespace, direction.text(), kind]);
        let extra = [("direction", direction.text()), ("type", kind)];
        let external_ids = domain.owner_ids(&id, Owner::Namespace, namespace, &extra);
        let name = format!("{}:{namespace}:{}", domain.acl_prefix(), direction.text());
        Acl { id, external_ids, name, direction, action, priority, matching }.items(group, domain)
    };
    let arp = format!("{ports} && (arp || nd)");
    let mut items = Vec::from(make("defaultDeny", "drop", DENY_PRIORITY, ports));
    items.extend(make("arpAllow", "allow", ALLOW_PRIORITY, arp));
    items
}

/// One rule of a policy, with what all its ACLs share.
struct RuleContext<'a> {
    domain: &'a Domain<'a>,
    policy: &'a Policy,
    direction: Direction,
    index: String,
    rule: &'a Rule,
    group: &'a RowKey,
}

/// The ACLs of one rule: for each protocol one for the peers that are sets (or all peers) and one for all address blocks; for
/// each named port such ACLs for each number that it resolves to.
pub(super) fn rule_items(
    domain: &Domain<'_>,
    policy: &Policy,
    direction: Direction,
    index: usize,
    rule: &Rule,
    group: &RowKey,
) -> Vec<Item> {
    let context = RuleContext { domain, policy, direction, index: index.to_string(), rule, group };
    let mut items = Vec::new();
    let peers = [(SET_INDEX, context.set_peers()), (BLOCK_INDEX, context.block_peers())];
    let peers = || peers.iter().filter_map(|(kind, peers)| Some((*kind, peers.as_deref()?)));
    let Some(ports) = &rule.ports else {
        for (kind, peers) in peers() {
            items.extend(context.allow(kind, None, peers, None));
        }
        return items;
    };
    for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
        let specs: Vec<&PortSpec> =
            ports.iter().filter(|port| port.protocol == protocol).map(|port| &port.port).collect();
        if let Some(numbers) = matching::ports(protocol, &specs) {
            for (kind, peers) in peers() {
                items.extend(context.allow(kind, Some(protocol), peers, Some(&numbers)));
            }
        }
        let names: BTreeSet<&str> = specs
            .iter()
            .filter_map(|spec| if let PortSpec::Named(name) = spec { Some(name.as_str()) } else { None })
            .collect();
        for name in names {
            items.extend(context.named(name, protocol));
        }
    }
    items
}

impl RuleContext<'_> {
    /// Matches the peers that are sets, or all peers.
    fn set_peers(&self) -> Option<String> {
        match &self.rule.peers {
            None => matching::any_address(&self.domain.families),
            Some(peers) => matching::in_sets(Side::of_peer(self.direction), &self.domain.families, |ip| {
                peers.selectors.iter().map(|peer| set::peer_reference(self.domain, peer, ip)).collect()
            }),
        }
    }

    /// Matches the peers that are address blocks.
    fn block_peers(&self) -> Option<String> {
        block::blocks(&self.rule.peers.as_ref()?.blocks, Side::of_peer(self.direction))
    }

    fn allow(&self, kind: &str, protocol: Option<Protocol>, peers: &str, ports: Option<&str>) -> [Item; 2] {
        let protocol = protocol.map_or(NO_PROTOCOL, Protocol::lower);
        self.acl(Owner::Policy, kind, protocol, &[], [Some(peers), ports])
    }

    /// The ACLs of a named port: one for each number and kind of peers.
    fn named(&self, name: &str, protocol: Protocol) -> Vec<Item> {
        let ports = self.policy.named_port(self.direction, self.rule, name, protocol);
        let of_kind = |blocks: bool| -> Vec<&NamedPort> {
            let ports = ports.iter();
            match self.direction {
                Direction::Ingress => ports.collect(),
                // With peers, the pods of all namespaces are those selected by address blocks.
                Direction::Egress if self.rule.peers.is_some() => {
                    ports.filter(|port| (port.scope == Scope::Anywhere) == blocks).collect()
                }
                Direction::Egress => ports.collect(),
            }
        };
        let mut items = Vec::new();
        for (kind, peers) in [(SET_INDEX, self.set_peers()), (BLOCK_INDEX, self.block_peers())] {
            let Some(peers) = peers else { continue };
            let ports = of_kind(kind == BLOCK_INDEX);
            let named = self.domain.store.named_ports();
            let numbers: BTreeSet<u16> = ports.iter().flat_map(|port| named.numbers(port)).collect();
            // On egress the named pods are already among the peers, and where all are peers nothing is added.
            let implied =
                self.rule.peers.is_none() || (self.direction == Direction::Egress && kind == SET_INDEX);
            for number in numbers {
                let pods = matching::in_sets(Side::Destination, &self.domain.families, |ip| {
                    let of_number =
                        ports.iter().filter(|port| named.numbers(port).any(|declared| declared == number));
                    of_number.map(|port| set::named_reference(self.domain, port, number, ip)).collect()
                });
                let port = format!("{0} && {0}.dst=={number}", protocol.lower());
                let parts = [(!implied).then_some(peers.as_str()), pods.as_deref(), Some(&port)];
                let extra = [("port-name", name), ("port", &number.to_string())];
                items.extend(self.acl(Owner::NamedPort, kind, protocol.lower(), &extra, parts));
            }
        }
        items
    }

    fn acl<const N: usize>(
        &self,
        owner: Owner,
        kind: &str,
        protocol: &str,
        extra: &[(&str, &str)],
        parts: [Option<&str>; N],
    ) -> [Item; 2] {
        let NameParts { namespace, name, full } = NameParts::of(self.policy);
        let direction = self.direction.text();
        let mut id_parts = vec![namespace, name, direction, &self.index, protocol, kind];
        id_parts.extend(extra.iter().map(|(_, value)| *value));
        let id = self.domain.id(owner, &id_parts);
        let mut ids = vec![
            ("direction", direction),
            ("gress-index", self.index.as_str()),
            ("ip-block-index", kind),
            ("port-policy-protocol", protocol),
        ];
        ids.extend_from_slice(extra);
        let ports = matching::port_group(self.direction, self.group);
        let matching: Vec<&str> = parts.into_iter().flatten().chain([ports.as_str()]).collect();
        Acl {
            external_ids: self.domain.owner_ids(&id, owner, &full, &ids),
            id,
            name: format!("{}:{full}:{direction}:{}", self.domain.acl_prefix(), self.index),
            direction: self.direction,
            action: "allow-related",
            priority: ALLOW_PRIORITY,
            matching: matching.join(" && "),
        }
        .items(self.group, self.domain)
    }
}

struct NameParts<'a> {
    namespace: &'a str,
    name: &'a str,
    full: String,
}

impl<'a> NameParts<'a> {
    fn of(policy: &'a Policy) -> Self {
        let (namespace, name) = (policy.name.namespace.as_str(), policy.name.name.as_str());
        Self { namespace, name, full: format!("{namespace}:{name}") }
    }
}
