//! What the gateway watches in Kubernetes: Nodes, Services and EndpointSlices, trimmed to what it uses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use api::{Lenient, annotation};
use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Client, ResourceExt};
use tracing::warn;

use super::services::{self, ServiceIndex};
use crate::programs::chain;

/// One event of any of the watches.
enum Any {
    Node(Box<Event<Node>>),
    Service(Box<Event<Lenient<Service>>>),
    Slice(Box<Event<EndpointSlice>>),
}

/// The cluster as this node's gateway sees it.
#[derive(Debug)]
pub struct ClusterView {
    node: String,
    /// Node name to its addresses.
    nodes: BTreeMap<String, BTreeSet<IpAddr>>,
    /// Annotations of the own Node; `None` until it has been seen.
    own: Option<BTreeMap<String, String>>,
    /// Services and their backends here.
    pub services: ServiceIndex,
    listed: Listed,
    pending: Pending,
}

/// Which watches have given their full contents once.
#[derive(Debug, Default, Clone, Copy)]
struct Listed {
    nodes: bool,
    services: bool,
    slices: bool,
}

/// Names seen while a watch lists anew.
#[derive(Debug, Default)]
struct Pending {
    nodes: BTreeSet<String>,
    services: BTreeSet<String>,
    slices: BTreeSet<String>,
}

/// The watches, as one stream of changes.
pub struct Watches {
    events: BoxStream<'static, Result<Any, watcher::Error>>,
}

impl Watches {
    /// Begins to watch. Errors are retried with growing waits, for ever.
    pub fn new(client: &Client) -> Self {
        let config = || watcher::Config::default();
        let nodes = watch(Api::<Node>::all(client.clone()), config()).modify(|node| {
            node.metadata.managed_fields = None;
            if let Some(status) = &mut node.status {
                status.images = None;
                status.conditions = None;
            }
        });
        let services = watch(Api::<Lenient<Service>>::all(client.clone()), config())
            .modify(|Lenient(service)| service.metadata.managed_fields = None);
        let slices = watch(Api::<EndpointSlice>::all(client.clone()), config())
            .modify(|s| s.metadata.managed_fields = None);
        let events = futures::stream::select_all([
            nodes.default_backoff().map_ok(|event| Any::Node(Box::new(event))).boxed(),
            services.default_backoff().map_ok(|event| Any::Service(Box::new(event))).boxed(),
            slices.default_backoff().map_ok(|event| Any::Slice(Box::new(event))).boxed(),
        ]);
        Self { events: events.boxed() }
    }

    /// Takes the next event into `view`. True when something the gateway uses has changed; `None` when the watches ended.
    pub async fn next(&mut self, view: &mut ClusterView) -> Option<bool> {
        match self.events.next().await? {
            Ok(event) => Some(view.take(event)),
            Err(error) => {
                warn!(error = chain(&error), "watch of the cluster failed; it is tried again");
                Some(false)
            }
        }
    }
}

impl ClusterView {
    /// An empty view of the node of this name.
    pub fn new(node: &str) -> Self {
        Self {
            node: node.to_owned(),
            nodes: BTreeMap::new(),
            own: None,
            services: ServiceIndex::new(node),
            listed: Listed::default(),
            pending: Pending::default(),
        }
    }

    /// True once every watch has given its full contents, so that nothing is missing by mere order.
    pub fn is_complete(&self) -> bool {
        self.listed.nodes && self.listed.services && self.listed.slices
    }

    /// Addresses of all other nodes.
    pub fn remote_nodes(&self) -> BTreeSet<IpAddr> {
        self.nodes.iter().filter(|(name, _)| **name != self.node).flat_map(|(_, ips)| ips).copied().collect()
    }

    /// Addresses of all other nodes, by name.
    pub fn other_nodes(&self) -> BTreeMap<String, BTreeSet<IpAddr>> {
        self.nodes
            .iter()
            .filter(|(name, _)| **name != self.node)
            .map(|(n, ips)| (n.clone(), ips.clone()))
            .collect()
    }

