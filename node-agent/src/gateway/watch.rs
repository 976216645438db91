//! Kubernetes watches of the gateway: Nodes, Services and EndpointSlices, trimmed to the data in use.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use api::annotation::{self, FamilyAddresses, HOST_CIDRS, NODE_ENCAP_IPS, NODE_PRIMARY_IFADDR};
use api::service::{LABEL_HEADLESS, LABEL_PROXY_NAME};
use api::{Lenient, NamespacedName};
use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Client, ResourceExt};
use tracing::warn;

use super::services::ServiceIndex;
use crate::kube::client;
use crate::kube::service_names::ServiceNames;
use crate::metrics::Metrics;
use api::error::chain;

/// One event of any of the watches.
enum Any {
    Node(Box<Event<Node>>),
    Others(Box<Event<PartialObjectMeta<Node>>>),
    Service(Box<Event<Lenient<Service>>>),
    Slice(Box<Event<EndpointSlice>>),
}

/// The cluster as this node's gateway sees it.
#[derive(Debug)]
pub struct ClusterView {
    node: String,
    /// The other nodes by name.
    nodes: BTreeMap<String, OtherNode>,
    /// Annotations of the own Node; `None` until it has been seen.
    own: Option<BTreeMap<String, String>>,
    /// Services and their backends here.
    pub services: ServiceIndex,
    listed: Listed,
    pending: Pending,
}

/// Another node, from the annotations that its agent wrote.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct OtherNode {
    /// Addresses on the physical network and tunnel ends.
    addresses: BTreeSet<IpAddr>,
    /// The other addresses of the host.
    host: BTreeSet<IpAddr>,
}

/// Which watches have been listed completely once.
#[derive(Debug, Default, Clone, Copy)]
struct Listed {
    own: bool,
    nodes: bool,
    services: bool,
    slices: bool,
}

/// Names seen during a relist of a watch.
#[derive(Debug, Default)]
struct Pending {
    nodes: BTreeSet<String>,
    services: BTreeSet<NamespacedName>,
    slices: BTreeSet<NamespacedName>,
}

/// The watches, as one stream of changes.
pub struct Watches {
    events: BoxStream<'static, Result<Any, watcher::Error>>,
    metrics: Metrics,
}

/// Label selector of the services and slices that a service proxy serves; kube-proxy uses the same.
fn served() -> String {
    format!("!{LABEL_PROXY_NAME},!{LABEL_HEADLESS}")
}

impl Watches {
    /// Starts the watches for the node of this name. Errors are counted and retried with exponential backoff.
    ///
    /// Of other nodes only the metadata is watched: a Node object has some ten kilobytes, and every node watches every other one. Their
    /// addresses are in the annotations that their agents wrote. Without `serves` the cluster counts as one without services.
    pub fn new(client: &Client, node: &str, serves: bool, metrics: Metrics) -> Self {
        let config = client::watching;
        let nodes = Api::<Node>::all(client.clone());
        let own = watch(nodes, config().fields(&format!("metadata.name={node}")));
        let others = Api::<PartialObjectMeta<Node>>::all(client.clone());
        let others = watch(others, config().fields(&format!("metadata.name!={node}")))
            .modify(|node| node.metadata.managed_fields = None);
        let services = watch(Api::<Lenient<Service>>::all(client.clone()), config().labels(&served()))
            .modify(|Lenient(service)| service.metadata.managed_fields = None);
        let slices = watch(Api::<EndpointSlice>::all(client.clone()), config().labels(&served()))
            .modify(|s| s.metadata.managed_fields = None);
        let (services, slices) = match serves {
            true => (
                services.default_backoff().map_ok(|event| Any::Service(Box::new(event))).boxed(),
                slices.default_backoff().map_ok(|event| Any::Slice(Box::new(event))).boxed(),
            ),
            false => (
                empty_list(|event| Any::Service(Box::new(event))),
                empty_list(|event| Any::Slice(Box::new(event))),
            ),
        };
        let events = futures::stream::select_all([
            own.default_backoff().map_ok(|event| Any::Node(Box::new(event))).boxed(),
            others.default_backoff().map_ok(|event| Any::Others(Box::new(event))).boxed(),
            services,
            slices,
        ]);
        Self { events: events.boxed(), metrics }
    }

