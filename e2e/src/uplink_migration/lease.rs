//! A node whose address is leased by a real DHCP server: refused with the reason and left as it is, or kept permanently where the
//! operator says so, whatever the client on the uplink does.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::follow::start_dnsmasq;
use super::world::{BRIDGE, World};
use crate::expect::Expect;
use testbed::cluster::config::{EXT_IP, node_ip, underlay_mac};
use testbed::cluster::{agent_arguments, start_agent_with};
use testbed::exec;
use testbed::traffic::{Dial, Place};

const NODE: &str = "n2";
/// What a client does with a lease: as the scripts of distributions, with the lease's time.
const SCRIPT: &str = r#"#!/bin/sh
case "$1" in bound | renew)
    ip address replace "$ip/$mask" dev "$interface" valid_lft "$lease" preferred_lft "$lease"
    ip route replace default via "$router" dev "$interface" proto dhcp ;;
esac
"#;

pub(super) fn run(world: &World<'_>) -> Result<String> {
    let bed = world.bed;
    let host = bed.host(NODE);
    host.stop("node-agent", Duration::from_secs(10))?;
    let mut cleanup = host.command(bed.config().program("slipstream-node-agent"))?;
    exec::output(cleanup.arg("cleanup").args(agent_arguments(bed.config(), NODE)))?;
    world.ip(NODE, "-4 address flush dev eth0")?;
    let ip = node_ip(2);
    let reserved = format!("--dhcp-range=172.18.0.0,static,120 --dhcp-host={},{ip}", underlay_mac(ip));
    start_dnsmasq(world, &format!("{reserved} --dhcp-option=3,{EXT_IP}"))?;
    let outcome = leased(world);
    bed.host("ext").stop("dnsmasq", Duration::from_secs(5))?;
    host.stop("udhcpc", Duration::from_secs(5))?;
    outcome
}

fn leased(world: &World<'_>) -> Result<String> {
    let bed = world.bed;
    let host = bed.host(NODE);
    let script = host.path("/run/udhcpc.sh")?;
    fs::write(&script, SCRIPT)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    let client = ["busybox", "udhcpc", "--foreground", "--interface=eth0", "--script=/run/udhcpc.sh"];
    host.start("udhcpc", &client, &[])?;
    world.eventually("the node gets its lease", || on(world, "eth0", "valid_lft 1"))?;
    // Without a word of the operator's it is refused, and nothing is changed.
    start_agent_with(bed, NODE, &["--gateway-interface=auto"])?;
    world.eventually("the lease is refused", || {
        let told = bed.agent(NODE).page("/status")?;
        ensure!(told.contains("eth0 has a leased address, 172.18.0.3/16"), "the agent says: {told}");
        Ok(())
    })?;
    on(world, "eth0", "valid_lft 1")?;
    let outside = Dial::tcp(testbed::cluster::config::OUTSIDE_IP, 9000);
    let expect = Expect::only(&format!("outside {}", node_ip(2)));
    world.answers(Place::Host(NODE.to_owned()), outside, &expect)?;
    host.stop("node-agent", Duration::from_secs(10))?;
    // A kept lease has no end, so no client is needed to renew it.
    start_agent_with(bed, NODE, &["--gateway-interface=auto", "--gateway-leases=keep"])?;
    world.eventually("the lease is kept", || on(world, BRIDGE, "valid_lft forever"))?;
    bed.wait_node_ready(NODE)?;
    world.pod_of(NODE)?;
    // As the client does when it renews, on the interface that it knows.
    world.ip(NODE, &format!("address add {}/16 dev eth0 valid_lft 120 preferred_lft 120", node_ip(2)))?;
    world.ip(NODE, &format!("route add default via {EXT_IP} dev eth0 proto dhcp metric 10 onlink"))?;
    world.eventually("the uplink is bare again", || on(world, BRIDGE, "valid_lft forever"))?;
    Ok(String::new())
}

/// The node's address is on that interface alone, with that lifetime, and so is the default route.
fn on(world: &World<'_>, interface: &str, lifetime: &str) -> Result<()> {
    let addresses = world.ip(NODE, "-4 -o address show")?;
    let there: Vec<_> = addresses.lines().filter(|l| l.contains(&format!(" {}/", node_ip(2)))).collect();
    let route = world.ip(NODE, "-4 route show default")?;
    let routes = route.lines().count() == 1 && route.contains(&format!("dev {interface} "));
    let good =
        there.len() == 1 && there[0].contains(&format!(" {interface} ")) && there[0].contains(lifetime);
    ensure!(good && routes, "addresses {there:?}, default routes {route:?}");
    Ok(())
}
