//! A second uplink, towards external gateways of pods: a wire of its own to the outside host, which is the gateway there. Pods of a namespace that
//! names the gateway leave by it, with the node's address there, all others by the first uplink; and the node gets the interface back.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::world::{NODE_PORT, OUTSIDE_PORT, SOON, World};
use crate::expect::Expect;
use crate::objects::Objects;
use testbed::cluster::config::{CENTRAL_IP, OUTSIDE_IP, OUTSIDE_IP_6, node_ip};
use testbed::cluster::start_agent_with;
use testbed::exec;
use testbed::pod;
use testbed::traffic::{Dial, Place, dial, summary};

const NODE: &str = "n1";
/// The outside host.
const EXT: &str = "ext";
/// The node's interface, and the bridge that takes its place.
const WIRE: &str = "eth1";
const BRIDGE: &str = "breth1";
/// Node port of a service whose backend leaves by it.
const GATED_PORT: u16 = 30_090;
/// The other end of the wire.
const FAR: &str = "wan1";
/// Namespace of the pods that leave by it.
const NAMESPACE: &str = "exgw";
/// The external gateway.
const GATEWAY: &str = "172.19.0.1";
const GATEWAY_6: &str = "fd00:172:19::1";
/// The node there.
const OWN: &str = "172.19.0.2";
const OWN_6: &str = "fd00:172:19::2";
const FLAG: &str = "--exgw-interface=eth1";
/// Another address of the node there.
const OTHER: &str = "172.19.0.3";
/// Connections whose packets are looked at.
const CONNECTIONS: u32 = 100;

pub(super) fn run(world: &World<'_>) -> Result<String> {
    let outcome = refused(world).and_then(|()| scene(world));
    agent(world, &[])?;
    let given_back = given_back(world).and_then(|()| trial(world));
    world.bed.kubectl(&["delete", "namespace", NAMESPACE, "--wait=false"])?;
    let lost = lost(world);
    outcome?;
    given_back?;
    lost.map(|()| String::new())
}

fn wire(world: &World<'_>) -> Result<()> {
    let pid = world.bed.host(NODE).init()?.pid;
    world.ip(EXT, &format!("link add {FAR} type veth peer name {WIRE} netns {pid}"))?;
    for (host, interface, addresses) in [(EXT, FAR, [GATEWAY, GATEWAY_6]), (NODE, WIRE, [OWN, OWN_6])] {
        world.ip(host, &format!("link set {interface} up"))?;
        let [four, six] = addresses;
        world.ip(host, &format!("address add {four}/24 dev {interface}"))?;
        world.ip(host, &format!("address add {six}/64 dev {interface} nodad"))?;
    }
    count_notes(world, EXT, "ingress", FAR)
}

/// Counts the IPv4 packets at an interface, and those with the reserved flag (RFC 791, 3.1), which inside Open vSwitch says that a packet
/// carries the number of a note.
fn count_notes(world: &World<'_>, host: &str, hook: &str, interface: &str) -> Result<()> {
    let chain = format!("type filter hook {hook} device {interface} priority -100");
    let counted = "ether type ip counter name every; ether type ip @nh,48,1 1 counter name noted";
    world.nft(host, &format!("table netdev notes {{ counter noted {{}}; counter every {{}}; chain c {{ {chain}; {counted}; }}; }}"))
}

/// What was counted: all packets, and those with the flag.
fn counted(world: &World<'_>, host: &str) -> Result<(u64, u64)> {
    let mut command = world.bed.host(host).network_command("nft")?;
    let said: Value = serde_json::from_str(&exec::output(
        command.args(["-j", "list", "counters", "table", "netdev", "notes"]),
    )?)?;
    let packets = |name: &str| {
        let counters = said["nftables"].as_array()?;
        let counter = counters.iter().find(|object| object["counter"]["name"] == name)?;
        counter["counter"]["packets"].as_u64()
    };
    packets("every").zip(packets("noted")).with_context(|| format!("no counters in {said}"))
}

/// Starts the agent of the node again, with these flags.
fn agent(world: &World<'_>, flags: &[&str]) -> Result<()> {
    world.bed.host(NODE).stop("node-agent", Duration::from_secs(10))?;
    start_agent_with(world.bed, NODE, flags)
}

