//! How a host's own stack would address a packet: by `ip route get` and the neighbours that it knows.

use std::net::IpAddr;

use anyhow::{Context, Result};
use api::MacAddr;
use serde::Deserialize;

use super::super::scene::{Scene, Who, mac};
use testbed::cluster::config::{node_ip, underlay_ip6, underlay_mac};
use testbed::exec;

/// Where a packet of a host goes first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::flow_cache_equivalence) struct Route {
    /// Interface by which it leaves.
    pub(in crate::flow_cache_equivalence) interface: String,
    pub(in crate::flow_cache_equivalence) source: IpAddr,
    /// The station that gets it.
    pub(in crate::flow_cache_equivalence) next: [u8; 6],
    /// The interface's own MAC.
    pub(in crate::flow_cache_equivalence) own: [u8; 6],
}

/// As `ip -j route get` has it.
#[derive(Debug, Deserialize)]
struct Got {
    dev: String,
    prefsrc: IpAddr,
    gateway: Option<IpAddr>,
}

/// As `ip -j neigh show` and `ip -j link show` have them.
#[derive(Debug, Deserialize)]
struct Station {
    #[serde(default)]
    dst: Option<IpAddr>,
    /// Absent while it is being asked for.
    lladdr: Option<MacAddr>,
    address: Option<MacAddr>,
}

/// The route of a host to an address.
///
/// # Errors
/// There is none, or its next hop is not known.
pub(in crate::flow_cache_equivalence) fn to(scene: &Scene<'_>, host: &str, address: IpAddr) -> Result<Route> {
    let ask = |args: &[&str]| exec::output(scene.bed.host(host).network_command("ip")?.arg("-j").args(args));
    let got = first(&ask(&["route", "get", &address.to_string()])?)
        .with_context(|| format!("{host} has no route to {address}"))?;
    let hop = got.gateway.unwrap_or(address);
    // `show to` takes no address of the other family.
    let family = if hop.is_ipv6() { "-6" } else { "-4" };
    let known = ask(&[family, "neigh", "show", "dev", &got.dev, "nud", "all"])?;
    let next = underlay_station(hop)
        .or_else(|| pod_station(scene, hop))
        .or_else(|| neighbour(&known, hop))
        .with_context(|| format!("{host} does not know the MAC of {hop}: {known}"))?;
    let link = ask(&["link", "show", "dev", &got.dev])?;
    let own = link_address(&link).with_context(|| format!("interface {} of {host}: {link}", got.dev))?;
    Ok(Route { interface: got.dev, source: got.prefsrc, next, own })
}

/// The only route in an answer.
fn first(text: &str) -> Result<Got> {
    let list: Vec<Got> = serde_json::from_str(text).with_context(|| text.to_owned())?;
    list.into_iter().next().context("no route")
}

/// The MAC of an address among known neighbours.
fn neighbour(text: &str, address: IpAddr) -> Option<[u8; 6]> {
    let list: Vec<Station> = serde_json::from_str(text).ok()?;
    list.into_iter().find(|one| one.dst == Some(address))?.lladdr.map(|mac| mac.0)
}

/// The MAC of the only interface in an answer.
fn link_address(text: &str) -> Option<[u8; 6]> {
    let list: Vec<Station> = serde_json::from_str(text).ok()?;
    list.into_iter().next()?.address.map(|mac| mac.0)
}

/// The MAC of a host of the underlay, which follows from its address.
fn underlay_station(address: IpAddr) -> Option<[u8; 6]> {
    let hosts = (0..=8).map(node_ip);
    let mut known = hosts.filter(|ip| [IpAddr::from(*ip), underlay_ip6(*ip).into()].contains(&address));
    underlay_mac(known.next()?).parse::<MacAddr>().ok().map(|mac| mac.0)
}

/// The MAC of a pod, which the node's management port has on its own link.
fn pod_station(scene: &Scene<'_>, address: IpAddr) -> Option<[u8; 6]> {
    let members = Who::ALL.into_iter().map(|who| scene.member(who));
    let mut of = members.filter(|one| [IpAddr::from(one.ipv4), one.ipv6].contains(&address));
    of.next().map(|one| mac(one.ipv4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_ip_are_read() {
        let got = r#"[{"dst":"10.96.0.7","gateway":"169.254.169.4","dev":"breth0","prefsrc":"172.18.0.2","flags":[],"uid":0,"cache":[]}]"#;
        let got = first(got).unwrap();
        assert_eq!((got.dev.as_str(), got.gateway), ("breth0", Some("169.254.169.4".parse().unwrap())));
        assert!(first("[]").is_err());
        let known = r#"[{"dst":"169.254.169.5","state":["INCOMPLETE"]},
            {"dst":"169.254.169.4","lladdr":"0a:58:a9:fe:a9:04","state":["PERMANENT"]}]"#;
        let of = |ip: &str| neighbour(known, ip.parse().unwrap());
        assert_eq!(of("169.254.169.4"), Some([0x0a, 0x58, 0xa9, 0xfe, 0xa9, 4]));
        assert_eq!((of("169.254.169.5"), of("169.254.169.6")), (None, None));
        let link = r#"[{"ifindex":5,"ifname":"breth0","address":"02:42:ac:12:00:02","mtu":1500}]"#;
        assert_eq!(link_address(link), Some([2, 0x42, 0xac, 0x12, 0, 2]));
    }

    #[test]
    fn hosts_of_the_underlay_are_known_by_their_addresses() {
        let of = |ip: &str| underlay_station(ip.parse().unwrap());
        assert_eq!(of("172.18.0.1"), Some([2, 0x42, 0xac, 0x12, 0, 1]));
        assert_eq!(of("fd00:172:18::3"), Some([2, 0x42, 0xac, 0x12, 0, 3]));
        assert_eq!(of("10.96.0.1"), None);
    }
}
