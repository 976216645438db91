//! The API server cannot be reached any more once the bridge has taken the uplink's place: the node gets its network back.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::world::{BRIDGE, World};
use testbed::cluster::config::node_ip;
use testbed::cluster::{agent_arguments, start_agent_with};
use testbed::exec;

const NODE: &str = "n2";
/// What the agent is given instead of a minute; it tries again after five times as long.
const PATIENCE: Duration = Duration::from_secs(6);

pub(super) fn run(world: &World<'_>) -> Result<String> {
    let bed = world.bed;
    let host = bed.host(NODE);
    host.stop("node-agent", Duration::from_secs(10))?;
    let mut cleanup = host.command(bed.config().program("slipstream-node-agent"))?;
    exec::output(cleanup.arg("cleanup").args(agent_arguments(bed.config(), NODE)))?;
    // The bridge is to blame: through the uplink the API server can be reached.
    let drop = format!("oifname {BRIDGE} tcp dport 6443 drop");
    world.nft(
        NODE,
        &format!("table inet away {{\nchain c {{\ntype filter hook output priority 0\n{drop}\n}}\n}}\n"),
    )?;
    let patience = format!("--api-patience-ms={}", PATIENCE.as_millis());
    start_agent_with(bed, NODE, &[&patience])?;
    world.eventually("the bridge takes the uplink's place", || on(world, BRIDGE))?;
    let begin = Instant::now();
    let back = world.eventually("the uplink has the node's address again", || on(world, "eth0"));
    let took = begin.elapsed();
    let told = world.eventually("the agent tells of it", || {
        let told = bed.agent(NODE).page("/status")?;
        ensure!(told.contains("uplink restored"), "the agent says: {told}");
        Ok(())
    });
    let kept = reaches(world);
    world.nft(NODE, "delete table inet away\n")?;
    back?;
    kept.context("with the uplink back")?;
    told?;
    let counted = bed.agent(NODE).metrics()?.sum("slipstream_node_gateway_given_back_total", &[])?;
    ensure!(counted == 1, "{counted} times were counted");
    // The second attempt waits, then goes well.
    world.eventually("the bridge takes its place again", || on(world, BRIDGE))?;
    bed.wait_node_ready(NODE)?;
    std::thread::sleep(PATIENCE * 2);
    on(world, BRIDGE)?;
    world.pod_of(NODE)?;
    Ok(format!("given back after {:.1} s of {PATIENCE:?} of patience", took.as_secs_f64()))
}

/// The node's address is on that interface, and the default route leads through it.
fn on(world: &World<'_>, interface: &str) -> Result<()> {
    let addresses = world.ip(NODE, "-4 -o address show")?;
    let wanted = format!(" {}/", node_ip(2));
    let there: Vec<_> = addresses.lines().filter(|line| line.contains(&wanted)).collect();
    let route = world.ip(NODE, "-4 route show default")?;
    let good = there.len() == 1 && there[0].contains(&format!(" {interface} ")) && route.contains(interface);
    if good { Ok(()) } else { bail!("addresses {there:?}, default route {route:?}") }
}

/// The node's own connections to the outside work.
fn reaches(world: &World<'_>) -> Result<()> {
    let dial = testbed::traffic::Dial::tcp(testbed::cluster::config::OUTSIDE_IP, 9000);
    let expect = crate::expect::Expect::only(&format!("outside {}", node_ip(2)));
    world.answers(testbed::traffic::Place::Host(NODE.to_owned()), dial, &expect)
}
