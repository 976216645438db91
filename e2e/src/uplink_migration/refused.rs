//! What cannot be: said at once, with the reason and what would be right.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::world::World;
use testbed::cluster::start_agent_with;

const NODE: &str = "n1";

/// Tunnels that would end on an interface that OVS's userspace datapath does not have; and pods' packets too long for them.
pub(super) fn tunnels(world: &World<'_>) -> Result<String> {
    let bed = world.bed;
    let host = bed.host(NODE);
    world.ip(NODE, "link add other type veth peer name other-far")?;
    world.ip(NODE, "address add 10.99.0.1/24 dev other")?;
    host.stop("node-agent", Duration::from_secs(10))?;
    start_agent_with(bed, NODE, &["--encap-ip=10.99.0.1"])?;
    let on_other = says(world, "--encap-ip 10.99.0.1 is on other: OVS's userspace datapath");
    world.ip(NODE, "link del other")?;
    on_other?;
    host.stop("node-agent", Duration::from_secs(10))?;
    start_agent_with(bed, NODE, &["--encap-ip=10.99.0.1"])?;
    says(world, "--encap-ip 10.99.0.1 is not an address of this node")?;
    host.stop("node-agent", Duration::from_secs(10))?;
    start_agent_with(bed, NODE, &["--mtu=1460"])?;
    says(world, "--mtu can be 1442 at most")?;
    host.stop("node-agent", Duration::from_secs(10))?;
    start_agent_with(bed, NODE, &[])?;
    bed.wait_node_ready(NODE)?;
    Ok(String::new())
}

fn says(world: &World<'_>, words: &str) -> Result<()> {
    world.eventually("the agent says so", || {
        let told = world.bed.agent(NODE).page("/status")?;
        ensure!(told.contains(words), "no {words:?} in {told}");
        Ok(())
    })
}
