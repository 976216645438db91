//! The wires: a bridge in the switch's namespace, and a veth pair from it to every other host.

use std::fmt::Write;
use std::net::Ipv4Addr;

use anyhow::{Context, Result};

use super::Bed;
use super::config::{
    CENTRAL_IP, EXT_IP, OUTSIDE_IP, OUTSIDE_IP_6, UNDERLAY_PREFIX, UNDERLAY_PREFIX_6, node_index, node_ip,
    underlay_ip6, underlay_mac,
};
use crate::exec;

/// Connects all hosts and assigns their addresses.
pub(super) fn connect(bed: &Bed) -> Result<()> {
    batch(bed, "switch", "link add underlay type bridge mcast_snooping 0\nlink set underlay up\n")?;
    let config = bed.config();
    let hosts = config.hosts().into_iter().filter_map(|h| h.ip.map(|ip| (h.name, ip)));
    for (name, ip) in hosts {
        plug_in(bed, &name, ip)?;
    }
    Ok(())
}

/// Joins one host that has no wire yet.
pub(super) fn plug_in(bed: &Bed, name: &str, ip: Ipv4Addr) -> Result<()> {
    let pid = bed.host(name).init()?.pid;
    let mac = underlay_mac(ip);
    let mut wires = String::new();
    writeln!(wires, "link add {name} type veth peer name eth0 address {mac} netns {pid}")?;
    writeln!(wires, "link set {name} master underlay up")?;
    batch(bed, "switch", &wires).with_context(|| format!("wire of {name}"))?;
    let mut lines = "link set eth0 up\n".to_owned();
    if !bed.config().ipv6_only {
        lines += &addresses(name, ip);
    }
    if bed.config().dual_stack || bed.config().ipv6_only {
        lines += &addresses_6(name, ip);
    }
    batch(bed, name, &lines).with_context(|| format!("addresses of {name}"))
}

/// Removes the wire of a host whose namespace has ended.
pub(super) fn unplug(bed: &Bed, name: &str) -> Result<()> {
    let list = exec::output(bed.host("switch").network_command("ip")?.args(["-o", "link", "show"]))?;
    // `5: n1@if2: <..`
    if list.lines().any(|line| line.split([' ', '@', ':']).any(|word| word == name)) {
        batch(bed, "switch", &format!("link del {name}\n"))?;
    }
    Ok(())
}

fn addresses(name: &str, ip: Ipv4Addr) -> String {
    let mut lines = format!("addr add {ip}/{UNDERLAY_PREFIX} brd + dev eth0\n");
    if name == "ext" {
        lines += &format!("addr add {OUTSIDE_IP}/32 dev lo\n");
        // Load-balancer and external addresses of the test objects lie in the underlay's range, and no network
        // announces them: the outside world knows by which node to go.
        for (address, via) in [("172.18.10.1", 1), ("172.18.10.2", 2), ("172.18.11.1", 1)] {
            lines += &format!("route add {address}/32 via {} dev eth0 onlink\n", node_ip(via));
        }
    } else {
        lines += &format!("route add default via {EXT_IP}\n");
    }
    debug_assert!(ip != CENTRAL_IP || node_index(name).is_none());
    lines
}

fn addresses_6(name: &str, ip: Ipv4Addr) -> String {
    // No other host can have the address, so it need not be looked for before it is used.
    let mut lines = format!("addr add {}/{UNDERLAY_PREFIX_6} dev eth0 nodad\n", underlay_ip6(ip));
    if name == "ext" {
        lines += &format!("addr add {OUTSIDE_IP_6}/128 dev lo nodad\n");
    } else {
        lines += &format!("route add default via {}\n", underlay_ip6(EXT_IP));
    }
    lines
}

/// Runs lines of `ip -batch` in the network of a host.
fn batch(bed: &Bed, host: &str, lines: &str) -> Result<()> {
    let mut command = bed.host(host).network_command("ip")?;
    exec::input_output(command.args(["-batch", "-"]), lines).map(drop)
}
