//! The paths that ours are compared with, on hosts of the bed: a bare pair of veths, two hosts on the underlay, and an overlay
//! of kernel VXLAN with a bridge on each side, as simple network plugins make it.

use std::fmt::Write;

use anyhow::{Context, Result};

use testbed::cluster::Bed;
use testbed::exec;

/// The two hosts that are no nodes, and play them for the overlay.
pub(super) const HOSTS: [&str; 2] = ["central", "ext"];
/// The namespace on each that is a pod of the overlay.
pub(super) const POD: &str = "overlay-pod";
/// The overlay pod on the second host.
pub(super) const OVERLAY_SERVER: &str = "10.250.2.2";
/// Namespaces of the bare pair, on the first host.
pub(super) const PAIR: [&str; 2] = ["pair-1", "pair-2"];
/// The second of the pair.
pub(super) const PAIR_SERVER: &str = "10.251.0.2";
/// A namespace on the first host that is reached by its router, the host, and that leaves with the host's address.
pub(super) const ROUTED: &str = "routed-pod";
/// Its address.
pub(super) const ROUTED_SERVER: &str = "10.252.0.2";
/// Like that of the pods.
const MTU: u32 = 1400;

/// Makes them; they go with the bed.
pub(super) fn build(bed: &Bed, addresses: [&str; 2]) -> Result<()> {
    let mut pair = String::new();
    for name in PAIR {
        writeln!(pair, "netns add {name}")?;
    }
    let [one, two] = PAIR;
    batch(bed, HOSTS[0], "", &pair)?;
    // From inside: the name is looked for where the command runs, and a host has an eth0.
    let link = format!("link add eth0 mtu {MTU} type veth peer name eth0 mtu {MTU} netns {two}\n");
    batch(bed, HOSTS[0], one, &link)?;
    for (name, address) in [(one, "10.251.0.1"), (two, PAIR_SERVER)] {
        batch(bed, HOSTS[0], name, &format!("addr add {address}/24 dev eth0\nlink set eth0 up\n"))?;
    }
    routed(bed, addresses[0])?;
    for (host, index, other) in [(HOSTS[0], 1, 2), (HOSTS[1], 2, 1)] {
        let (local, remote) = (addresses[index - 1], addresses[other - 1]);
        let mut lines = String::new();
        writeln!(lines, "netns add {POD}")?;
        writeln!(
            lines,
            "link add overlay address 0e:00:00:00:00:0{index} mtu 1450 type vxlan id 1 local {local} dstport 8472 nolearning dev eth0"
        )?;
        writeln!(lines, "addr add 10.250.{index}.0/32 dev overlay\nlink set overlay up")?;
        writeln!(
            lines,
            "link add bridge0 mtu {MTU} type bridge\naddr add 10.250.{index}.1/24 dev bridge0\nlink set bridge0 up"
        )?;
        writeln!(
            lines,
            "link add pod0 mtu {MTU} master bridge0 type veth peer name eth0 mtu {MTU} netns {POD}\nlink set pod0 up"
        )?;
        writeln!(lines, "neigh add 10.250.{other}.0 lladdr 0e:00:00:00:00:0{other} dev overlay")?;
        writeln!(lines, "route add 10.250.{other}.0/24 via 10.250.{other}.0 dev overlay onlink")?;
        batch(bed, host, "", &lines)?;
        batch(
            bed,
            host,
            POD,
            &format!(
                "addr add 10.250.{index}.2/24 dev eth0\nlink set eth0 up\nroute add default via 10.250.{index}.1\n"
            ),
        )?;
        let mut forwarding = bed.host(host).command("bridge")?;
        let mac = format!("0e:00:00:00:00:0{other}");
        exec::output(forwarding.args(["fdb", "add", &mac, "dev", "overlay", "dst", remote]))?;
        let mut setting = bed.host(host).command("sysctl")?;
        exec::output(setting.args(["-qw", "net.ipv4.ip_forward=1"]))?;
    }
    Ok(())
}

/// The first host, at `address`, as router of a pod: what nodes do without OVS.
fn routed(bed: &Bed, address: &str) -> Result<()> {
    let lines = format!(
        "netns add {ROUTED}\nlink add routed0 mtu {MTU} type veth peer name eth0 mtu {MTU} netns {ROUTED}\n\
         addr add 10.252.0.1/24 dev routed0\nlink set routed0 up\n"
    );
    batch(bed, HOSTS[0], "", &lines)?;
    let inside =
        format!("addr add {ROUTED_SERVER}/24 dev eth0\nlink set eth0 up\nroute add default via 10.252.0.1\n");
    batch(bed, HOSTS[0], ROUTED, &inside)?;
    batch(bed, HOSTS[1], "", &format!("route add 10.252.0.0/24 via {address}\n"))?;
    let rules =
        "table ip routed { chain out { type nat hook postrouting priority 100; oif eth0 masquerade; }; }";
    let mut nft = bed.host(HOSTS[0]).command("nft")?;
    exec::input_output(nft.args(["-f", "-"]), rules).map(drop)
}

/// Lines for `ip -batch`, on a host or in a namespace of it.
fn batch(bed: &Bed, host: &str, namespace: &str, lines: &str) -> Result<()> {
    let mut command = bed.host(host).command("ip")?;
    if !namespace.is_empty() {
        command.args(["-n", namespace]);
    }
    exec::input_output(command.args(["-batch", "-"]), lines)
        .map(drop)
        .with_context(|| format!("reference paths on {host}"))
}
