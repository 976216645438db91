//! Bridges that lead to physical networks (`localnet`): which interface does, and why their pods' packets must use the slow path. Inputs are
//! the Open_vSwitch database and the bridge's flows; no I/O.
//!
//! The fast path is for bridges that do nothing but connect OVN to one interface: then what comes from OVN leaves there, and what OVS
//! knows of MAC addresses makes no difference.

use std::sync::Arc;

use ovsdb_client::vswitch::{Bridge, Interface, Port};

use super::flow_actions::FlowExclusions;
use super::rules::{exported, policed};
use api::admin::PathStatus;

/// A port of a bridge with its interfaces.
pub type BridgePort = (Arc<Port>, Vec<Arc<Interface>>);

/// The way from a bridge to its physical network.
#[derive(Debug, Clone)]
pub struct Way {
    /// The port.
    pub port: Arc<Port>,
    /// The port's only interface.
    pub interface: Arc<Interface>,
    /// Names of the patch ports of br-int that are connected to the bridge.
    pub inner: Vec<String>,
}

/// Finds the way. `is_inner`: whether br-int has a port with this name.
///
/// # Errors
/// The bridge does more than to connect OVN to one interface.
pub fn way(bridge: &str, ports: &[BridgePort], is_inner: impl Fn(&str) -> bool) -> Result<Way, String> {
    let (mut found, mut inner) = (None, Vec::new());
    for (port, interfaces) in ports.iter().filter(|(port, _)| port.name != bridge) {
        let name = &port.name;
        let [interface] = interfaces.as_slice() else {
            return Err(format!("port {name} of bridge {bridge} is a bond"));
        };
        match interface.r#type.as_str() {
            "patch" => match interface.options.get("peer").filter(|peer| is_inner(peer)) {
                Some(peer) => inner.push(peer.clone()),
                None => {
                    return Err(format!(
                        "patch port {name} of bridge {bridge} leads to another bridge than br-int"
                    ));
                }
            },
            "" | "system" if found.is_none() => found = Some((Arc::clone(port), Arc::clone(interface))),
            "" | "system" => {
                return Err(format!("bridge {bridge} has several interfaces (port {name} is another one)"));
            }
            kind => return Err(format!("port {name} of bridge {bridge} is of type {kind}")),
        }
    }
    let (port, interface) =
        found.ok_or_else(|| format!("bridge {bridge} has no interface on the physical network"))?;
    Ok(Way { port, interface, inner })
}

/// What is known of the way's interface in the kernel.
#[derive(Debug, Clone, Copy)]
pub struct Link<'a> {
    /// MTU of the interface in bytes.
    pub mtu: u32,
    /// Queueing discipline configured on it.
    pub queue: Option<&'a str>,
}