/// What cannot be a second uplink is told, with the flag.
fn refused(world: &World<'_>) -> Result<()> {
    // The last one comes, with its address, while the agent looks for it.
    for (interface, words) in [
        ("eth0", "--exgw-interface eth0: it needs eth0, which is the gateway's"),
        (WIRE, "second uplink eth1: no such interface with an address"),
    ] {
        agent(world, &[&format!("--exgw-interface={interface}")])?;
        world.eventually("the agent says so", || {
            let told = world.bed.agent(NODE).page("/status")?;
            ensure!(told.contains(words), "no {words:?} in {told}");
            Ok(())
        })?;
        // It is a warning: everything else goes on.
        world.bed.wait_node_ready(NODE)?;
        world.reaches_outside("a", node_ip(1))?;
    }
    Ok(())
}

fn scene(world: &World<'_>) -> Result<()> {
    wire(world)?;
    let told = format!(r#""exgw-interface-id":"{BRIDGE}_{NODE}""#);
    world.gateway_says(NODE, &[&told, &format!("{OWN}/24"), &format!("{OWN_6}/64")], &[])?;
    world.bed.wait_node_ready(NODE)?;
    pods(world)?;
    gateways(world, Some(&format!("{GATEWAY},{GATEWAY_6}")), false)?;
    by_second(world, OWN).context("once the namespace names its gateways")?;
    inside(world)?;
    node(world)?;
    // By BFD the gateway, which does not know of it, is dead: its pods leave as others do.
    gateways(world, Some(&format!("{GATEWAY},{GATEWAY_6}")), true)?;
    leaves(world, OUTSIDE_IP, &node_ip(1).to_string()).context("with a gateway that is dead by BFD")?;
    gateways(world, Some(&format!("{GATEWAY},{GATEWAY_6}")), false)?;
    by_second(world, OWN).context("without BFD again")?;
    // Another address there.
    world.ip(NODE, &format!("address del {OWN}/24 dev {BRIDGE}"))?;
    world.ip(NODE, &format!("address add {OTHER}/24 dev {BRIDGE}"))?;
    world.gateway_says(NODE, &[&format!("{OTHER}/24")], &[&format!("{OWN}/24")])?;
    by_second(world, OTHER).context("after another address there")?;
    // Nothing depends on the agent, and OVS gets back what it forgets.
    world.bed.host(NODE).kill("node-agent")?;
    by_second(world, OTHER).context("without an agent")?;
    start_agent_with(world.bed, NODE, &[FLAG])?;
    world.bed.host(NODE).restart("ovs-vswitchd")?;
    by_second(world, OTHER).context("after OVS was started again")?;
    unnoted(world)
}

/// A pod on the node in a namespace of its own.
fn pods(world: &World<'_>) -> Result<()> {
    let objects = Objects { bed: world.bed, namespace: NAMESPACE, heal: SOON, soon: SOON };
    objects.make_namespace()?;
    objects.apply(pod::with_image(world.bed, pod::manifest(NAMESPACE, "gated", Some(NODE)))?)?;
    pod::wait_ready(world.bed, NAMESPACE, SOON)?;
    leaves(world, OUTSIDE_IP, &node_ip(1).to_string()).context("before its namespace names a gateway")
}

/// Names the namespace's external gateways, or none, and whether they are watched by BFD.
fn gateways(world: &World<'_>, gateways: Option<&str>, bfd: bool) -> Result<()> {
    let annotations = json!({
        "k8s.ovn.org/routing-external-gws": gateways,
        "k8s.ovn.org/bfd-enabled": bfd.then_some(""),
    });
    let patch = json!({"metadata": {"annotations": annotations}}).to_string();
    world.bed.kubectl(&["patch", "namespace", NAMESPACE, "--type=merge", "-p", &patch]).map(drop)
}

/// The pod reaches the server outside, which sees this client.
fn leaves(world: &World<'_>, server: impl Into<std::net::IpAddr>, client: &str) -> Result<()> {
    let expect = Expect::only(&format!("outside {client}"));
    world.answers(gated(), Dial::tcp(server, OUTSIDE_PORT), &expect)
}

/// The pod leaves by the second uplink, with the node's address there; a pod of another namespace does not.
fn by_second(world: &World<'_>, own: &str) -> Result<()> {
    leaves(world, OUTSIDE_IP, own)?;
    leaves(world, OUTSIDE_IP_6, OWN_6)?;
    world.reaches_outside("a", node_ip(1))
}

/// A service whose backend is the pod is reached by pods and by the nodes themselves as before, and the pod reaches the cluster: what stays
/// inside does not go to the gateway.
fn inside(world: &World<'_>) -> Result<()> {
    world.apply(json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "gated", "namespace": NAMESPACE},
        "spec": {"type": "NodePort", "selector": {"app": "gated"}, "ports": [{"port": 80, "targetPort": 8080, "nodePort": GATED_PORT}]},
    }))?;
    let to = |address: std::net::IpAddr, port| {
        Dial::tcp(address, port).to_pod(world.bed).within(Duration::from_secs(1))
    };
    let address = |object: &str, namespace, path| -> Result<std::net::IpAddr> {
        Ok(world.bed.field(object, namespace, path)?.parse()?)
    };
    let service = address("service/gated", NAMESPACE, ".spec.clusterIP")?;
    let client = address("pod/a", World::NAMESPACE, ".status.podIP")?;
    let expect = Expect::only(&format!("gated {client}"));
    world.answers(World::pod("a"), to(service, 80), &expect).context("from a pod")?;
    for (node, client) in [(NODE, "100.64.0.2"), ("n2", "100.64.0.3")] {
        let expect = Expect::only(&format!("gated {client}"));
        let from = Place::Host(node.to_owned());
        world.answers(from, to(service, 80), &expect).with_context(|| format!("from {node}"))?;
    }
    let expect = Expect::only("gated 100.64.0.3");
    let by_other = to(node_ip(2).into(), GATED_PORT);
    world
        .answers(Place::Host(EXT.to_owned()), by_other, &expect)
        .context("from outside by the other node")?;
    let peer = address("pod/b", World::NAMESPACE, ".status.podIP")?;
    let own = address("pod/gated", NAMESPACE, ".status.podIP")?;
    let expect = Expect::only(&format!("b {own}"));
    world.answers(gated(), to(peer, 8080), &expect).context("to a pod of another node")
}

