//! A node in gateway mode local, beside one in mode shared: what its pods send to the outside obeys the node's routes and firewall, and
//! what comes to services from outside passes the node's stack, with clients seen as in the other mode. Then the mode is changed back.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::{Value, json};

use super::world::{NODE_PORT, SOON, World};
use crate::expect::{self, Expect};
use testbed::cluster::config::{EXT_IP, OUTSIDE_IP, OUTSIDE_IP_6, node_ip, underlay_ip6};
use testbed::cluster::start_agent_with;
use testbed::exec;
use testbed::pod;
use testbed::tools::Answer;
use testbed::traffic::{Dial, Place, dial, summary};

const NODE: &str = "n1";
/// Node port of a service with policy Local, whose only backend is on n1.
const LOCAL_PORT: u16 = 30_089;
/// Host port of a pod of n1.
const HOST_PORT: u16 = 7401;
/// In the cluster's range, and on no node.
const NOWHERE: [u8; 4] = [10, 244, 77, 5];
/// Rules of a firewall of the node, which lets pods reach nothing on that port.
const FIREWALL: &str = "table inet of_the_node { chain forwarded { type filter hook forward priority 0; tcp dport 9000 drop; }; }";
/// A client sends its first packet two times or three before it gives up. Turning in a circle, each would arrive until its hop limit is zero.
const PACKETS: u64 = 20;

pub(super) fn run(world: &World<'_>) -> Result<String> {
    objects(world)?;
    change(world, "local")?;
    let outcome = local(world);
    change(world, "shared")?;
    outcome?;
    shared(world)?;
    Ok(String::new())
}

/// A pod of n1 with a host port, and a service for it.
fn objects(world: &World<'_>) -> Result<()> {
    let mut served = pod::manifest(World::NAMESPACE, "served", Some(NODE));
    served["spec"]["containers"][0]["ports"][0]["hostPort"] = HOST_PORT.into();
    world.apply(pod::with_image(world.bed, served)?)?;
    let port = json!({"port": 80, "targetPort": 8080, "nodePort": LOCAL_PORT});
    world.apply(json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "served", "namespace": World::NAMESPACE},
        "spec": {"type": "NodePort", "externalTrafficPolicy": "Local", "selector": {"app": "served"}, "ports": [port]},
    }))?;
    pod::wait_ready(world.bed, World::NAMESPACE, SOON)
}

/// Starts the agent of n1 again, in that mode.
fn change(world: &World<'_>, mode: &str) -> Result<()> {
    world.bed.host(NODE).stop("node-agent", Duration::from_secs(10))?;
    start_agent_with(world.bed, NODE, &[&format!("--gateway-mode={mode}")])?;
    world.gateway_says(NODE, &[&format!(r#""mode":"{mode}""#)], &[])?;
    world.bed.wait_node_ready(NODE)
}

fn local(world: &World<'_>) -> Result<()> {
    for client in [IpAddr::V4(node_ip(1)), underlay_ip6(node_ip(1)).into()] {
        world.reaches_outside("a", client)?;
    }
    route(world, "add")?;
    let refused = fails(world, "a");
    let other = world.reaches_outside("b", node_ip(2));
    route(world, "del")?;
    refused.context("with a route of the node that leads nowhere")?;
    other.context("from the node in mode shared")?;
    world.reaches_outside("a", node_ip(1))?;
    world.nft(NODE, FIREWALL)?;
    let dropped = fails(world, "a");
    world.nft(NODE, "delete table inet of_the_node")?;
    dropped.context("with a rule of the node's firewall")?;
    world.reaches_outside("a", node_ip(1))?;
    from_outside(world)?;
    nowhere(world)
}

/// The mode is shared again: nothing of the other is left, and the node's routes are not asked.
fn shared(world: &World<'_>) -> Result<()> {
    from_outside(world)?;
    // The node itself, by IPv6 with its own address and not the one that its routes to services have.
    let own: IpAddr = underlay_ip6(node_ip(1)).into();
    let expect = Expect::only(&format!("outside {own}"));
    world.answers(Place::Host(NODE.to_owned()), Dial::tcp(OUTSIDE_IP_6, 9000), &expect)?;
    world.eventually("the rules of mode local go", || {
        let rules = exec::output(world.bed.host(NODE).network_command("nft")?.args(["list", "ruleset"]))?;
        ensure!(!rules.contains("local_gateway_masquerade"), "{rules}");
        Ok(())
    })?;
    route(world, "add")?;
    let reached = world.reaches_outside("a", node_ip(1));
    route(world, "del")?;
    reached
}

/// Clients outside reach a service with each policy, and a host port.
fn from_outside(world: &World<'_>) -> Result<()> {
    let hidden = Expect::only("b 100.64.0.2");
    let seen = Expect::only(&format!("served {EXT_IP}"));
    for (port, expect) in [(NODE_PORT, &hidden), (LOCAL_PORT, &seen), (HOST_PORT, &seen)] {
        let to = Dial::tcp(node_ip(1), port).to_pod(world.bed).within(Duration::from_secs(1));
        world.answers(Place::Host("ext".to_owned()), to, expect)?;
    }
    Ok(())
}

/// The route of n1 to the server outside leads nowhere, or does again.
fn route(world: &World<'_>, action: &str) -> Result<()> {
    world.ip(NODE, &format!("-4 route {action} unreachable {OUTSIDE_IP}/32")).map(drop)
}

/// A pod does not reach the outside.
fn fails(world: &World<'_>, pod: &str) -> Result<()> {
    world.eventually("a pod is kept from the outside", || {
        let to = Dial::tcp(OUTSIDE_IP, 9000).within(Duration::from_secs(1));
        let attempts = dial(world.bed, &World::pod(pod), to)?;
        let failed = attempts.iter().all(|attempt| matches!(attempt.answer, Answer::Err(_)));
        ensure!(failed && !attempts.is_empty(), "{}", summary(&attempts));
        Ok(())
    })
}

/// What a pod sends to an address of the cluster that no node has passes the node's stack once.
fn nowhere(world: &World<'_>) -> Result<()> {
    let before = received(world)?;
    let to = Dial::tcp(NOWHERE, 80).within(Duration::from_secs(2));
    let outcome = expect::settle(world.bed, &World::pod("a"), to, &Expect::Dropped, Duration::ZERO).1;
    outcome.map_err(|seen| anyhow!("a -> an address that is nowhere: {seen}"))?;
    let packets = received(world)?.saturating_sub(before);
    ensure!(
        packets < PACKETS,
        "a client that gave up after 2 s made {packets} packets at the management port"
    );
    ensure!(packets > 0, "its packets did not reach the management port");
    Ok(())
}

/// Packets that the node got from OVN by its management port.
fn received(world: &World<'_>) -> Result<u64> {
    let said: Value = serde_json::from_str(&world.ip(NODE, "-j -s link show ovn-k8s-mp0")?)?;
    said[0]["stats64"]["rx"]["packets"].as_u64().with_context(|| format!("no counter in {said}"))
}
