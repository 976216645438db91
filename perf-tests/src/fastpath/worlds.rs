//! What the fast path is compared with: small networks of our own, with the hops of the paths that they represent.
//!
//! Two nodes are always joined as the test bed joins its own: a veth pair each to a bridge in a namespace between them.
//! Pods have a veth pair to their node and an MTU of 1400.

use std::fmt::Write;

use anyhow::{Context, Result};

use super::cell::{By, Route};
use super::direct::{self, Delivery};
use super::place::{Keeper, Namespace};
use super::proxy;

/// MTU of pods here and in the clusters.
const MTU: u32 = 1400;

/// A network: the two ends, and what else keeps it alive.
#[derive(Debug)]
pub(super) struct World {
    ends: [Namespace; 2],
    address: String,
    /// What the client asks, if that is something else.
    by: Option<&'static str>,
    _between: Vec<Namespace>,
    _programs: Vec<Keeper>,
}

impl World {
    fn new(ends: [Namespace; 2], address: impl Into<String>) -> Self {
        Self { ends, address: address.into(), by: None, _between: Vec::new(), _programs: Vec::new() }
    }

    /// The network with a switch and two nodes between the ends.
    fn over(self, Underlay { switch, nodes }: Underlay) -> Self {
        let mut between = vec![switch];
        between.extend(nodes);
        Self { _between: between, ..self }
    }

    /// From one end to the other.
    pub(super) fn route(&self) -> Route {
        let [client, server] = &self.ends;
        let (client, server) = (client.place(), server.place());
        let by = self.by.map(|address| By { address: address.to_owned(), port_offset: 0 });
        Route { client, server, address: self.address.clone(), by, part_of_path: Vec::new() }
    }
}

/// Two namespaces and one veth pair.
pub(super) fn veth() -> Result<World> {
    let [a, b] = [Namespace::new()?, Namespace::new()?];
    a.ip(&format!("link add eth0 mtu {MTU} type veth peer name eth0 mtu {MTU} netns {}\n", b.pid()))?;
    a.ip("addr add 10.70.0.1/24 dev eth0\nlink set eth0 up\n")?;
    b.ip("addr add 10.70.0.2/24 dev eth0\nlink set eth0 up\n")?;
    Ok(World::new([a, b], "10.70.0.2"))
}

/// Processes of two nodes: nothing but the wires.
pub(super) fn host() -> Result<World> {
    let Underlay { switch, nodes } = Underlay::new()?;
    Ok(World { _between: vec![switch], ..World::new(nodes, node_ip(2)) })
}

/// Pods whose nodes route to each other's range.
pub(super) fn routed() -> Result<World> {
    let underlay = Underlay::new()?;
    let pods = routed_pods(&underlay)?;
    Ok(World::new(pods, "10.78.2.2").over(underlay))
}

/// Pods as in [`routed`], by a cluster IP that the client's node translates as kube-proxy's mode `nftables` has it, one of so many.
pub(super) fn routed_services(services: u16) -> Result<World> {
    translated(&["nft", "-f", "-"], |backend| proxy::nftables(services, backend))
}

/// Pods as in [`routed_services`], in mode `iptables`.
pub(super) fn routed_iptables(services: u16) -> Result<World> {
    translated(&["iptables-nft-restore"], |backend| proxy::iptables(services, backend))
}

/// Pods as in [`routed`], whose nodes' rules are made from the backend's address and read by a program.
fn translated(program: &[&str], rules: impl Fn(&str) -> String) -> Result<World> {
    let world = routed()?;
    // The switch comes before the nodes.
    let node = world._between.get(1).context("a node between the pods")?;
    let (program, args) = program.split_first().context("a program")?;
    testbed::exec::input_output(node.place().command(program).args(args), &rules(&world.address))
        .with_context(|| format!("{program}, which reads the rules of kube-proxy's kind"))?;
    Ok(World { by: Some(proxy::ADDRESS), ..world })
}

