//! The wires: a bridge in the switch's namespace, and a veth pair from it to every other host.

use std::fmt::Write;
use std::net::Ipv4Addr;

use anyhow::{Context, Result};

use super::Bed;
use super::config::{CENTRAL_IP, EXT_IP, OUTSIDE_IP, UNDERLAY_PREFIX, node_index, node_ip, underlay_mac};
use crate::exec;

/// Joins all hosts and gives them their addresses.
pub(super) fn connect(bed: &Bed) -> Result<()> {
    let hosts: Vec<_> =
        bed.config().hosts().into_iter().filter_map(|h| h.ip.map(|ip| (h.name, ip))).collect();
    let mut wires = String::from("link add underlay type bridge mcast_snooping 0\nlink set underlay up\n");
    for (name, ip) in &hosts {
        let pid = bed.host(name).init()?.pid;
        let mac = underlay_mac(*ip);
        writeln!(wires, "link add {name} type veth peer name eth0 address {mac} netns {pid}")?;
        writeln!(wires, "link set {name} master underlay up")?;
    }
    batch(bed, "switch", &wires)?;
    for (name, ip) in &hosts {
        batch(bed, name, &addresses(name, *ip)).with_context(|| format!("addresses of {name}"))?;
    }
    Ok(())
}

fn addresses(name: &str, ip: Ipv4Addr) -> String {
    let mut lines = format!("addr add {ip}/{UNDERLAY_PREFIX} brd + dev eth0\nlink set eth0 up\n");
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

/// Runs lines of `ip -batch` in the network of a host.
fn batch(bed: &Bed, host: &str, lines: &str) -> Result<()> {
    let mut command = bed.host(host).network_command("ip")?;
    exec::input_output(command.args(["-batch", "-"]), lines).map(drop)
}
