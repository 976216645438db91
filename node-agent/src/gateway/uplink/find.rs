//! Finds the uplink, by flag or default route, and checks whether it can be migrated without cutting off the node.

use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context as _, bail};
use ipnet::IpNet;

use crate::config::{Config, EncapIp, Leases};
use crate::gateway::uplink::journal::{self, Journal};
use crate::gateway::uplink::role::Role;
use crate::gateway::uplink::snapshot::SavedAddress;
use crate::kernel::link::route::MAIN_TABLE;
use crate::kernel::link::{Link, Netlink, Route};

/// The name that stands for the interface of the default route.
pub const AUTO: &str = "auto";
/// Bytes of tunnel overhead by IP family of the endpoints, including 14 bytes of the inner Ethernet header.
const OVERHEAD: (u32, u32) = (58, 78);

/// Name of the uplink: the configured interface, else the one that an earlier start in this boot took, else that of the best default
/// route.
///
/// # Errors
/// No interface is configured, and there is no default route, or the journal or the kernel's routes cannot be read.
pub async fn find(config: &Config, netlink: &Netlink) -> anyhow::Result<String> {
    if config.gateway_interface != AUTO {
        return Ok(config.gateway_interface.clone());
    }
    let journal = journal::Store::new(&config.state_dir).load()?;
    if let Some(journal) = journal.as_ref().filter(|journal| journal.is_of_this_boot().unwrap_or(false)) {
        return Ok(journal.uplink.clone());
    }
    let mut index = best(&netlink.routes(false, MAIN_TABLE).await?);
    if index.is_none() {
        index = best(&netlink.routes(true, MAIN_TABLE).await?);
    }
    let name = match index {
        Some(index) => {
            netlink.list().await?.into_iter().find(|link| link.index == index).map(|link| link.name)
        }
        None => None,
    };
    found(name, journal.as_ref())
        .context("no default route, so the uplink is unknown; set it with --gateway-interface")
}

/// Uplink by default route. After a reboot the bridge of an earlier boot may already have that route; then it is the journal's uplink.
fn found(by_route: Option<String>, journal: Option<&Journal>) -> Option<String> {
    match (by_route, journal) {
        (Some(name), Some(journal)) if name == journal.bridge => Some(journal.uplink.clone()),
        (Some(name), _) => Some(name),
        (None, journal) => journal.map(|journal| journal.uplink.clone()),
    }
}

/// The interface of the best default route with a next hop.
fn best(routes: &[Route]) -> Option<u32> {
    let defaults = routes.iter().filter(|r| r.dest.prefix_len() == 0 && r.gateway.is_some());
    defaults.min_by_key(|r| r.priority.unwrap_or(0)).map(|r| r.interface)
}

/// Properties of a candidate uplink.
#[derive(Debug, Clone, Default)]
pub struct Candidate<'a> {
    /// Interface name.
    pub name: &'a str,
    /// Kind of the interface, such as `bond`.
    pub kind: Option<&'a str>,
    /// Name and kind of the interface that it is a port of.
    pub port_of: Option<(&'a str, &'a str)>,
    /// `fail_over_mac` of a bond.
    pub fail_over_mac: Option<&'a str>,
    /// Network manager of the interface, if it can be detected.
    pub manager: Option<&'a str>,
}

/// Why an interface cannot be the uplink; `None` if it can.
pub fn unfit(
    role: Role,
    candidate: &Candidate<'_>,
    addresses: &[SavedAddress],
    leases: Leases,
) -> Option<String> {
    let name = candidate.name;
    if let Some((above, kind)) = candidate.port_of.filter(|(_, kind)| *kind != "openvswitch") {
        return Some(format!(
            "{name} is a port of {above} ({kind}), which receives its packets; set {} to {above}",
            role.flag()
        ));
    }
    if candidate.kind == Some("ipvlan") {
        return Some(format!(
            "{name} is an ipvlan, which shares the MAC address of its parent and receives no packets for other addresses; use the parent interface"
        ));
    }
    if let Some(policy) = candidate.fail_over_mac.filter(|policy| !policy.starts_with("none")) {
        return Some(format!(
            "the bond {name} has fail_over_mac={policy}: its hardware address changes, while the bridge, OVN and the network keep \
             the old one; set fail_over_mac=none"
        ));
    }
    let leased = addresses.iter().find(|address| address.leased).filter(|_| leases == Leases::Refuse)?;
    let manager = candidate.manager.unwrap_or("a DHCP client");
    Some(format!(
        "{name} has a leased address, {leased}: {manager} would renew it on {name}, whose packets OVS gets, and the node would \
         lose it. Give the node a static address; or make the bridge yourself with the lease on it, which is then adopted; or \
         say --gateway-leases=keep if the DHCP server keeps this address for this node"
    ))
}

