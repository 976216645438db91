//! Load balancer rows: names, columns, merging and attachments.

use std::collections::BTreeMap;

use api::ovn_name::{self, key};
use ovsdb_client::Datum;

use crate::config::Config;
use crate::index::Protocol;
use crate::plan::{DesiredRow, Item, RowKey, Table};
use api::service::Service;

/// The longest affinity that Kubernetes allows, in seconds. It means "for ever", which hashing gives without state.
const MAX_AFFINITY_SECONDS: u32 = 86_400;

/// The longest timeout that OVN accepts, in seconds: the timeout of an OpenFlow flow has 16 bits.
const MAX_TIMEOUT: u32 = 65_535;

/// Options of every load balancer. For protocols without an end of connection, conntrack entries are flushed when their backend
/// goes, so that a client that keeps its port is not sent to a backend that is gone.
pub(in crate::plan) fn options(
    protocol: Protocol,
    skip_snat: bool,
    config: &Config,
) -> BTreeMap<String, String> {
    let mut options = BTreeMap::from([
        ("event".to_owned(), "false".to_owned()),
        ("hairpin_snat_ip".to_owned(), config.hairpin_addresses()),
        ("neighbor_responder".to_owned(), "none".to_owned()),
        ("reject".to_owned(), "true".to_owned()),
        ("skip_snat".to_owned(), skip_snat.to_string()),
    ]);
    if protocol != Protocol::Tcp {
        options.insert("ct_flush".to_owned(), "true".to_owned());
    }
    options
}

/// Where a load balancer of a node is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    RouterAndSwitch,
    Router,
    /// Gateway router, without source NAT.
    LocalRouter,
    Switch,
}

impl Kind {
    fn text(self) -> &'static str {
        match self {
            Self::RouterAndSwitch => "router+switch",
            Self::Router => "router",
            Self::LocalRouter => "local_router",
            Self::Switch => "switch",
        }
    }

    fn on_router(self) -> bool {
        self != Self::Switch
    }

    fn on_switch(self) -> bool {
        matches!(self, Self::RouterAndSwitch | Self::Switch)
    }
}

/// A load balancer row to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Balancer {
    protocol: Protocol,
    /// End of the name.
    suffix: String,
    vips: BTreeMap<String, String>,
    skip_snat: bool,
    attached: Vec<RowKey>,
}

impl Balancer {
    pub(super) fn of_cluster(protocol: Protocol, vips: BTreeMap<String, String>) -> Self {
        let attached = vec![RowKey::new(Table::LoadBalancerGroup, ovn_name::CLUSTER_LB_GROUP)];
        let skip_snat = only_refuses(protocol, &vips);
        Self { protocol, suffix: "cluster".to_owned(), vips, skip_snat, attached }
    }

    pub(super) fn of_node(
        protocol: Protocol,
        kind: Kind,
        node: &str,
        vips: BTreeMap<String, String>,
    ) -> Self {
        let mut attached = Vec::new();
        if kind.on_switch() {
            attached.push(RowKey::new(Table::LogicalSwitch, node));
        }
        if kind.on_router() {
            attached.push(RowKey::new(Table::LogicalRouter, ovn_name::gateway_router(node)));
        }
        let suffix = format!("node_{}_{node}", kind.text());
        let skip_snat = match kind {
            Kind::LocalRouter => true,
            Kind::Router => only_refuses(protocol, &vips),
            Kind::RouterAndSwitch | Kind::Switch => false,
        };
        Self { protocol, suffix, vips, skip_snat, attached }
    }

    /// The row and its attachments.
    pub(super) fn items(&self, service: &Service, config: &Config) -> Vec<Item> {
        let name = format!("Service_{}_{}_{}", service.name, self.protocol.upper(), self.suffix);
        let row_key = RowKey::new(Table::LoadBalancer, name.clone());
        let mut options = options(self.protocol, self.skip_snat, config);
        let mut selection = Datum::Set(Vec::new());
        match service.affinity {
            Some(seconds) if seconds >= MAX_AFFINITY_SECONDS => {
                selection = Datum::Set(vec!["ip_dst".into(), "ip_src".into()]);
            }
            Some(seconds) => {
                options.insert("affinity_timeout".to_owned(), seconds.min(MAX_TIMEOUT).to_string());
            }
            None => {}
        }
        let external_ids = BTreeMap::from([
            (key::KIND.to_owned(), "Service".to_owned()),
            (key::OWNER.to_owned(), service.name.to_string()),
        ]);
        let row = DesiredRow::new(row_key.clone())
            .with("name", name)
            .with("protocol", self.protocol.lower())
            .with("vips", self.vips.clone())
            .with("options", options)
            .with("selection_fields", selection)
            .with("external_ids", external_ids);
        let mut items = vec![Item::from(row)];
        items.extend(self.attached.iter().map(|owner| Item::link(owner, "load_balancer", &row_key)));
        items
    }
}

/// Without backends OVN rejects with a TCP reset, whose source address the gateway router's source NAT would replace with one that the
/// client did not connect to. ICMP errors pass unchanged; and a UDP client that keeps its port must not stay without source NAT once there
/// is a backend.
fn only_refuses(protocol: Protocol, vips: &BTreeMap<String, String>) -> bool {
    protocol == Protocol::Tcp && vips.values().all(String::is_empty)
}

/// Merges load balancers of nodes that are equal but for their name. The result is named after the first.
pub(super) fn merge(balancers: Vec<Balancer>) -> Vec<Balancer> {
    let mut merged: Vec<(Balancer, bool)> = Vec::new();
    let mut places: BTreeMap<(BTreeMap<String, String>, bool), usize> = BTreeMap::new();
    for balancer in balancers {
        let alike = (balancer.vips.clone(), balancer.skip_snat);
        let place = *places.entry(alike).or_insert(merged.len());
        match merged.get_mut(place) {
            Some((first, several)) => {
                first.attached.extend(balancer.attached);
                *several = true;
            }
            None => merged.push((balancer, false)),
        }
    }
    merged
        .into_iter()
        .map(|(mut balancer, several)| {
            if several {
                balancer.suffix.push_str("_merged");
            }
            balancer
        })
        .collect()
}