fn gated() -> Place {
    Place::Pod { node: NODE.to_owned(), namespace: NAMESPACE.to_owned(), name: "gated".to_owned() }
}

/// The node itself uses the interface as before, and is reached by it.
fn node(world: &World<'_>) -> Result<()> {
    let gateway: std::net::IpAddr = GATEWAY.parse()?;
    let host = || Place::Host(NODE.to_owned());
    world.answers(host(), Dial::tcp(gateway, OUTSIDE_PORT), &Expect::only(&format!("outside {OWN}")))?;
    // Services on an address of the node that is not on the gateway bridge are the node's stack's to translate and to forward.
    exec::output(
        world.bed.host(NODE).network_command("sysctl")?.arg(format!("net.ipv4.conf.{BRIDGE}.forwarding=1")),
    )?;
    let own: std::net::IpAddr = OWN.parse()?;
    let to = Dial::tcp(own, NODE_PORT).to_pod(world.bed).within(Duration::from_secs(1));
    world.answers(Place::Host(EXT.to_owned()), to, &Expect::only("b 100.64.0.2"))
}

/// Packets have the numbers of notes where they leave OVS, and none has one on the wire.
fn unnoted(world: &World<'_>) -> Result<()> {
    let ports = world.bed.vsctl(NODE, &["list-ports", BRIDGE])?;
    let inner = ports.lines().find(|port| !port.starts_with("patch-")).context("the bridge has no port")?;
    if inner == WIRE {
        // The interface itself is the port: notes are beside packets.
        return Ok(());
    }
    count_notes(world, NODE, "egress", inner)?;
    let attempts = dial(world.bed, &gated(), Dial::tcp(OUTSIDE_IP, OUTSIDE_PORT).times(CONNECTIONS))?;
    let (inside, outside) = (counted(world, NODE)?, counted(world, EXT)?);
    ensure!(inside.1 > 0, "no packet of {} carried the number of a note: {}", inside.0, summary(&attempts));
    ensure!(outside.0 > u64::from(CONNECTIONS), "only {} packets came by the wire", outside.0);
    ensure!(outside.1 == 0, "{} of {} packets on the wire have the reserved flag", outside.1, outside.0);
    Ok(())
}