/// Checks an interface by the rules of [`unfit`].
///
/// # Errors
/// The interface cannot be the uplink, or the links cannot be listed.
pub async fn look(
    netlink: &Netlink,
    role: Role,
    link: &Link,
    addresses: &[SavedAddress],
    leases: Leases,
) -> anyhow::Result<()> {
    let all = netlink.list().await?;
    let above = all.iter().find(|other| Some(other.index) == link.controller);
    let policy = Path::new("/sys/class/net").join(&link.name).join("bonding/fail_over_mac");
    let policy = std::fs::read_to_string(policy).ok();
    let manager = manager(link.index);
    let candidate = Candidate {
        name: &link.name,
        kind: link.kind.as_deref(),
        port_of: above.map(|above| (above.name.as_str(), above.kind.as_deref().unwrap_or("?"))),
        fail_over_mac: policy.as_deref().map(str::trim),
        manager,
    };
    match unfit(role, &candidate, addresses, leases) {
        Some(reason) => bail!("{} {}: {reason}", role.interface(), link.name),
        None => Ok(()),
    }
}

/// Name of the network manager that manages an interface.
fn manager(index: u32) -> Option<&'static str> {
    let networkd = std::fs::read_to_string(format!("/run/systemd/netif/links/{index}"));
    if networkd.is_ok_and(|text| text.contains("NETWORK_FILE=")) {
        return Some("systemd-networkd");
    }
    let manager = std::fs::read_to_string(format!("/run/NetworkManager/devices/{index}"));
    manager.is_ok_and(|text| text.contains("managed=true")).then_some("NetworkManager")
}

/// Why tunnels cannot end at the address `encap`; `None` when they can. `on` is the interface that has it.
pub fn unfit_tunnel_end(encap: EncapIp, on: Option<&str>, bridge: &str, userspace: bool) -> Option<String> {
    let EncapIp::Fixed(ip) = encap else { return None };
    match on {
        None => Some(format!("--encap-ip {ip} is not an address of this node; set one, or `auto`")),
        Some(name) if userspace && name != bridge => Some(format!(
            "--encap-ip {ip} is on {name}: OVS's userspace datapath sends tunnels through its own bridges alone, here {bridge}; name \
             an address of the gateway interface, or use the kernel's datapath"
        )),
        Some(_) => None,
    }
}

/// Why pods' packets do not fit through a tunnel; `None` when they do.
pub fn too_small(pod_mtu: u32, link: &str, mtu: u32, encap: IpAddr) -> Option<String> {
    let overhead = if encap.is_ipv4() { OVERHEAD.0 } else { OVERHEAD.1 };
    (pod_mtu + overhead > mtu).then(|| {
        format!(
            "packets of pods (--mtu {pod_mtu}) with a tunnel's {overhead} bytes are longer than the MTU of {link}, {mtu}: long ones \
             to pods of other nodes are lost; --mtu can be {} at most, on all nodes and at the controller, or raise that of {link}",
            mtu.saturating_sub(overhead)
        )
    })
}

