//! Trials of suite `uplink_migration`: the kernel's addresses and routes change, and the gateway follows.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::world::{BRIDGE, World};
use testbed::cluster::config::{EXT_IP, OUTSIDE_IP, node_ip, underlay_mac};
use testbed::exec;

/// The second gateway of the physical network: another machine for all that the nodes can see.
const SECOND: &str = "172.18.0.254";
/// Long enough for the agent to have looked several times.
const A_WHILE: Duration = Duration::from_secs(2);

/// The first gateway stops forwarding, and the operator configures the second one by hand.
pub(super) fn gateway(world: &World<'_>) -> Result<String> {
    let (node, old) = ("n1", EXT_IP.to_string());
    let second = SecondGateway::new(world)?;
    let begin = Instant::now();
    world.ip(node, &format!("route replace default via {SECOND} dev {BRIDGE}"))?;
    world.gateway_says(node, &[&format!(r#""next-hops":["{SECOND}""#)], &[&format!("\"{old}\"")])?;
    let told = begin.elapsed();
    world.reaches_outside("a", node_ip(1))?;
    let took = begin.elapsed();
    // An address event, a start of the agent, and a new ovs-vswitchd: each used to bring the old route back.
    world.ip(node, &format!("address add 198.51.100.7/32 dev {BRIDGE}"))?;
    std::thread::sleep(A_WHILE);
    default_is(world, node, SECOND)?;
    world.ip(node, &format!("address del 198.51.100.7/32 dev {BRIDGE}"))?;
    world.bed.host(node).restart("node-agent")?;
    world.bed.wait_node_ready(node)?;
    std::thread::sleep(A_WHILE);
    default_is(world, node, SECOND)?;
    world.ip(node, &format!("link del {BRIDGE}"))?;
    world.bed.host(node).restart("ovs-vswitchd")?;
    world.eventually("the bridge made anew has the route", || default_is(world, node, SECOND))?;
    world.reaches_outside("a", node_ip(1))?;
    world.ip(node, &format!("route replace default via {old} dev {BRIDGE}"))?;
    drop(second);
    world.gateway_says(node, &[&format!(r#""next-hops":["{old}""#)], &[SECOND])?;
    Ok(format!("announced after {:.1} s, in use after {:.1} s", told.as_secs_f64(), took.as_secs_f64()))
}

fn default_is(world: &World<'_>, node: &str, hop: &str) -> Result<()> {
    let routes = world.ip(node, "-4 route show default")?;
    ensure!(
        routes.lines().count() == 1 && routes.contains(&format!("via {hop} ")),
        "default routes: {routes}"
    );
    Ok(())
}

/// A second wire of the outside world, with a MAC and an address of its own; the first one leads outside no more.
struct SecondGateway<'w, 'a>(&'w World<'a>);

impl<'w, 'a> SecondGateway<'w, 'a> {
    fn new(world: &'w World<'a>) -> Result<Self> {
        let pid = world.bed.host("ext").init()?.pid;
        let mac = underlay_mac(SECOND.parse()?);
        world.ip("switch", &format!("link add ext-2 type veth peer name eth1 address {mac} netns {pid}"))?;
        world.ip("switch", "link set ext-2 master underlay up")?;
        let second = Self(world);
        for (key, value) in [("arp_ignore", "1"), ("arp_filter", "0"), ("rp_filter", "0")] {
            for interface in ["eth0", "eth1"] {
                set(world, "ext", &format!("net.ipv4.conf.{interface}.{key}={value}"))?;
            }
        }
        world.ip("ext", &format!("address add {SECOND}/32 dev eth1"))?;
        world.ip("ext", "link set eth1 up")?;
        let drop = format!("iifname eth0 ip saddr {} ip daddr {OUTSIDE_IP} drop", node_ip(1));
        world.nft(
            "ext",
            &format!(
                "table ip second {{\nchain c {{\ntype filter hook prerouting priority 0\n{drop}\n}}\n}}\n"
            ),
        )?;
        Ok(second)
    }
}

impl Drop for SecondGateway<'_, '_> {
    fn drop(&mut self) {
        for done in
            [self.0.nft("ext", "delete table ip second\n"), self.0.ip("switch", "link del ext-2").map(drop)]
        {
            if let Err(error) = done {
                testbed::ui::say(format_args!("the second gateway stays: {error:#}"));
            }
        }
    }
}

fn set(world: &World<'_>, host: &str, setting: &str) -> Result<()> {
    exec::output(world.bed.host(host).network_command("sysctl")?.args(["-qw", setting])).map(drop)
}

/// The node gets another address, and loses the one it had; then the other way round.
pub(super) fn address(world: &World<'_>) -> Result<String> {
    let (node, old) = ("n2", node_ip(2).to_string());
    let new = "172.18.0.33";
    let begin = Instant::now();
    move_to(world, node, &old, new).context("to another address")?;
    let took = begin.elapsed();
    world.reaches_outside("b", new.parse::<std::net::Ipv4Addr>()?)?;
    world.bed.host(node).restart("node-agent")?;
    world.bed.wait_node_ready(node)?;
    let there = world.ip(node, &format!("-4 address show dev {BRIDGE}"))?;
    ensure!(!there.contains(&format!("{old}/")), "the old address is back: {there}");
    move_to(world, node, new, &old).context("back")?;
    Ok(format!("announced after {:.1} s", took.as_secs_f64()))
}

fn move_to(world: &World<'_>, node: &str, from: &str, to: &str) -> Result<()> {
    set(world, node, &format!("net.ipv4.conf.{BRIDGE}.promote_secondaries=1"))?;
    world.ip(node, &format!("address add {to}/16 dev {BRIDGE}"))?;
    world.ip(node, &format!("address del {from}/16 dev {BRIDGE}"))?;
    // The route went with the address that it was made with.
    world.ip(node, &format!("route replace default via {EXT_IP} dev {BRIDGE}"))?;
    world.gateway_says(node, &[&format!("\"{to}/16\"")], &[&format!("\"{from}/16\"")])?;
    let told = world.annotation(node, "node-encap-ips")?;
    ensure!(told.contains(&format!("\"{to}\"")), "the tunnel's end is announced as {told}");
    let set = world.bed.vsctl(node, &["get", "Open_vSwitch", ".", "external_ids:ovn-encap-ip"])?;
    ensure!(set.contains(to), "ovn-encap-ip is {set}");
    Ok(())
}

/// The node loses its IPv6 address; then a router advertises a prefix and itself.
pub(super) fn late(world: &World<'_>) -> Result<String> {
    if !world.bed.config().dual_stack {
        return Ok("not in a cluster with IPv4 alone".to_owned());
    }
    let node = "n1";
    let before = "fd00:172:18::2";
    world.ip(node, &format!("-6 address del {before}/64 dev {BRIDGE}"))?;
    world.ip(node, &format!("-6 route flush default dev {BRIDGE}"))?;
    world.gateway_says(node, &["172.18.0.2/16"], &["fd00:"])?;
    let begin = Instant::now();
    let lines = "--enable-ra --dhcp-range=fd00:172:18::,ra-only,64,600 --ra-param=eth0,5,600";
    start_dnsmasq(world, lines)?;
    // The address that the kernel makes of the MAC.
    let made = "fd00:172:18:0:42:acff:fe12:2";
    let done = world
        .gateway_says(node, &[&format!("\"{made}/64\""), "\"fe80::"], &[])
        .and_then(|()| world.reaches_outside("a", made.parse::<std::net::Ipv6Addr>()?));
    let took = begin.elapsed();
    world.bed.host("ext").stop("dnsmasq", Duration::from_secs(5))?;
    world.ip(node, &format!("-6 address add {before}/64 dev {BRIDGE} nodad"))?;
    done?;
    Ok(format!("announced and in use after {:.1} s", took.as_secs_f64()))
}

/// A real server of addresses and advertisements, outside.
pub(super) fn start_dnsmasq(world: &World<'_>, flags: &str) -> Result<()> {
    let usual = "dnsmasq --keep-in-foreground --conf-file=/dev/null --port=0 --interface=eth0 --bind-interfaces \
                 --user=root --pid-file= --leasefile-ro --log-dhcp --log-facility=-";
    let argv: Vec<&str> = usual.split_whitespace().chain(flags.split(' ')).collect();
    world.bed.host("ext").start("dnsmasq", &argv, &[])
}
