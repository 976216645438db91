//! Every way that a connection takes through OVS: from pods, from the outside and from the node itself, to pods, services, nodes and the
//! outside.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::Value;

use super::echoes::{self, CPU, Echo, PORT, Service};
use super::rows::pod;
use super::workloads::Pods;
use testbed::cluster::Bed;
use testbed::cluster::config::{EXT_IP, node_ip, underlay_ip6};
use testbed::exec;
use testbed::tools::RoundTrips;
use testbed::traffic::Place;

/// Port of the services.
const SERVICE_PORT: u16 = 7200;
/// Node ports: with the backend on n1, on n2, and on n1 with `externalTrafficPolicy: Local`.
const NODE_PORTS: [u16; 3] = [30_171, 30_172, 30_173];

/// A way of a connection.
#[derive(Clone, Debug)]
pub struct Way {
    /// Client and server, in words.
    pub what: &'static str,
    /// Where the client is.
    pub from: Place,
    pub to: IpAddr,
    pub port: u16,
    /// Nodes through whose OVS it goes, with both directions.
    pub nodes: &'static [&'static str],
}

/// The echoes and services that the ways lead to.
#[derive(Debug)]
pub struct Scene<'a> {
    bed: &'a Bed,
    _echoes: Vec<Echo>,
    ways: Vec<Way>,
    names: Vec<String>,
}