/// Path of packets that pods exchange with the physical network by this way. `link`: `None` where there is no such interface.
pub fn path(
    bridge: &Bridge,
    way: &Way,
    exclusions: &FlowExclusions,
    link: Option<Link<'_>>,
    pod_mtu: u32,
) -> PathStatus {
    let name = &way.interface.name;
    let slow = |why: String| PathStatus::ovs(format!("bridge {}: {why}", bridge.name));
    if let Some(why) = exclusions.node.as_ref().or_else(|| exclusions.ports.values().next()) {
        return slow(why.clone());
    }
    if let Some(what) = exported(bridge) {
        return slow(format!("it exports its packets by {what}"));
    }
    if !bridge.mirrors.is_empty() {
        return slow("it has mirrors, which the fast path bypasses".to_owned());
    }
    if bridge.stp_enable || bridge.rstp_enable {
        return slow("it runs a spanning tree protocol, which may block its ports".to_owned());
    }
    if way.port.qos.is_some() {
        return slow(format!("port {} has a QoS setting", way.port.name));
    }
    if let Some(why) = policed(&way.interface) {
        return slow(format!("interface {name} {why}"));
    }
    let Some(link) = link else { return slow(format!("interface {name} does not exist")) };
    if let Some(kind) = link.queue {
        return slow(format!(
            "interface {name} has queueing discipline `{kind}`, which the fast path bypasses"
        ));
    }
    if link.mtu < pod_mtu {
        return slow(format!(
            "the MTU of interface {name} is {}, less than that of pods, {pod_mtu}",
            link.mtu
        ));
    }
    PathStatus::ebpf("eligible")
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::admin::Path;
    use ovsdb_client::Uuid;

    fn port(name: &str, kind: &str, peer: Option<&str>) -> BridgePort {
        let options = peer.map(|peer| ("peer".to_owned(), peer.to_owned())).into_iter().collect();
        let interface =
            Interface { name: name.to_owned(), r#type: kind.to_owned(), options, ..Interface::default() };
        (Arc::new(Port { name: name.to_owned(), ..Port::default() }), vec![Arc::new(interface)])
    }

    fn of_ovn() -> [BridgePort; 4] {
        [
            port("br-dc", "internal", None),
            port("patch-a", "patch", Some("int-a")),
            port("eth1", "", None),
            port("patch-b", "patch", Some("int-b")),
        ]
    }

    fn find(ports: &[BridgePort]) -> Result<Way, String> {
        way("br-dc", ports, |name| name.starts_with("int-"))
    }

    #[test]
    fn a_bridge_that_connects_ovn_to_one_interface_has_a_way() {
        let found = find(&of_ovn()).unwrap();
        assert_eq!(
            (found.interface.name.as_str(), found.inner),
            ("eth1", vec!["int-a".into(), "int-b".into()])
        );
    }

    #[test]
    fn a_bridge_that_does_more_is_refused_with_what_it_does() {
        let bond = (port("bond0", "", None).0, [port("a", "", None).1, port("b", "", None).1].concat());
        for (more, why) in [
            (port("eth2", "system", None), "several interfaces (port eth2"),
            (port("vlan5", "internal", None), "port vlan5 of bridge br-dc is of type internal"),
            (
                port("out", "patch", Some("br-other")),
                "patch port out of bridge br-dc leads to another bridge",
            ),
            (port("out", "patch", None), "leads to another bridge"),
            (bond, "port bond0 of bridge br-dc is a bond"),
        ] {
            let error = find(&[&of_ovn()[..], &[more]].concat()).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        assert!(find(&of_ovn()[..2]).unwrap_err().contains("no interface on the physical network"));
    }

    #[test]
    fn what_the_fast_path_cannot_repeat_keeps_a_physical_network_slow_with_the_reason() {
        let bridge = Bridge { name: "br-dc".to_owned(), ..Bridge::default() };
        let way = find(&of_ovn()).unwrap();
        let link = Link { mtu: 1500, queue: None };
        let none = FlowExclusions::default();
        let ask = |bridge: &Bridge, way: &Way, exclusions: &FlowExclusions, link| {
            path(bridge, way, exclusions, link, 1400)
        };
        assert_eq!(ask(&bridge, &way, &none, Some(link)).path, Path::Ebpf);
        let shaped = Port { qos: Some(Uuid::new_v4()), ..(*way.port).clone() };
        let limited = Interface { ingress_policing_rate: 1, ..(*way.interface).clone() };
        let logging = FlowExclusions { node: Some("1 flows log".to_owned()), ..FlowExclusions::default() };
        let tree = Bridge { rstp_enable: true, ..bridge.clone() };
        let mirrors = Bridge { mirrors: [Uuid::new_v4()].into(), ..bridge.clone() };
        let counted = Bridge { sflow: Some(Uuid::new_v4()), ..bridge.clone() };
        for (path, why) in [
            (ask(&tree, &way, &none, Some(link)), "spanning tree"),
            (ask(&mirrors, &way, &none, Some(link)), "mirrors"),
            (ask(&counted, &way, &none, Some(link)), "sFlow"),
            (ask(&bridge, &Way { port: shaped.into(), ..way.clone() }, &none, Some(link)), "QoS"),
            (
                ask(&bridge, &Way { interface: limited.into(), ..way.clone() }, &none, Some(link)),
                "rate limit",
            ),
            (ask(&bridge, &way, &logging, Some(link)), "1 flows log"),
            (ask(&bridge, &way, &none, None), "interface eth1 does not exist"),
            (ask(&bridge, &way, &none, Some(Link { queue: Some("tbf"), ..link })), "discipline `tbf`"),
            (ask(&bridge, &way, &none, Some(Link { mtu: 1399, ..link })), "MTU of interface eth1 is 1399"),
        ] {
            let is_told = path.reason.starts_with("bridge br-dc: ") && path.reason.contains(why);
            assert!(path.path == Path::Ovs && is_told, "{why}: {path:?}");
        }
    }
}