    /// Annotations of the own Node, once it has been seen.
    pub fn own_annotations(&self) -> Option<&BTreeMap<String, String>> {
        self.own.as_ref()
    }

    fn take(&mut self, event: Any) -> bool {
        match event {
            Any::Node(event) => self.take_node(*event),
            Any::Service(event) => self.take_service(*event),
            Any::Slice(event) => self.take_slice(*event),
        }
    }

    fn take_service(&mut self, event: Event<Lenient<Service>>) -> bool {
        match event {
            Event::Apply(Lenient(service)) => self.services.apply_service(&service),
            Event::InitApply(Lenient(service)) => {
                self.pending.services.insert(key(&service));
                self.services.apply_service(&service);
                false
            }
            Event::Delete(Lenient(service)) => self.services.delete_service(&service),
            Event::Init => {
                self.pending.services.clear();
                false
            }
            Event::InitDone => {
                self.services.retain_services(&std::mem::take(&mut self.pending.services));
                self.listed.services = true;
                true
            }
        }
    }

    fn take_slice(&mut self, event: Event<EndpointSlice>) -> bool {
        match event {
            Event::Apply(slice) => self.services.apply_slice(&slice),
            Event::InitApply(slice) => {
                self.pending.slices.insert(key(&slice));
                self.services.apply_slice(&slice);
                false
            }
            Event::Delete(slice) => self.services.delete_slice(&slice),
            Event::Init => {
                self.pending.slices.clear();
                false
            }
            Event::InitDone => {
                self.services.retain_slices(&std::mem::take(&mut self.pending.slices));
                self.listed.slices = true;
                true
            }
        }
    }

    fn take_node(&mut self, event: Event<Node>) -> bool {
        match event {
            Event::Apply(node) => self.apply_node(&node),
            Event::InitApply(node) => {
                self.pending.nodes.insert(node.name_any());
                self.apply_node(&node);
                false
            }
            Event::Delete(node) => self.nodes.remove(&node.name_any()).is_some(),
            Event::Init => {
                self.pending.nodes.clear();
                false
            }
            Event::InitDone => {
                let alive = std::mem::take(&mut self.pending.nodes);
                self.nodes.retain(|name, _| alive.contains(name));
                self.listed.nodes = true;
                true
            }
        }
    }

    fn apply_node(&mut self, node: &Node) -> bool {
        let name = node.name_any();
        let mut changed = false;
        if name == self.node {
            let own = node.metadata.annotations.clone().unwrap_or_default();
            changed |= self.own.as_ref() != Some(&own);
            self.own = Some(own);
        }
        let ips = addresses_of(node);
        changed | (self.nodes.insert(name, ips.clone()) != Some(ips))
    }
}

fn key(object: &impl ResourceExt) -> String {
    services::key(object.namespace().as_deref(), Some(&object.name_any()))
}

/// A node's addresses on the physical network, from its status and from what its agent wrote.
fn addresses_of(node: &Node) -> BTreeSet<IpAddr> {
    let from_status = node
        .status
        .iter()
        .flat_map(|s| s.addresses.iter().flatten())
        .filter(|a| a.type_ == "InternalIP")
        .filter_map(|a| a.address.parse().ok());
    let primary = node.annotations().get(annotation::NODE_PRIMARY_IFADDR).and_then(|value| {
        let read = annotation::decode::<annotation::FamilyAddresses>(annotation::NODE_PRIMARY_IFADDR, value);
        match read {
            Ok(addresses) => Some(addresses),
            Err(error) => {
                warn!(node = node.name_any(), %error, "ignoring the annotation");
                None
            }
        }
    });
    let primary = primary.into_iter().flat_map(|both| [both.ipv4, both.ipv6]).flatten();
    from_status.chain(primary.map(|net: IpNet| net.addr())).collect()
}