/// A process of one node, and a pod of the other, to whose range it has a route.
pub(super) fn routed_host() -> Result<World> {
    let underlay = Underlay::new()?;
    let [near, far] = routed_pods(&underlay)?;
    let Underlay { switch, nodes: [client, node] } = underlay;
    Ok(World { _between: vec![switch, node, near], ..World::new([client, far], "10.78.2.2") })
}

/// A pod, and a host that has no route to it: its node, which routes, translates the pod's address into its own.
pub(super) fn routed_snat() -> Result<World> {
    let underlay = Underlay::new()?;
    let [pod, far] = routed_pods(&underlay)?;
    let Underlay { switch, nodes: [node, outside] } = underlay;
    outside.ip("route del 10.78.1.0/24\n")?;
    let rules = format!(
        "table ip nat {{\nchain out {{\ntype nat hook postrouting priority srcnat;\n\
         ip saddr 10.78.1.0/24 oifname eth0 counter snat to {};\n}}\n}}\n",
        node_ip(1)
    );
    testbed::exec::input_output(node.place().command("nft").args(["-f", "-"]), &rules)?;
    Ok(World { _between: vec![switch, node, far], ..World::new([pod, outside], node_ip(2)) })
}

/// Makes a pod on each node, and the routes to them.
fn routed_pods(underlay: &Underlay) -> Result<[Namespace; 2]> {
    let pods = [Namespace::new()?, Namespace::new()?];
    for (i, (node, pod)) in (1..).zip(underlay.nodes.iter().zip(&pods)) {
        let j = 3 - i;
        node.place().set("net.ipv4.ip_forward", "1")?;
        let mut lines = pod_link(pod);
        writeln!(lines, "addr add 10.78.{i}.1/24 dev pod\nlink set pod up")?;
        writeln!(lines, "route add 10.78.{j}.0/24 via {}", node_ip(j))?;
        node.ip(&lines)?;
        pod.ip(&format!(
            "addr add 10.78.{i}.2/24 dev eth0\nlink set eth0 up\nroute add default via 10.78.{i}.1\n"
        ))?;
    }
    Ok(pods)
}

/// Pods on a bridge of their node; the nodes route to each other's range through a VXLAN device with fixed neighbours.
pub(super) fn vxlan() -> Result<World> {
    let underlay = Underlay::new()?;
    let pods = [Namespace::new()?, Namespace::new()?];
    let mac = |i: u8| format!("0e:00:00:00:00:0{i}");
    for (i, (node, pod)) in (1_u8..).zip(underlay.nodes.iter().zip(&pods)) {
        let j = 3 - i;
        node.place().set("net.ipv4.ip_forward", "1")?;
        let mut lines = pod_link(pod);
        writeln!(
            lines,
            "link add tunnel address {} mtu 1450 type vxlan id 1 local {} dstport 8472 nolearning dev eth0",
            mac(i),
            node_ip(i)
        )?;
        writeln!(lines, "addr add 10.79.{i}.0/32 dev tunnel\nlink set tunnel up")?;
        writeln!(lines, "link add pods mtu {MTU} type bridge\nlink set pod master pods up")?;
        writeln!(lines, "addr add 10.79.{i}.1/24 dev pods\nlink set pods up")?;
        writeln!(lines, "neigh add 10.79.{j}.0 lladdr {} dev tunnel", mac(j))?;
        writeln!(lines, "route add 10.79.{j}.0/24 via 10.79.{j}.0 dev tunnel onlink")?;
        node.ip(&lines)?;
        let to = format!("dst {}", node_ip(j));
        let mut bridge = node.place().command("bridge");
        bridge.args(["fdb", "add", &mac(j), "dev", "tunnel"]).args(to.split(' '));
        testbed::exec::output(&mut bridge)?;
        pod.ip(&format!(
            "addr add 10.79.{i}.2/24 dev eth0\nlink set eth0 up\nroute add default via 10.79.{i}.1\n"
        ))?;
    }
    Ok(World::new(pods, "10.79.2.2").over(underlay))
}

