//! Networks, definitions and the pods that stay, and how they are looked at.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use api::network_attachment::NetworkStatus;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use testbed::cluster::Bed;
use testbed::cluster::config::Multus;
use testbed::exec;
use testbed::nodes::PodName;
use testbed::pod;
use testbed::traffic::Place;

use crate::objects::Objects;
use crate::snapshot;

/// How long pods take to run, and what waits to heal: the kubelet tries again after growing pauses.
pub(super) const HEAL: Duration = Duration::from_secs(90);
const SOON: Duration = Duration::from_secs(20);

/// The namespace of everything.
pub(super) const RED: &str = "red";
/// The pods that stay.
pub(super) const STAYING: [(&str, &str); 2] = [("m1", "n1"), ("m2", "n2")];
/// What each of them asks for: two virtual networks, with a bridge of another plugin between them.
pub(super) const THREE: &str = "own,bridge,far@data0";

/// A cluster with the pods that stay.
pub(super) struct Scene<'a> {
    pub(super) red: Objects<'a>,
}

/// Addresses and routes inside a pod, as `ip -json` has them.
#[derive(Debug)]
pub(super) struct Inside {
    links: Vec<Value>,
    routes: Vec<Value>,
}

impl<'a> Scene<'a> {
    pub(super) fn set(bed: &'a Bed) -> Result<Self> {
        if bed.config().multus.is_none() || bed.config().nodes < 2 {
            bail!("two real nodes below Multus are needed: `--multus default|secondary --nodes 2`");
        }
        let scene = Self { red: Objects { bed, namespace: RED, heal: HEAL, soon: SOON } };
        let red = &scene.red;
        red.make_namespace()?;
        exec::retry(HEAL, "the namespace has its account", || {
            bed.kubectl(&["get", "serviceaccount", "-n", RED, "default"])
        })?;
        red.apply(network("own", 30))?;
        red.apply(network("far", 31))?;
        red.apply(ours("own", None))?;
        red.apply(ours("far", Some("red/far")))?;
        let bridge = json!({
            "cniVersion": "1.0.0", "name": "bridge", "type": "bridge", "bridge": "br-red", "mtu": 1400,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "192.168.7.0/24"}]], "dataDir": "/run/cni-ipam"},
        });
        red.apply(definition("bridge", &bridge))?;
        for (name, node) in STAYING {
            red.apply(scene.naming(name, node, THREE)?)?;
        }
        scene.runs(&STAYING.map(|(name, _)| name)).map_err(anyhow::Error::msg)?;
        Ok(scene)
    }

    pub(super) fn bed(&self) -> &'a Bed {
        self.red.bed
    }

    /// Whether pods have the cluster's network by Slipstream.
    pub(super) fn is_default(&self) -> bool {
        self.bed().config().multus == Some(Multus::Default)
    }

    /// What Multus calls the network of the first interface.
    pub(super) fn default_network(&self) -> &'static str {
        if self.is_default() { "slipstream" } else { "other" }
    }

    /// A pod that names definitions.
    pub(super) fn naming(&self, name: &str, node: &str, networks: &str) -> Result<Value> {
        let mut pod = pod::with_image(self.bed(), pod::manifest(RED, name, Some(node)))?;
        // With 0 the API server would forget the pod before its node has ended it.
        pod["spec"]["terminationGracePeriodSeconds"] = 1.into();
        pod["metadata"]["annotations"] = json!({"k8s.v1.cni.cncf.io/networks": networks});
        Ok(pod)
    }

    /// Waits until pods are Ready.
    pub(super) fn runs(&self, names: &[&str]) -> Result<String, String> {
        let ready = self.bed().pods_ready(RED, Some(names), exec::patient(HEAL));
        ready.map(|()| String::new()).map_err(|error| format!("{error:#}; {}", self.warnings(names)))
    }

    fn warnings(&self, names: &[&str]) -> String {
        let told = |name: &&str| self.bed().events(Some(RED), name).unwrap_or_default().pop();
        names.iter().filter_map(told).map(|(reason, message)| format!("{reason}: {message}; ")).collect()
    }

    /// What Multus said that the pod got.
    pub(super) fn status(&self, name: &str) -> Result<Vec<NetworkStatus>> {
        let pod: Pod = self.bed().read(RED, name)?;
        let annotations = pod.metadata.annotations.unwrap_or_default();
        let text = annotations.get("k8s.v1.cni.cncf.io/network-status").context("there is no status")?;
        serde_json::from_str(text).with_context(|| format!("status {text}"))
    }

    /// The pod's IPv4 address on a network, by its name in the status.
    pub(super) fn address(&self, name: &str, network: &str) -> Result<Ipv4Addr> {
        let status = self.status(name)?;
        let of = status.iter().find(|one| one.name == network).with_context(|| format!("{status:?}"))?;
        let ip = of.ips.iter().find(|ip| ip.is_ipv4()).context("no address")?;
        ip.to_string().parse().context("an address")
    }

    pub(super) fn inside(&self, name: &str, node: &str) -> Result<Inside> {
        let ask = |what: &[&str]| -> Result<Vec<Value>> {
            let pod = PodName { node, namespace: RED, name };
            let mut command = self.bed().runtime().pod_command(self.bed(), &pod, Path::new("ip"))?;
            let said = exec::output(command.args(["-json"]).args(what))?;
            serde_json::from_str(&said).with_context(|| format!("ip said {said:?}"))
        };
        Ok(Inside { links: ask(&["address"])?, routes: ask(&["route"])? })
    }

    /// Interfaces by node that are plugged in for pods of the namespace: name in the pod, by logical port.
    pub(super) fn plugged(&self, pod: &str) -> Result<Vec<String>> {
        let mut all = Vec::new();
        for node in self.bed().config().node_names() {
            let ports = snapshot::pod_ports(self.bed(), &node)?;
            all.extend(ports.into_iter().filter(|port| port.ends_with(&format!("{RED}_{pod}"))));
        }
        Ok(all)
    }

    /// Files that Multus, libcni and the IPAM of the other plugins keep for pods, by node.
    pub(super) fn kept(&self) -> Result<BTreeMap<String, Vec<String>>> {
        let mut all = BTreeMap::new();
        for node in self.bed().config().node_names() {
            let mut command = self.bed().host(&node).command("sh")?;
            command.args(["-c", "find /var/lib/cni /run/cni-ipam -type f 2>/dev/null || true"]);
            let said = exec::output(&mut command)?;
            let of_pods = |path: &&str| !path.contains("last_reserved_ip") && !path.ends_with("/lock");
            let mut files: Vec<String> = said.lines().filter(of_pods).map(str::to_owned).collect();
            files.sort();
            all.insert(node, files);
        }
        Ok(all)
    }

    /// An event about a pod whose reason and message have these texts.
    pub(super) fn event(&self, pod: &str, reason: &str, text: &str) -> Result<String, String> {
        eventually(|| {
            let said = self.bed().events(Some(RED), pod)?;
            let found = said.iter().find(|(why, message)| why == reason && message.contains(text));
            found.map(|(_, message)| message.clone()).with_context(|| format!("events: {said:?}"))
        })
    }
}

