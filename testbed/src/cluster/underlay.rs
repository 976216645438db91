//! The wires: a bridge in the switch's namespace, and a veth pair from it to every other host.

use std::fmt::Write;
use std::net::Ipv4Addr;

use anyhow::{Context, Result};

use super::Bed;
use super::config::{
    CENTRAL_IP, EXT_IP, OUTSIDE_IP, OUTSIDE_IP_6, UNDERLAY_PREFIX, UNDERLAY_PREFIX_6, UPLINK_VLAN, Uplink,
    node_index, node_ip, underlay_ip6, underlay_mac,
};
use crate::exec;

/// Connects all hosts and assigns their addresses.
pub(super) fn connect(bed: &Bed) -> Result<()> {
    let config = bed.config();
    // A port is in this VLAN without a tag, unless `plug_in` says otherwise.
    let vlans = config
        .uplink
        .tags_on()
        .map_or_else(String::new, |_| format!(" vlan_filtering 1 vlan_default_pvid {UPLINK_VLAN}"));
    let lines = format!("link add underlay type bridge mcast_snooping 0{vlans}\nlink set underlay up\n");
    batch(bed, "switch", &lines)?;
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
    let is_node = node_index(name).is_some();
    let uplink = if is_node { bed.config().uplink } else { Uplink::Plain };
    let mut wires = vec![(name.to_owned(), "eth0")];
    if uplink.is_bond() {
        wires.push((second(name), "eth1"));
    }
    let (mut lines, mut tags) = (String::new(), String::new());
    for (port, interface) in &wires {
        writeln!(lines, "link add {port} type veth peer name {interface} address {mac} netns {pid}")?;
        writeln!(lines, "link set {port} master underlay up")?;
        writeln!(tags, "vlan add dev {port} vid {UPLINK_VLAN}")?;
    }
    batch(bed, "switch", &lines).with_context(|| format!("wire of {name}"))?;
    if uplink.tags_on().is_some() {
        let mut command = bed.host("switch").network_command("bridge")?;
        exec::input_output(command.args(["-batch", "-"]), &tags)
            .with_context(|| format!("VLAN of {name}"))?;
    }
    let mut lines = interfaces(uplink);
    if !bed.config().ipv6_only {
        lines += &addresses(name, ip, uplink.name());
    }
    if bed.config().dual_stack || bed.config().ipv6_only {
        lines += &addresses_6(name, ip, uplink.name());
    }
    batch(bed, name, &lines).with_context(|| format!("addresses of {name}"))
}

/// Removes the wire of a host whose namespace has ended.
pub(super) fn unplug(bed: &Bed, name: &str) -> Result<()> {
    let list = exec::output(bed.host("switch").network_command("ip")?.args(["-o", "link", "show"]))?;
    for port in [name.to_owned(), second(name)] {
        // `5: n1@if2: <..`
        if list.lines().any(|line| line.split([' ', '@', ':']).any(|word| word == port)) {
            batch(bed, "switch", &format!("link del {port}\n"))?;
        }
    }
    Ok(())
}

/// The switch's end of a bond's second wire.
fn second(name: &str) -> String {
    format!("{name}-2")
}

/// What a host makes of its wires, with its uplink up.
fn interfaces(uplink: Uplink) -> String {
    let mut lines = String::new();
    if uplink.is_bond() {
        // A port of a bond is down when it becomes one.
        lines += "link add bond0 type bond mode active-backup miimon 100\n\
                  link set eth0 master bond0\nlink set eth1 master bond0\nlink set bond0 up\n";
    } else {
        lines += "link set eth0 up\n";
    }
    if let Some(below) = uplink.tags_on() {
        let name = uplink.name();
        lines +=
            &format!("link add link {below} name {name} type vlan id {UPLINK_VLAN}\nlink set {name} up\n");
    }
    lines
}

fn addresses(name: &str, ip: Ipv4Addr, interface: &str) -> String {
    let mut lines = format!("addr add {ip}/{UNDERLAY_PREFIX} brd + dev {interface}\n");
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

fn addresses_6(name: &str, ip: Ipv4Addr, interface: &str) -> String {
    // No other host can have the address, so it need not be looked for before it is used.
    let mut lines = format!("addr add {}/{UNDERLAY_PREFIX_6} dev {interface} nodad\n", underlay_ip6(ip));
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