/// Pods whose packets are redirected by eBPF, unchanged: out of the node's interface, and in at the other's pod.
pub(super) fn direct() -> Result<World> {
    let underlay = Underlay::new()?;
    let pods = [Namespace::new()?, Namespace::new()?];
    let mut programs = Vec::new();
    for (node, pod) in underlay.nodes.iter().zip(&pods) {
        programs.push(redirected(node, pod)?);
    }
    introduce(pods.each_ref())?;
    Ok(World { _programs: programs, ..World::new(pods, "10.77.0.2").over(underlay) })
}

/// A host outside and a pod, whose node redirects what comes for it.
pub(super) fn direct_in() -> Result<World> {
    let Underlay { switch, nodes: [client, node] } = Underlay::new()?;
    let pod = Namespace::new()?;
    let program = redirected(&node, &pod)?;
    introduce([&client, &pod])?;
    Ok(World {
        _between: vec![switch, node],
        _programs: vec![program],
        ..World::new([client, pod], "10.77.0.2")
    })
}

/// [`direct_in`] with a second node before the pod's, which redirects from one of its interfaces to another: as many devices on the
/// way as if it sent back by the same.
pub(super) fn direct_via() -> Result<World> {
    let Underlay { switch: first, nodes: [client, via] } = Underlay::new()?;
    let (second, node, pod) = (Namespace::new()?, Namespace::new()?, Namespace::new()?);
    second.ip("link add underlay type bridge mcast_snooping 0\nlink set underlay up\n")?;
    for (name, host, device) in [("n1", &via, "pod"), ("n2", &node, "eth0")] {
        let pid = host.pid();
        second.ip(&format!(
            "link add {name} type veth peer name {device} netns {pid}\nlink set {name} master underlay up\n"
        ))?;
        host.ip(&format!("link set {device} up\n"))?;
    }
    let programs = vec![redirected(&node, &pod)?, direct::attach(&via.place(), Delivery::Interface)?];
    introduce([&client, &pod])?;
    Ok(World {
        _between: vec![first, second, via, node],
        _programs: programs,
        ..World::new([client, pod], "10.77.0.2")
    })
}

/// Joins a pod with its node, whose programs hand it all that comes.
fn redirected(node: &Namespace, pod: &Namespace) -> Result<Keeper> {
    node.ip(&format!("{}link set pod up\n", pod_link(pod)))?;
    direct::attach(&node.place(), Delivery::Peer)
}

/// Gives two ends their addresses, and each the other's MAC: nothing between them answers ARP.
fn introduce(ends: [&Namespace; 2]) -> Result<()> {
    let mac = |i: u8| format!("0a:00:00:00:00:0{i}");
    for (i, end) in (1_u8..).zip(ends) {
        let j = 3 - i;
        end.ip(&format!(
            "link set eth0 address {}\naddr add 10.77.0.{i}/24 dev eth0\nlink set eth0 up\n\
             neigh add 10.77.0.{j} lladdr {} dev eth0\n",
            mac(i),
            mac(j)
        ))?;
    }
    Ok(())
}

/// Two nodes and the bridge between them.
struct Underlay {
    switch: Namespace,
    nodes: [Namespace; 2],
}

impl Underlay {
    fn new() -> Result<Self> {
        let (switch, nodes) = (Namespace::new()?, [Namespace::new()?, Namespace::new()?]);
        switch.ip("link add underlay type bridge mcast_snooping 0\nlink set underlay up\n")?;
        for (i, node) in (1..).zip(&nodes) {
            switch.ip(&format!(
                "link add n{i} type veth peer name eth0 netns {}\nlink set n{i} master underlay up\n",
                node.pid()
            ))?;
            node.ip(&format!("addr add {}/24 dev eth0\nlink set eth0 up\n", node_ip(i)))?;
        }
        Ok(Self { switch, nodes })
    }
}

fn node_ip(i: u8) -> String {
    format!("10.72.0.{i}")
}

/// Line that joins a node, as `pod`, with a pod, as `eth0`.
fn pod_link(pod: &Namespace) -> String {
    format!("link add pod mtu {MTU} type veth peer name eth0 mtu {MTU} netns {}\n", pod.pid())
}
