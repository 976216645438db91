//! Two tenants with networks of their own, and their pods.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use api::annotation::{PodNetwork, PodNetworks};
use serde_json::{Value, json};

use crate::demo::echoes::Echo;
use testbed::cluster::Bed;
use testbed::pod;
use testbed::traffic::Place;

use crate::objects::Objects;

/// How long pods take to run, and what waits to heal.
pub(super) const HEAL: Duration = Duration::from_secs(40);
/// How long what is wrong may take to be told.
const SOON: Duration = Duration::from_secs(20);

/// The tenants' namespaces.
pub(super) const RED: &str = "red";
pub(super) const GREEN: &str = "green";

/// The first tenant's networks with the interface that its pods have there. Both tenants have one called `own`, with the same range.
pub(super) const NETWORKS: [(&str, &str); 3] = [("own", "net1"), ("routed", "net2"), ("out", "net3")];

/// Pods with their nodes: two on one node, one on the other.
const RED_PODS: [(&str, &str); 3] = [("r1", "n1"), ("r2", "n1"), ("r3", "n2")];
const GREEN_PODS: [(&str, &str); 2] = [("g1", "n1"), ("g2", "n2")];

/// A pod, and its addresses on each network.
pub(super) struct Member {
    pub(super) place: Place,
    pub(super) node: &'static str,
    pub(super) networks: BTreeMap<String, PodNetwork>,
}

/// Networks and pods as they were made.
pub(super) struct Scene<'a> {
    pub(super) red: Objects<'a>,
    pub(super) green: Objects<'a>,
    pub(super) pods: BTreeMap<&'static str, Member>,
    /// They end with the scene.
    _echoes: Vec<Echo>,
}

impl Member {
    /// Its address on a network, of one family.
    pub(super) fn address(&self, network: &str, six: bool) -> Result<IpAddr> {
        let found =
            self.networks.get(network).with_context(|| format!("{}: not on {network}", self.place))?;
        let mut addresses = found.ip_addresses.iter().map(ipnet::IpNet::addr);
        addresses
            .find(|address| address.is_ipv6() == six)
            .with_context(|| format!("{}: no address of that family on {network}", self.place))
    }
}

impl<'a> Scene<'a> {
    pub(super) fn set(bed: &'a Bed) -> Result<Self> {
        let of = |namespace| Objects { bed, namespace, heal: HEAL, soon: SOON };
        let (red, green) = (of(RED), of(GREEN));
        for tenant in [&red, &green] {
            tenant.make_namespace()?;
            tenant.apply(network(tenant.namespace, "own", "Isolated", 30))?;
        }
        red.apply(network(RED, "routed", "ClusterRouter", 40))?;
        red.apply(network(RED, "out", "Outside", 50))?;
        for (name, node) in RED_PODS {
            // The last one's default route is by the network that reaches the outside.
            let asked = NETWORKS.map(|(network, interface)| {
                let default = name == "r3" && network == "out";
                json!({"name": network, "interface": interface, "defaultGateway": default.to_string()})
            });
            red.apply(asking(RED, name, Some(node), &json!(asked)))?;
        }
        for (name, node) in GREEN_PODS {
            green.apply(asking(GREEN, name, Some(node), &json!([{"name": "own", "interface": "net1"}])))?;
        }
        let mut scene = Self { red, green, pods: BTreeMap::new(), _echoes: Vec::new() };
        for (tenant, list) in [(red, RED_PODS.as_slice()), (green, GREEN_PODS.as_slice())] {
            pod::wait_ready(bed, tenant.namespace, HEAL)?;
            for (name, node) in list {
                let place = Place::Pod {
                    node: (*node).into(),
                    namespace: tenant.namespace.into(),
                    name: (*name).into(),
                };
                scene._echoes.push(Echo::at(bed, &place)?);
                let networks = networks(&tenant, name)?;
                scene.pods.insert(name, Member { place, node, networks });
            }
        }
        // What OVN still carries out for these pods ends entries of their flows.
        bed.nbctl(&["--wait=hv", "sync"])?;
        Ok(scene)
    }

    pub(super) fn bed(&self) -> &'a Bed {
        self.red.bed
    }

    pub(super) fn pod(&self, name: &str) -> Result<&Member> {
        self.pods.get(name).with_context(|| format!("no pod {name}"))
    }
}

/// What the controller gave a pod, by the name of the network in its namespace.
pub(super) fn networks(tenant: &Objects<'_>, pod: &str) -> Result<BTreeMap<String, PodNetwork>> {
    let value = tenant.field(&format!("pod/{pod}"), r".metadata.annotations.k8s\.ovn\.org/pod-networks")?;
    let (_, others) = PodNetworks::all_of(&value).with_context(|| format!("pod {pod}"))?;
    let prefix = format!("{}/", tenant.namespace);
    let own = |(key, network): (String, PodNetwork)| (key.trim_start_matches(&prefix).to_owned(), network);
    Ok(others.into_iter().map(own).collect())
}

/// A network with both families. `third`: what tells its ranges from others.
pub(super) fn network(namespace: &str, name: &str, reach: &str, third: u8) -> Value {
    json!({
        "apiVersion": "slipstream.dev/v1alpha1", "kind": "VirtualNetwork",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"reach": reach, "subnets": [format!("172.16.{third}.0/24"), format!("fd00:{third}::/64")]},
    })
}

/// A pod that asks for interfaces.
pub(super) fn asking(namespace: &str, name: &str, node: Option<&str>, asked: &Value) -> Value {
    let mut pod = pod::manifest(namespace, name, node);
    pod["metadata"]["annotations"] = json!({"ovnNetwork": asked.to_string()});
    pod
}