impl Inside {
    /// Names of the interfaces but the loopback, each with its IPv4 addresses.
    pub(super) fn interfaces(&self) -> BTreeMap<String, Vec<String>> {
        let name = |link: &Value| link["ifname"].as_str().unwrap_or_default().to_owned();
        let addresses = |link: &Value| {
            let all = link["addr_info"].as_array().into_iter().flatten();
            let four = all.filter(|one| one["family"] == "inet").filter_map(|one| one["local"].as_str());
            four.map(str::to_owned).collect::<Vec<_>>()
        };
        let links = self.links.iter().filter(|link| link["ifname"] != "lo");
        links.map(|link| (name(link), addresses(link))).collect()
    }

    /// Gateway and interface of each IPv4 default route.
    pub(super) fn defaults(&self) -> Vec<String> {
        let text = |route: &Value, key: &str| route[key].as_str().unwrap_or_default().to_owned();
        let defaults = self.routes.iter().filter(|route| route["dst"] == "default");
        defaults.map(|route| format!("{} {}", text(route, "gateway"), text(route, "dev"))).collect()
    }
}

pub(super) fn place(name: &str, node: &str) -> Place {
    Place::Pod { node: node.into(), namespace: RED.into(), name: name.into() }
}

/// An isolated network. `third`: what tells its range from others.
pub(super) fn network(name: &str, third: u8) -> Value {
    json!({
        "apiVersion": "slipstream.dev/v1alpha1", "kind": "VirtualNetwork",
        "metadata": {"namespace": RED, "name": name},
        "spec": {"subnets": [format!("172.16.{third}.0/24")]},
    })
}

pub(super) fn definition(name: &str, config: &Value) -> Value {
    json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": {"namespace": RED, "name": name}, "spec": {"config": config.to_string()},
    })
}

/// A definition of ours; without `network` for the one of its own name.
pub(super) fn ours(name: &str, network: Option<&str>) -> Value {
    let mut config = json!({"cniVersion": "1.0.0", "type": "slipstream-cni"});
    if let Some(network) = network {
        config["network"] = network.into();
    }
    definition(name, &config)
}

/// Tries until it holds, or the time is over.
pub(super) fn eventually(mut what: impl FnMut() -> Result<String>) -> Result<String, String> {
    let end = Instant::now() + exec::patient(HEAL);
    loop {
        match what() {
            Ok(text) => return Ok(text),
            Err(error) if Instant::now() > end => return Err(format!("{error:#}")),
            Err(_) => std::thread::sleep(Duration::from_millis(300)),
        }
    }
}

/// The outcome of what is true or not.
pub(super) fn holds(what: impl FnOnce() -> Result<()>) -> Result<String, String> {
    what().map(|()| String::new()).map_err(|error| format!("{error:#}"))
}

/// Fails unless both are the same.
pub(super) fn same<T: PartialEq + std::fmt::Debug>(found: &T, expected: &T) -> Result<()> {
    ensure!(found == expected, "{found:?}, and {expected:?} is expected");
    Ok(())
}