/// The API server is beyond the second uplink, and cannot be reached any more once the bridge has taken its place.
fn trial(world: &World<'_>) -> Result<()> {
    world.ip(NODE, &format!("route add {CENTRAL_IP}/32 via {GATEWAY} dev {WIRE}"))?;
    exec::output(world.bed.host(EXT).network_command("sysctl")?.arg("net.ipv4.ip_forward=1"))?;
    let hidden = "type nat hook postrouting priority 100; ip saddr 172.19.0.0/24 masquerade";
    world.nft(EXT, &format!("table ip hidden {{ chain c {{ {hidden}; }}; }}"))?;
    let dropped = format!("type filter hook output priority 0; oifname {BRIDGE} tcp dport 6443 drop");
    world.nft(NODE, &format!("table inet away {{ chain c {{ {dropped}; }}; }}"))?;
    agent(world, &[FLAG, "--api-patience-ms=6000"])?;
    let outcome = world
        .eventually("the bridge takes the second uplink's place", || has_address(world, BRIDGE))
        .and_then(|()| world.eventually("the second uplink is given back", || has_address(world, WIRE)))
        .and_then(|()| {
            world.eventually("the agent tells of it", || {
                let told = world.bed.agent(NODE).page("/status")?;
                ensure!(told.contains("second uplink: the API server answered before"), "{told}");
                Ok(())
            })
        });
    world.nft(NODE, "delete table inet away")?;
    world.nft(EXT, "delete table ip hidden")?;
    world.ip(NODE, &format!("route del {CENTRAL_IP}/32"))?;
    outcome?;
    let counted = world.bed.agent(NODE).metrics()?.sum("slipstream_node_gateway_given_back_total", &[])?;
    ensure!(counted == 1, "{counted} times were counted");
    // The first one is not concerned.
    world.bed.wait_node_ready(NODE)?;
    world.reaches_outside("a", node_ip(1))?;
    nothing_left(world)
}

/// The node has its IPv4 address of the second uplink on this interface alone.
fn has_address(world: &World<'_>, interface: &str) -> Result<()> {
    let there = world.ip(NODE, "-4 -o address show")?;
    let there: Vec<&str> = there.lines().filter(|line| line.contains(" 172.19.0.")).collect();
    ensure!(there.len() == 1 && there[0].contains(&format!(" {interface} ")), "{there:?}");
    Ok(())
}

/// An interface that is gone while it is the second uplink leaves nothing behind once the flag is gone too.
fn lost(world: &World<'_>) -> Result<()> {
    agent(world, &[FLAG])?;
    world.gateway_says(NODE, &["exgw-interface-id"], &[])?;
    world.ip(EXT, &format!("link del {FAR}"))?;
    agent(world, &[])?;
    nothing_left(world)
}

/// The interface has its addresses again, and the cluster knows of no second uplink.
fn given_back(world: &World<'_>) -> Result<()> {
    nothing_left(world)?;
    let six = world.ip(NODE, &format!("-6 -o address show dev {WIRE}"))?;
    ensure!(six.contains(OWN_6), "{six}");
    has_address(world, WIRE)
}

fn nothing_left(world: &World<'_>) -> Result<()> {
    world.gateway_says(NODE, &[r#""mode":"shared""#], &["exgw"])?;
    world.bed.wait_node_ready(NODE)?;
    let bridges = world.bed.vsctl(NODE, &["list-br"])?;
    ensure!(!bridges.contains(BRIDGE), "{bridges}");
    let mapped = world.bed.vsctl(NODE, &["get", "Open_vSwitch", ".", "external_ids:ovn-bridge-mappings"])?;
    ensure!(!mapped.contains("exgw"), "{mapped}");
    let switches = world.bed.nbctl(&["--bare", "--columns=name", "list", "logical_switch"])?;
    ensure!(!switches.contains("exgw-"), "{switches}");
    Ok(())
}