/// The interface that has an address.
///
/// # Errors
/// Links or addresses cannot be listed.
pub async fn with_address(netlink: &Netlink, ip: IpAddr) -> anyhow::Result<Option<Link>> {
    for link in netlink.list().await? {
        let addresses: Vec<IpNet> = netlink.addresses(link.index, &link.name).await?;
        if addresses.iter().any(|net| net.addr() == ip) {
            return Ok(Some(link));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::uplink::journal::Found;

    fn address(text: &str) -> SavedAddress {
        SavedAddress::for_test(text.parse().unwrap())
    }

    #[test]
    fn a_lease_is_refused_with_who_would_renew_it_unless_it_is_said_to_be_kept() {
        let leased = SavedAddress { leased: true, ..address("10.0.0.5/24") };
        let all = [address("10.0.0.6/24"), leased];
        let eth0 = Candidate { name: "eth0", manager: Some("systemd-networkd"), ..Candidate::default() };
        let reason = unfit(Role::Gateway, &eth0, &all, Leases::Refuse).unwrap();
        assert!(
            reason.contains("10.0.0.5/24") && reason.contains("systemd-networkd would renew it"),
            "{reason}"
        );
        assert_eq!(unfit(Role::Gateway, &eth0, &all, Leases::Keep), None);
        assert_eq!(unfit(Role::Gateway, &eth0, &all[..1], Leases::Refuse), None);
    }

    #[test]
    fn a_port_of_another_and_a_bond_whose_address_changes_are_refused() {
        let port = Candidate { name: "eth0", port_of: Some(("bond0", "bond")), ..Candidate::default() };
        for (role, advice) in [
            (Role::Gateway, "set --gateway-interface to bond0"),
            (Role::Second, "set --exgw-interface to bond0"),
        ] {
            assert!(unfit(role, &port, &[], Leases::Refuse).unwrap().ends_with(advice));
        }
        let of_ovs = Candidate { port_of: Some(("ovs-system", "openvswitch")), ..port };
        assert_eq!(unfit(Role::Gateway, &of_ovs, &[], Leases::Refuse), None);
        let bond = |policy| Candidate {
            name: "bond0",
            kind: Some("bond"),
            fail_over_mac: Some(policy),
            ..Candidate::default()
        };
        assert_eq!(unfit(Role::Gateway, &bond("none 0"), &[], Leases::Refuse), None);
        assert!(
            unfit(Role::Gateway, &bond("active 1"), &[], Leases::Refuse)
                .unwrap()
                .contains("fail_over_mac=active 1")
        );
        let vlan = Candidate { name: "eth0.5", kind: Some("vlan"), ..Candidate::default() };
        assert_eq!(unfit(Role::Gateway, &vlan, &[], Leases::Refuse), None);
        let ipvlan = Candidate { name: "ipvl0", kind: Some("ipvlan"), ..Candidate::default() };
        assert!(unfit(Role::Gateway, &ipvlan, &[], Leases::Refuse).is_some());
    }

    #[test]
    fn the_userspace_datapath_ends_tunnels_on_the_bridge_alone() {
        let end = EncapIp::Fixed("10.1.0.5".parse().unwrap());
        assert!(unfit_tunnel_end(end, Some("eth1"), "breth0", true).unwrap().contains("eth1"));
        assert_eq!(unfit_tunnel_end(end, Some("eth1"), "breth0", false), None);
        assert_eq!(unfit_tunnel_end(end, Some("breth0"), "breth0", true), None);
        assert!(
            unfit_tunnel_end(end, None, "breth0", false).unwrap().contains("not an address of this node")
        );
        assert_eq!(unfit_tunnel_end(EncapIp::Auto, None, "breth0", true), None);
    }

    #[test]
    fn what_a_tunnel_adds_must_fit() {
        let (v4, v6) = ("10.0.0.5".parse().unwrap(), "fd00::5".parse().unwrap());
        assert_eq!(too_small(1400, "eth0", 1458, v4), None);
        assert!(too_small(1400, "eth0", 1457, v4).unwrap().contains("--mtu can be 1399 at most"));
        assert!(too_small(1400, "eth0", 1458, v6).unwrap().contains("can be 1380"));
    }

    #[test]
    fn the_bridge_of_an_earlier_boot_stands_for_its_uplink() {
        let journal = Journal::new("ens3", "brens3", false, Found::for_test()).unwrap();
        let name = |text: &str| Some(text.to_owned());
        assert_eq!(found(name("brens3"), Some(&journal)), name("ens3"));
        assert_eq!(found(name("eth1"), Some(&journal)), name("eth1"));
        assert_eq!(found(None, Some(&journal)), name("ens3"));
        assert_eq!(found(None, None), None);
    }

    #[test]
    fn the_default_route_with_the_lowest_metric_says_which_interface() {
        let route = |interface, priority| Route {
            priority: Some(priority),
            ..Route::default_via("10.0.0.1".parse().unwrap(), interface)
        };
        assert_eq!(best(&[route(3, 200), route(2, 100)]), Some(2));
        assert_eq!(best(&[]), None);
    }
}
