//! Two nodes share an address by keepalived, as control planes do: it is where the one runs that has the right to it, and
//! nowhere else, whatever happens to agents and OVS.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::world::{BRIDGE, World};
use testbed::cluster::config::node_ip;

/// The address, as configured in keepalived: with the prefix of the nodes' own, which is the harder case.
const SHARED: &str = "172.18.0.100";
/// How long an agent must leave alone what has gone.
const A_WHILE: Duration = Duration::from_secs(3);

pub(super) fn keepalived(world: &World<'_>) -> Result<String> {
    for (node, other, priority) in [(1, 2, 150), (2, 1, 100)] {
        let name = format!("n{node}");
        start(world, &name, other, node, priority).with_context(|| format!("keepalived on {name}"))?;
    }
    let played = play(world);
    for node in ["n1", "n2"] {
        world.bed.host(node).stop("keepalived", Duration::from_secs(5))?;
    }
    world.eventually("the address goes with the last of the two", || is_on(world, &[]))?;
    played
}

fn play(world: &World<'_>) -> Result<String> {
    world.eventually("the first has the address", || is_on(world, &["n1"]))?;
    not_the_gateways(world)?;
    // The agent may not take it for its own, whenever it looks.
    world.bed.host("n1").restart("node-agent")?;
    world.bed.wait_node_ready("n1")?;
    not_the_gateways(world)?;
    let begin = Instant::now();
    world.bed.host("n1").stop("keepalived", Duration::from_secs(5))?;
    world.eventually("the second has it", || is_on(world, &["n2"]))?;
    let took = begin.elapsed();
    std::thread::sleep(A_WHILE);
    is_on(world, &["n2"])?;
    world.bed.host("n1").restart("node-agent")?;
    world.bed.wait_node_ready("n1")?;
    world.ip("n1", &format!("link del {BRIDGE}"))?;
    world.bed.host("n1").restart("ovs-vswitchd")?;
    world.eventually("the bridge made anew has the node's address", || {
        let there = world.ip("n1", &format!("-4 address show dev {BRIDGE}"))?;
        ensure!(there.contains(&format!("{}/", node_ip(1))), "{there}");
        Ok(())
    })?;
    std::thread::sleep(A_WHILE);
    is_on(world, &["n2"])?;
    not_the_gateways(world)?;
    Ok(format!("with the second after {:.1} s", took.as_secs_f64()))
}

/// The address is on the bridges of these nodes and no others.
fn is_on(world: &World<'_>, wanted: &[&str]) -> Result<()> {
    let mut found = Vec::new();
    for node in ["n1", "n2"] {
        if world.ip(node, "-4 -o address show")?.contains(&format!(" {SHARED}/")) {
            found.push(node);
        }
    }
    if found == wanted { Ok(()) } else { bail!("{SHARED} is on {found:?}") }
}

fn not_the_gateways(world: &World<'_>) -> Result<()> {
    for node in ["n1", "n2"] {
        let said = world.annotation(node, "l3-gateway-config")?;
        ensure!(!said.contains(SHARED), "the gateway of {node} has it: {said}");
    }
    Ok(())
}

fn start(world: &World<'_>, name: &str, other: u8, node: u8, priority: u32) -> Result<()> {
    let host = world.bed.host(name);
    let file = "/run/keepalived.conf";
    let conf = format!(
        "global_defs {{ vrrp_garp_master_delay 0 }}
vrrp_instance shared {{
    interface {BRIDGE}
    state BACKUP
    virtual_router_id 51
    priority {priority}
    advert_int 1
    unicast_src_ip {}
    unicast_peer {{ {} }}
    virtual_ipaddress {{ {SHARED}/16 dev {BRIDGE} }}
}}
",
        node_ip(node),
        node_ip(other)
    );
    fs::write(host.path(file)?, conf)?;
    let argv = ["keepalived", "--dont-fork", "--log-console", "--vrrp", "--use-file", file];
    let pids = ["--pid=/run/keepalived.pid", "--vrrp_pid=/run/keepalived-vrrp.pid"];
    host.start("keepalived", &[argv.as_slice(), &pids].concat(), &[])
}
