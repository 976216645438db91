//! A physical network beside the nodes' underlay: a bridge of OVS on the outside host, with a trunk to each node, and two interfaces of that
//! host as access ports of two VLANs. So a packet gets to one of them, and back, with that VLAN's tag alone.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result};

use testbed::cluster::config::OvsDatapath;
use testbed::cluster::{Bed, start_switch};
use testbed::exec;

/// The host beside the nodes.
pub(super) const HOST: &str = "ext";
/// Name of the physical network on the nodes.
pub(super) const NAME: &str = "dc";
/// The nodes' bridge for it.
const BRIDGE: &str = "br-dc";
/// The bridge that joins the nodes.
const FABRIC: &str = "fabric";
/// Interface of a node on it.
const WIRE: &str = "dc0";
/// How long a process may take to end.
const LIMIT: Duration = Duration::from_secs(10);
const MAPPINGS: &str = "external_ids:ovn-bridge-mappings";

/// An interface of the outside host on a VLAN.
pub(super) struct Access {
    pub(super) name: &'static str,
    pub(super) vlan: u16,
    /// With prefix length, IPv4 and IPv6.
    pub(super) addresses: [&'static str; 2],
}

fn batch(bed: &Bed, host: &str, lines: &[String]) -> Result<()> {
    let mut command = bed.host(host).network_command("ip")?;
    exec::input_output(command.args(["-batch", "-"]), &(lines.join("\n") + "\n")).map(drop)
}

/// Makes the network; no node maps it yet.
pub(super) fn build(bed: &Bed, nodes: &[&str], access: &[Access]) -> Result<()> {
    start_switch(bed, HOST, &[]).context("the switch of the physical network")?;
    // The type of OVS's userspace datapath, whichever the nodes have.
    let kind = format!("datapath_type={}", OvsDatapath::Netdev.as_str());
    bed.vsctl(HOST, &["add-br", FABRIC, "--", "set", "bridge", FABRIC, &kind])?;
    for node in nodes {
        let pid = bed.host(node).init()?.pid;
        let (port, own) = (format!("{NAME}-{node}"), bed.config().ovs_datapath.as_str());
        batch(
            bed,
            HOST,
            &[
                format!("link add {port} type veth peer name {WIRE} netns {pid}"),
                format!("link set {port} up"),
            ],
        )?;
        batch(bed, node, &[format!("link set {WIRE} up")])?;
        if bed.config().ovs_datapath == OvsDatapath::System {
            // The kernel leaves checksums to such an interface, and OVS in user space, behind it, does not make them.
            exec::output(bed.host(node).network_command("ethtool")?.args(["-K", WIRE, "tx", "off"]))?;
        }
        bed.vsctl(HOST, &["add-port", FABRIC, &port])?;
        let kind = format!("datapath_type={own}");
        bed.vsctl(
            node,
            &["add-br", BRIDGE, "--", "set", "bridge", BRIDGE, &kind, "--", "add-port", BRIDGE, WIRE],
        )?;
    }
    for Access { name, vlan, addresses } in access {
        let (tag, set) = (format!("tag={vlan}"), ["--", "set", "interface", name, "type=internal"]);
        bed.vsctl(HOST, &[["add-port", FABRIC, name, &tag].as_slice(), &set].concat())?;
        let mut lines = vec![format!("link set {name} up")];
        lines.extend(addresses.map(|address| format!("addr add {address} dev {name}{}", nodad(address))));
        batch(bed, HOST, &lines)?;
    }
    Ok(())
}

/// Makes a physical network that is a wire between two nodes, and maps it.
pub(super) fn join(bed: &Bed, [one, other]: [&str; 2]) -> Result<()> {
    let pid = bed.host(other).init()?.pid;
    batch(bed, one, &[format!("link add {WIRE} type veth peer name {WIRE} netns {pid}")])?;
    let kind = format!("datapath_type={}", bed.config().ovs_datapath.as_str());
    for node in [one, other] {
        batch(bed, node, &[format!("link set {WIRE} up")])?;
        bed.vsctl(
            node,
            &["add-br", BRIDGE, "--", "set", "bridge", BRIDGE, &kind, "--", "add-port", BRIDGE, WIRE],
        )?;
        map(bed, node)?;
    }
    Ok(())
}

/// No other host can have the address.
fn nodad(address: &str) -> &'static str {
    if address.contains(':') { " nodad" } else { "" }
}

/// An administrator maps the physical network to its bridge on a node.
pub(super) fn map(bed: &Bed, node: &str) -> Result<()> {
    let mapped = mappings(bed, node)?;
    bed.vsctl(node, &["set", "Open_vSwitch", ".", &format!("{MAPPINGS}=\"{mapped},{NAME}:{BRIDGE}\"")])
        .map(drop)
}

/// A flow of a node's bridge that drops datagrams to this address.
pub(super) fn drop_udp(bed: &Bed, node: &str, to: IpAddr) -> Result<()> {
    let flow = format!("cookie=0x5,priority=100,udp,nw_dst={to},actions=drop");
    bed.ovs(node, "ovs-ofctl", &["add-flow", BRIDGE, &flow]).map(drop)
}

/// Without that flow.
pub(super) fn let_udp(bed: &Bed, node: &str) -> Result<()> {
    bed.ovs(node, "ovs-ofctl", &["del-flows", BRIDGE, "cookie=0x5/-1"]).map(drop)
}

/// Mirrors all packets of a node's bridge.
pub(super) fn mirror(bed: &Bed, node: &str) -> Result<()> {
    let (made, set) = (["--id=@m", "create", "mirror", "name=all", "select_all=true"], ["mirrors=@m"]);
    bed.vsctl(node, &[&["--"], &made[..], &["--", "set", "bridge", BRIDGE], &set].concat()).map(drop)
}

/// Without the mirror.
pub(super) fn unmirror(bed: &Bed, node: &str) -> Result<()> {
    bed.vsctl(node, &["clear", "bridge", BRIDGE, "mirrors"]).map(drop)
}

/// What a node maps.
pub(super) fn mappings(bed: &Bed, node: &str) -> Result<String> {
    Ok(bed.vsctl(node, &["get", "Open_vSwitch", ".", MAPPINGS])?.trim().trim_matches('"').to_owned())
}

/// Takes it away from the nodes and ends it.
pub(super) fn remove(bed: &Bed, nodes: &[&str]) -> Result<()> {
    for node in nodes {
        let left = mappings(bed, node)?.replace(&format!(",{NAME}:{BRIDGE}"), "");
        bed.vsctl(node, &["set", "Open_vSwitch", ".", &format!("{MAPPINGS}=\"{left}\"")])?;
        bed.vsctl(node, &["--if-exists", "del-br", BRIDGE])?;
        batch(bed, node, &[format!("link del {WIRE}")])?;
    }
    for process in ["ovs-vswitchd", "ovsdb-server"] {
        bed.host(HOST).stop(process, LIMIT)?;
    }
    Ok(())
}