impl Scene<'_> {
    /// Starts the echoes and makes the services. The demonstration's pods have to be there.
    pub fn set(bed: &Bed) -> Result<Scene<'_>> {
        let pods = Pods::list(bed)?;
        let on = |host: &str| Place::Host(host.to_owned());
        let mut echoes = Vec::new();
        for (node, name) in [("n1", "web-1"), ("n2", "web-2")] {
            echoes.push(Echo::in_pod(bed, node, pods.find(name)?.0)?);
        }
        for host in ["ext", "n1", "n2"] {
            echoes.push(Echo::at(bed, &on(host))?);
        }
        let families: &[bool] = if bed.config().dual_stack { &[false, true] } else { &[false] };
        let address = |name: &str, six: bool| -> Result<IpAddr> {
            Ok(if six { pods.find_6(name)?.1.into() } else { pods.find(name)?.1.into() })
        };
        let mut ways = Vec::new();
        let mut services = Vec::new();
        for (name, web, node, port, local) in [
            ("way-near", "web-1", "n1", NODE_PORTS[0], false),
            ("way-far", "web-2", "n2", NODE_PORTS[1], false),
            ("way-kept", "web-1", "n1", NODE_PORTS[2], true),
        ] {
            let backends: Vec<(IpAddr, &str)> =
                families.iter().map(|six| Ok((address(web, *six)?, node))).collect::<Result<_>>()?;
            let service = Service {
                namespace: "shop",
                name,
                port: SERVICE_PORT,
                backends: &backends,
                node_port: Some(port),
                local,
            };
            services.push((name.to_owned(), service.create(bed)?));
        }
        let client = pods.find("client")?.0;
        for &six in families {
            let cluster_ip = |number: usize| -> Result<IpAddr> {
                let (name, ips): &(String, Vec<IpAddr>) = &services[number];
                ips.iter()
                    .copied()
                    .find(|ip| ip.is_ipv6() == six)
                    .with_context(|| format!("service {name} has {ips:?}"))
            };
            let underlay = |ip: Ipv4Addr| -> IpAddr { if six { underlay_ip6(ip).into() } else { ip.into() } };
            // Of its addresses the one that an echo answers UDP from.
            let outside = underlay(EXT_IP);
            let from_pod = || pod("n1", client);
            let (n1, n2) = (underlay(node_ip(1)), underlay(node_ip(2)));
            let near = address("web-1", six)?;
            let far = address("web-2", six)?;
            let way = |what, from, to, port, nodes| Way { what, from, to, port, nodes };
            ways.extend([
                way("pod -> pod, same node", from_pod(), near, PORT, &["n1"][..]),
                way("pod -> pod, other node", from_pod(), far, PORT, &["n1", "n2"]),
                way("pod -> ClusterIP, same node", from_pod(), cluster_ip(0)?, SERVICE_PORT, &["n1"]),
                way("pod -> ClusterIP, other node", from_pod(), cluster_ip(1)?, SERVICE_PORT, &["n1", "n2"]),
                way("pod -> outside", from_pod(), outside, PORT, &["n1"]),
                way("pod -> other node", from_pod(), n2, PORT, &["n1", "n2"]),
                way("outside -> NodePort, own pod", on("ext"), n1, NODE_PORTS[0], &["n1"]),
                way("outside -> NodePort, other's pod", on("ext"), n1, NODE_PORTS[1], &["n1", "n2"]),
                way("outside -> NodePort, policy Local", on("ext"), n1, NODE_PORTS[2], &["n1"]),
                way("outside -> node", on("ext"), n1, PORT, &["n1"]),
                way("node -> outside", on("n1"), outside, PORT, &["n1"]),
                way("node -> node", on("n1"), n2, PORT, &["n1", "n2"]),
                way("node -> pod, own", on("n1"), near, PORT, &["n1"]),
                way("node -> pod, other node", on("n1"), far, PORT, &["n1", "n2"]),
                way("node -> ClusterIP, own pod", on("n1"), cluster_ip(0)?, SERVICE_PORT, &["n1"]),
                way("node -> ClusterIP, other's pod", on("n1"), cluster_ip(1)?, SERVICE_PORT, &["n1", "n2"]),
            ]);
        }
        let names = services.into_iter().map(|(name, _)| name).collect();
        Ok(Scene { bed, _echoes: echoes, ways, names })
    }

    /// All ways.
    pub fn ways(&self) -> &[Way] {
        &self.ways
    }

    /// Round trips by that way, at most `count` in ten seconds.
    pub fn round_trips(&self, way: &Way, udp: bool, count: u64) -> Result<RoundTrips> {
        self.ask(way, udp, count, 64)
    }

    /// The same with messages of this size, by TCP: the kernel makes aggregates of them, and puts what comes together again.
    pub fn transfers(&self, way: &Way, count: u64, size: u64) -> Result<RoundTrips> {
        self.ask(way, false, count, size)
    }

    fn ask(&self, way: &Way, udp: bool, count: u64, size: u64) -> Result<RoundTrips> {
        let mut client = echoes::client(self.bed, &way.from)?;
        client.args(["--cpu", CPU, "--count", &count.to_string(), "--seconds", "10"]);
        client.args(["--size", &size.to_string()]);
        client.args(udp.then_some("--udp")).args([way.to.to_string(), way.port.to_string()]);
        // OVN has to hear of a service first.
        let said = exec::retry(Duration::from_secs(20), way.what, || exec::output(&mut client))?;
        echoes::round_trips(&said)
    }

    /// Deletes the services.
    pub fn clear(self) -> Result<()> {
        for name in &self.names {
            self.bed.delete::<core::Service>("shop", name)?;
            self.bed.delete_labelled::<EndpointSlice>("shop", &format!("of={name}"))?;
        }
        Ok(())
    }
}

/// Packets that the flow cache of a node has carried, each counted where it came in.
pub fn carried(bed: &Bed, node: &str) -> Result<u64> {
    let counters = bed.agent(node).counters()?;
    let sum = |list: &str, direction: &str, only: &dyn Fn(&Value) -> bool| -> Result<u64> {
        let all = counters[list].as_array().with_context(|| format!("no {list} in {counters}"))?;
        all.iter()
            .filter(|one| only(one))
            .map(|one| {
                one[direction]["fast"]["packets"]
                    .as_u64()
                    .with_context(|| format!("no fast packets in {one}"))
            })
            .sum()
    };
    let any = |_: &Value| true;
    let wire = |one: &Value| one["interface"] == "uplink" || one["interface"] == "physical";
    Ok(sum("endpoints", "out", &any)?
        + sum("tunnels", "in", &any)?
        + sum("interfaces", "in", &wire)?
        + sum("interfaces", "out", &|one| !wire(one))?)
}