    /// Applies the next event to `view`. Returns true when something that the gateway uses has changed; `None` when the watches ended.
    pub async fn next(&mut self, view: &mut ClusterView) -> Option<bool> {
        match self.events.next().await? {
            Ok(event) => Some(view.take(event)),
            Err(error) => {
                self.metrics.api_failure("watch cluster");
                warn!(error = chain(&error), "cluster watch failed; retrying");
                Some(false)
            }
        }
    }
}

/// The watch of a kind of which there are no objects.
fn empty_list<K: 'static>(any: fn(Event<K>) -> Any) -> BoxStream<'static, Result<Any, watcher::Error>> {
    let events = [Event::Init, Event::InitDone].map(|event| Ok(any(event)));
    futures::stream::iter(events).chain(futures::stream::pending()).boxed()
}

impl ClusterView {
    /// Creates an empty view for the node `node` of a cluster with these ranges.
    pub fn new(node: &str, ranges: Vec<IpNet>, names: ServiceNames) -> Self {
        Self {
            node: node.to_owned(),
            nodes: BTreeMap::new(),
            own: None,
            services: ServiceIndex::new(node, ranges).with_names(names),
            listed: Listed::default(),
            pending: Pending::default(),
        }
    }

    /// True once every watch has been listed completely, so that no object is missing.
    pub fn is_complete(&self) -> bool {
        self.listed.own && self.listed.nodes && self.listed.services && self.listed.slices
    }

    /// Addresses of all other nodes on the physical network, and their tunnel ends.
    pub fn remote_nodes(&self) -> BTreeSet<IpAddr> {
        self.nodes.values().flat_map(|node| &node.addresses).copied().collect()
    }

    /// Addresses of all other nodes on the physical network, and their tunnel ends, by name.
    pub fn other_nodes(&self) -> BTreeMap<String, BTreeSet<IpAddr>> {
        self.nodes.iter().map(|(name, node)| (name.clone(), node.addresses.clone())).collect()
    }

    /// Every address by which another node is reached.
    pub fn all_remote_addresses(&self) -> BTreeSet<IpAddr> {
        self.nodes.values().flat_map(|node| node.addresses.union(&node.host)).copied().collect()
    }

    /// Annotations of the own Node, once it has been seen.
    pub fn own_annotations(&self) -> Option<&BTreeMap<String, String>> {
        self.own.as_ref()
    }

    fn take(&mut self, event: Any) -> bool {
        match event {
            Any::Node(event) => self.take_own(*event),
            Any::Others(event) => self.take_other(*event),
            Any::Service(event) => self.take_service(*event),
            Any::Slice(event) => self.take_slice(*event),
        }
    }

