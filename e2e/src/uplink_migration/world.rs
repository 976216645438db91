//! What the scenes are played with: a pod on each node, a service with a node port, a server outside.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::json;

use crate::expect::{self, Expect};
use crate::objects::Objects;
use testbed::cluster::Bed;
use testbed::cluster::config::{OUTSIDE_IP, OUTSIDE_IP_6};
use testbed::exec;
use testbed::pod;
use testbed::traffic::{self, Dial, Place};

/// How long a node may take to follow, and the cluster after it. A call of the API over a connection from an address that has
/// gone is given up after 10 s, and there may be several such connections.
pub(super) const SOON: Duration = Duration::from_secs(60);
/// The gateway bridge of a node.
pub(super) const BRIDGE: &str = "breth0";
/// Node port of the service, whose backend is the pod of n2.
pub(super) const NODE_PORT: u16 = 30088;
/// Port of the server outside.
pub(super) const OUTSIDE_PORT: u16 = 9000;

pub(super) struct World<'a> {
    pub(super) bed: &'a Bed,
    objects: Objects<'a>,
}

impl<'a> World<'a> {
    /// Namespace of the pods.
    pub(super) const NAMESPACE: &'static str = "uplink";

    /// Makes what the scenes need.
    pub(super) fn new(bed: &'a Bed) -> Result<Self> {
        let world =
            Self { bed, objects: Objects { bed, namespace: Self::NAMESPACE, heal: SOON, soon: SOON } };
        world.objects.make_namespace()?;
        world.pod_of("n1")?;
        world.pod_of("n2")?;
        let port = json!({"port": 80, "targetPort": 8080, "nodePort": NODE_PORT});
        world.objects.apply(json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "b", "namespace": Self::NAMESPACE},
            "spec": {"type": "NodePort", "selector": {"app": "b"}, "ports": [port]},
        }))?;
        if !bed.host("ext").processes()?.iter().any(|process| process.name == "server") {
            let program = bed.config().program("testbed").display().to_string();
            let serve = [program.as_str(), "probe", "serve", "--name", "outside", "--tcp", "9000"];
            bed.host("ext").start("server", &serve, &[])?;
        }
        world.is_well()?;
        Ok(world)
    }

    /// Makes the pod of a node, in place of one that the agent's clean-up has cut off.
    pub(super) fn pod_of(&self, node: &str) -> Result<()> {
        let name = if node == "n1" { "a" } else { "b" };
        self.objects.delete(&[name])?;
        self.objects.apply(pod::with_image(self.bed, pod::manifest(Self::NAMESPACE, name, Some(node)))?)?;
        pod::wait_ready(self.bed, Self::NAMESPACE, SOON)
    }

    /// Creates or changes an object.
    pub(super) fn apply(&self, object: impl std::fmt::Display) -> Result<()> {
        self.objects.apply(object)
    }

    /// `ip ARGS` on a host.
    pub(super) fn ip(&self, host: &str, args: &str) -> Result<String> {
        exec::output(self.bed.host(host).network_command("ip")?.args(args.split(' ')))
    }

    /// `nft` on a host, with this ruleset.
    pub(super) fn nft(&self, host: &str, ruleset: &str) -> Result<()> {
        exec::input_output(self.bed.host(host).network_command("nft")?.args(["-f", "-"]), ruleset).map(drop)
    }

    /// An annotation of a node, by its name without the prefix.
    pub(super) fn annotation(&self, node: &str, name: &str) -> Result<String> {
        let path = format!(r".metadata.annotations.k8s\.ovn\.org/{name}");
        self.objects.field(&format!("node/{node}"), &path)
    }

    /// Waits until it is so.
    pub(super) fn eventually(&self, what: &str, check: impl FnMut() -> Result<()>) -> Result<()> {
        exec::retry(SOON, what, check)
    }

    /// Waits until the gateway's annotation has these words, and not those.
    pub(super) fn gateway_says(&self, node: &str, words: &[&str], not: &[&str]) -> Result<()> {
        self.eventually("the gateway's annotation follows", || {
            let said = self.annotation(node, "l3-gateway-config")?;
            let good = words.iter().all(|w| said.contains(w)) && !not.iter().any(|w| said.contains(w));
            if good { Ok(()) } else { bail!("it is {said}; wanted {words:?} and not {not:?}") }
        })
    }

    /// Waits until a client gets this answer.
    pub(super) fn answers(&self, from: Place, dial: Dial, expect: &Expect) -> Result<()> {
        let shown = format!("{from} -> {} port {}", dial.host, dial.port);
        let outcome = expect::settle(self.bed, &from, dial, expect, SOON).1;
        outcome.map(drop).map_err(|seen| anyhow!("{shown}: {seen}"))
    }

    pub(super) fn pod(name: &str) -> Place {
        let node = if name == "a" { "n1" } else { "n2" };
        Place::Pod { node: node.to_owned(), namespace: Self::NAMESPACE.to_owned(), name: name.to_owned() }
    }

    /// The pod reaches the server outside, which sees this client.
    pub(super) fn reaches_outside(&self, pod: &str, client: impl Into<IpAddr>) -> Result<()> {
        let client = client.into();
        let server = if client.is_ipv4() { IpAddr::V4(OUTSIDE_IP) } else { IpAddr::V6(OUTSIDE_IP_6) };
        let expect = Expect::only(&format!("outside {client}"));
        self.answers(Self::pod(pod), Dial::tcp(server, OUTSIDE_PORT), &expect)
    }

    /// The node's own connection to the node port of another address of the cluster is answered.
    pub(super) fn node_port(&self, node: &str, address: Ipv4Addr) -> Result<()> {
        let answers = expect::settle(
            self.bed,
            &Place::Host(node.to_owned()),
            Dial::tcp(address, NODE_PORT).within(Duration::from_secs(1)),
            &Expect::Refused,
            Duration::ZERO,
        )
        .0;
        let text = traffic::summary(&answers);
        ensure!(text.starts_with("b "), "{node} -> {address} port {NODE_PORT}: {text}");
        Ok(())
    }

    /// Pods talk across nodes, and the outside is reached from both.
    pub(super) fn is_well(&self) -> Result<()> {
        let ip = self.objects.field("pod/b", ".status.podIP")?;
        let client = self.objects.field("pod/a", ".status.podIP")?;
        let ip: IpAddr = ip.parse().with_context(|| format!("pod b has the address {ip:?}"))?;
        self.answers(
            Self::pod("a"),
            Dial::tcp(ip, 8080).to_pod(self.bed),
            &Expect::only(&format!("b {client}")),
        )?;
        for (pod, node) in [("a", 1), ("b", 2)] {
            self.reaches_outside(pod, testbed::cluster::config::node_ip(node))?;
        }
        Ok(())
    }
}
