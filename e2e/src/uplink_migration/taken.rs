//! Another program removes what the node's own connections to services need.

use std::time::Instant;

use anyhow::{Result, ensure};

use super::world::World;
use testbed::cluster::config::node_ip;

/// As the first line of many a firewall's file does; then the rules and the routes.
pub(super) fn flushed(world: &World<'_>) -> Result<String> {
    let node = "n1";
    world.eventually("the node port answers", || world.node_port(node, node_ip(1)))?;
    let counted = || {
        world
            .bed
            .agent(node)
            .metrics()?
            .sum("slipstream_node_gateway_restored_total", &[("what", "nftables")])
    };
    let before = counted()?;
    let begin = Instant::now();
    world.nft(node, "flush ruleset\n")?;
    world.eventually("the node port answers again", || world.node_port(node, node_ip(1)))?;
    let tables = begin.elapsed();
    let begin = Instant::now();
    for family in ["-4", "-6"] {
        world.ip(node, &format!("{family} rule del priority 30"))?;
        world.ip(node, &format!("{family} route flush table 7"))?;
    }
    world.ip(node, "route del 10.96.0.0/16")?;
    world.ip(node, "route del 10.244.0.0/16")?;
    world.eventually("rules and routes are back", || {
        for (family, range) in [("-4", "10.96.0.0/16"), ("-6", "fd00:10:96::/112")] {
            let rules = world.ip(node, &format!("{family} rule show priority 30"))?;
            ensure!(rules.contains("lookup 7"), "{family} rules: {rules}");
            let routes = world.ip(node, &format!("{family} route show table 7"))?;
            ensure!(routes.contains(range), "{family} routes of table 7: {routes}");
            let routes = world.ip(node, &format!("{family} route show {range}"))?;
            ensure!(!routes.is_empty(), "{family}: no route to {range}");
        }
        let routes = world.ip(node, "route show 10.244.0.0/16")?;
        ensure!(!routes.is_empty(), "no route to the pods");
        Ok(())
    })?;
    let rules = begin.elapsed();
    // The agent must not take its own writes for those of another program.
    let after = counted()?;
    ensure!(after - before <= 2, "nftables were written again {} times", after - before);
    Ok(format!(
        "node ports after {:.1} s, rules and routes after {:.1} s",
        tables.as_secs_f64(),
        rules.as_secs_f64()
    ))
}