    fn take_service(&mut self, event: Event<Lenient<Service>>) -> bool {
        match event {
            Event::Apply(Lenient(service)) => self.services.apply_service(&service),
            Event::InitApply(Lenient(service)) => {
                self.pending.services.insert(NamespacedName::from(&service.metadata));
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
                self.pending.slices.insert(NamespacedName::from(&slice.metadata));
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

    fn take_own(&mut self, event: Event<Node>) -> bool {
        match event {
            Event::Apply(node) | Event::InitApply(node) => {
                let own = Some(node.metadata.annotations.unwrap_or_default());
                let changed = self.own != own;
                self.own = own;
                changed
            }
            // The last known annotations remain valid for the gateway.
            Event::Delete(_) | Event::Init => false,
            Event::InitDone => {
                self.listed.own = true;
                true
            }
        }
    }

    fn take_other(&mut self, event: Event<PartialObjectMeta<Node>>) -> bool {
        match event {
            Event::Apply(node) => self.apply_other(&node),
            Event::InitApply(node) => {
                self.pending.nodes.insert(node.name_any());
                self.apply_other(&node);
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

    fn apply_other(&mut self, node: &PartialObjectMeta<Node>) -> bool {
        // The server may ignore the field selector.
        if node.name_any() == self.node {
            return false;
        }
        let new = other_node(node);
        self.nodes.insert(node.name_any(), new.clone()) != Some(new)
    }
}

fn other_node(node: &PartialObjectMeta<Node>) -> OtherNode {
    let primary: Option<FamilyAddresses> = read(node, NODE_PRIMARY_IFADDR);
    let primary = primary.into_iter().flat_map(|both| [both.ipv4, both.ipv6]).flatten();
    let tunnels: Option<Vec<IpAddr>> = read(node, NODE_ENCAP_IPS);
    let host: Option<Vec<IpNet>> = read(node, HOST_CIDRS);
    OtherNode {
        addresses: primary.map(|net: IpNet| net.addr()).chain(tunnels.into_iter().flatten()).collect(),
        host: host.into_iter().flatten().map(|net| net.addr()).collect(),
    }
}

fn read<T: serde::de::DeserializeOwned>(node: &PartialObjectMeta<Node>, key: &'static str) -> Option<T> {
    let value = node.annotations().get(key)?;
    annotation::decode(key, value)
        .inspect_err(|error| warn!(node = node.name_any(), %error, "invalid annotation ignored"))
        .ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::kube::pods::{self, Pods};

    #[tokio::test]
    async fn lists_come_from_memory_and_only_of_what_is_used() {
        let (client, lists) = client::tests::empty_api().await;
        let pods = Pods::default();
        tokio::spawn(pods::follow(client.clone(), "n1".to_owned(), pods.clone(), Metrics::default()));
        let mut watches = Watches::new(&client, "n1", true, Metrics::default());
        let mut view = ClusterView::new("n1", Vec::new(), ServiceNames::default());
        let complete = async {
            while !view.is_complete() {
                watches.next(&mut view).await.unwrap();
            }
        };
        tokio::time::timeout(Duration::from_secs(20), complete).await.unwrap();
        assert!(pods.synced(Duration::from_secs(20)).await);
        let lists = lists.lock().clone();
        let asked: Vec<&str> = lists.keys().map(String::as_str).collect();
        assert_eq!(
            asked,
            [
                "/api/v1/nodes fieldSelector=metadata.name%21%3Dn1",
                "/api/v1/nodes fieldSelector=metadata.name%3Dn1",
                "/api/v1/pods fieldSelector=spec.nodeName%3Dn1",
                "/api/v1/services ",
                "/apis/discovery.k8s.io/v1/endpointslices ",
            ]
        );
        for (list, query) in &lists {
            assert!(query.contains("resourceVersion=0"), "{list}: {query}");
            let served = "labelSelector=%21service.kubernetes.io%2Fservice-proxy-name%2C%21service.kubernetes.io%2Fheadless";
            let balanced = list.contains("services") || list.contains("slices");
            assert_eq!(query.contains(served), balanced, "{list}: {query}");
        }
    }

    #[test]
    fn other_nodes_have_the_addresses_that_their_agents_wrote() {
        let mut view = ClusterView::new("n1", Vec::new(), ServiceNames::default());
        let node = |name: &str, ip: &str| {
            serde_json::from_value::<PartialObjectMeta<Node>>(json!({
                "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
                "metadata": { "name": name, "annotations": {
                    NODE_PRIMARY_IFADDR: format!(r#"{{"ipv4":"{ip}/16"}}"#),
                    NODE_ENCAP_IPS: r#"["192.0.2.9"]"#,
                    HOST_CIDRS: format!(r#"["{ip}/16","10.9.0.1/24"]"#),
                } },
            }))
            .unwrap()
        };
        assert!(view.take_other(Event::Apply(node("n2", "172.18.0.3"))));
        assert!(!view.take_other(Event::Apply(node("n2", "172.18.0.3"))), "the same again is no change");
        assert!(!view.take_other(Event::Apply(node("n1", "172.18.0.2"))), "the own one is no other");
        assert_eq!(view.remote_nodes(), ["172.18.0.3", "192.0.2.9"].map(|ip| ip.parse().unwrap()).into());
        let all = ["10.9.0.1", "172.18.0.3", "192.0.2.9"].map(|ip| ip.parse().unwrap());
        assert_eq!(view.all_remote_addresses(), all.into());
        assert!(view.take_other(Event::Delete(node("n2", "172.18.0.3"))));
        assert!(view.remote_nodes().is_empty());
    }
}
