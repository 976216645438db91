//! Eligibility rules: which node, tunnel or endpoint must use the slow path, and why (listed in `docs/datapath.md`). Inputs are
//! the Open_vSwitch database, pod annotations and br-int's flows; no I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use api::annotation::POD_PATH;
use ovsdb_client::Uuid;
use ovsdb_client::vswitch::{Bridge, Interface, Mirror, OpenVSwitch, Port};

use ebpf::layout::maps::GENEVE_PORT;

use super::error::TunnelError;
use crate::flow_cache::eligibility::flow_actions::FlowExclusions;
use crate::ovs::ports::PodPort;
use api::admin::{Path, PathStatus};

/// `remote_ip` of a tunnel that accepts any remote endpoint, selected by OpenFlow actions (ovs-vswitchd.conf.db(5)).
const FLOW: &str = "flow";

/// Tunnel options that have no effect on single packets; any other option makes the node ineligible.
const PLAIN_OPTIONS: [&str; 5] = ["remote_ip", "local_ip", "key", "csum", "packet_type"];

/// Options that ovn-controller sets on an IPsec tunnel.
const IPSEC_OPTIONS: [&str; 6] =
    ["remote_name", "remote_cert", "psk", "ipsec_encapsulation", "certificate", "private_key"];

/// What the mirrors of a bridge copy, and to where.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mirrored {
    /// Name of a mirror of the whole bridge.
    pub all: Option<String>,
    /// Ports whose packets are copied, each with the name of the mirror.
    pub ports: Vec<(Uuid, String)>,
    /// Ports among `ports` whose packets are copied where they leave OVS.
    pub leaving: Vec<(Uuid, String)>,
    /// Ports that get the copies, each with the name of the mirror. OVS gives them nothing else, and drops what comes in by them.
    pub outputs: Vec<(Uuid, String)>,
}

impl Mirrored {
    /// What those of `mirrors` copy that belong to `bridge`.
    pub fn of<'a>(bridge: &Bridge, mirrors: impl Iterator<Item = &'a Mirror>) -> Self {
        let mut found = Self::default();
        for mirror in mirrors.filter(|m| bridge.mirrors.contains(&m.uuid)) {
            if mirror.select_all || !mirror.select_vlan.is_empty() {
                found.all.get_or_insert_with(|| mirror.name.clone());
            }
            let named = |port: &Uuid| (*port, mirror.name.clone());
            let selected: BTreeSet<_> =
                mirror.select_src_port.iter().chain(&mirror.select_dst_port).collect();
            found.ports.extend(selected.into_iter().map(named));
            found.leaving.extend(mirror.select_dst_port.iter().map(named));
            found.outputs.extend(mirror.output_port.iter().map(named));
        }
        found
    }

    /// What mirrors have to do with a port, if anything.
    fn of_port(&self, port: &Uuid) -> Option<String> {
        let named =
            |list: &[(Uuid, String)]| list.iter().find(|(one, _)| one == port).map(|(_, n)| n.clone());
        if let Some(mirror) = self.all.clone().or_else(|| named(&self.ports)) {
            return Some(format!("is mirrored (mirror {mirror})"));
        }
        named(&self.outputs).map(|mirror| format!("gets nothing but the copies of mirror {mirror}"))
    }
}

/// Why the mirrors of bridge `name` make the node ineligible. `ruled`: ports of which [`Mirrored::of_port`] says enough: those of pods,
/// the uplink's, and the node's own. `marked`: packets carry the fast path's numbers in them while they are inside OVS, so that
/// copies show them, unless the packets come from where nothing is fast.
pub fn copies(name: &str, mirrored: &Mirrored, ruled: &BTreeSet<Uuid>, marked: bool) -> Option<String> {
    if let Some((_, mirror)) = mirrored.ports.iter().find(|(port, _)| !ruled.contains(port)) {
        return Some(format!(
            "mirror {mirror} of bridge {name} selects a port that packets of any pod may pass"
        ));
    }
    let shown =
        mirrored.all.as_ref().or(mirrored.leaving.first().map(|(_, mirror)| mirror)).filter(|_| marked)?;
    Some(format!(
        "mirror {shown} of bridge {name} copies what leaves OVS, and copies would show the fast path's numbers"
    ))
}

/// Why the node is not eligible; `None` when it is.
pub fn node<'a>(
    system: &OpenVSwitch,
    integration: &Bridge,
    exclusions: &FlowExclusions,
    interfaces: impl Iterator<Item = &'a Interface>,
) -> Option<String> {
    if let Some(why) = &exclusions.node {
        return Some(why.clone());
    }
    if let Some(what) = exported(integration) {
        return Some(format!("br-int exports its packets by {what}"));
    }
    let id = |key: &str| system.external_ids.get(key).map_or("", String::as_str);
    let kind = id("ovn-encap-type");
    if !matches!(kind, "" | "geneve") {
        return Some(format!("ovn-encap-type is `{kind}`; the fast path supports `geneve` only"));
    }
    if id("ovn-encap-ip").contains(',') {
        return Some(format!("several tunnel endpoints (ovn-encap-ip is `{}`)", id("ovn-encap-ip")));
    }
    let tos = id("ovn-encap-tos");
    if !matches!(tos, "" | "0") {
        return Some(format!("ovn-encap-tos is `{tos}`: the outer header depends on the packet"));
    }
    if system.other_config.get("hw-offload").is_some_and(|on| on == "true") {
        // OVS installs tc filters that run before the programs.
        return Some("hardware offload of OVS is on (other_config:hw-offload)".to_owned());
    }
    interfaces.filter_map(|row| tunnel(row).or_else(|| shared_port(row, exclusions))).next()
}

/// Why interface `row`, unless it belongs to a pod, makes the node ineligible: packets of any pod may pass it.
fn shared_port(row: &Interface, exclusions: &FlowExclusions) -> Option<String> {
    let why = concerning(row, exclusions).filter(|_| PodPort::of(row).is_none())?;
    Some(format!("interface {}: {why}", row.name))
}

fn concerning<'a>(row: &Interface, exclusions: &'a FlowExclusions) -> Option<&'a str> {
    exclusions.ports.get(&number(row)?).map(String::as_str)
}

/// OpenFlow port of an interface.
fn number(row: &Interface) -> Option<u32> {
    u32::try_from(row.ofport?).ok()
}

/// Why tunnel `row` makes the node ineligible.
fn tunnel(row: &Interface) -> Option<String> {
    let kind = row.r#type.as_str();
    let known = match kind {
        "geneve" => true,
        "vxlan" | "stt" | "gre" | "ip6gre" | "lisp" | "erspan" | "ip6erspan" | "gtpu" | "srv6"
        | "bareudp" => false,
        _ => return None,
    };
    if !known {
        return Some(format!("tunnel {} is of type {kind}; the fast path supports geneve only", row.name));
    }
    if let Some(option) = IPSEC_OPTIONS.iter().find(|option| row.options.contains_key(**option)) {
        return Some(format!("tunnel {} is inside IPsec (option `{option}`)", row.name));
    }
    // The programs parse GENEVE_PORT only, and do not write the IP identification that fragments need.
    let unknown = |option: &str, value: &str| match option {
        "dst_port" => value != GENEVE_PORT.to_string(),
        "df_default" => value == "false",
        _ => !PLAIN_OPTIONS.contains(&option),
    };
    let odd = row.options.iter().find(|(option, value)| unknown(option, value))?;
    Some(format!("tunnel {} has option {}={}, which the fast path cannot repeat", row.name, odd.0, odd.1))
}

/// Whether `row` is a Geneve tunnel without a fixed remote endpoint. ovn-controller sets `remote_ip` on every tunnel it creates.
fn accepts_any_remote(row: &Interface) -> bool {
    row.r#type == "geneve" && row.options.get("remote_ip").is_none_or(|remote| remote == FLOW)
}

/// IPv4 address of the tunnel endpoint.
///
/// # Errors
/// Why tunnelled packets must take the slow path.
pub fn tunnel_endpoint<'a>(
    system: &OpenVSwitch,
    gateway: Option<&Bridge>,
    uplink: Option<&Port>,
    mirrored: &Mirrored,
    mut interfaces: impl Iterator<Item = &'a Interface>,
) -> Result<Ipv4Addr, TunnelError> {
    if let Some(row) = interfaces.find(|row| accepts_any_remote(row)) {
        return Err(TunnelError::AnyRemote { tunnel: row.name.clone() });
    }
    let text = system.external_ids.get("ovn-encap-ip").map_or("", String::as_str);
    let address = match text.parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) => address,
        Ok(IpAddr::V6(address)) => return Err(TunnelError::Ipv6 { address }),
        Err(_) if text.is_empty() => return Err(TunnelError::NoEndpoint),
        Err(problem) => return Err(TunnelError::Malformed { text: text.to_owned(), problem }),
    };
    let Some(gateway) = gateway else { return Err(TunnelError::NoBridge) };
    if let Some(uplink) = uplink {
        if let Some(what) = mirrored.of_port(&uplink.uuid) {
            return Err(TunnelError::Mirrored { bridge: gateway.name.clone(), what });
        }
        let port = uplink.name.clone();
        if uplink.interfaces.len() > 1 {
            return Err(TunnelError::Bond { port });
        }
        if uplink.qos.is_some() {
            return Err(TunnelError::Shaped { port });
        }
    }
    Ok(address)
}

/// A port of the gateway path: the uplink, the gateway bridge's own port, or the management port.
#[derive(Debug, Clone)]
pub struct NodePlace<'a> {
    /// The OVS port.
    pub port: Arc<Port>,
    /// Interface of the port.
    pub interface: Arc<Interface>,
    /// Mirrored ports of its bridge.
    pub mirrored: &'a Mirrored,
    /// Queueing discipline configured on the interface.
    pub queue: Option<String>,
}

/// Path of the node's own traffic and of that with the outside, on an eligible node. `places`: `None` where the port does not exist
/// yet.
pub fn gateway(
    gateway: Option<&Bridge>,
    places: &[Option<NodePlace<'_>>],
    exclusions: &FlowExclusions,
) -> PathStatus {
    let Some(bridge) = gateway else { return PathStatus::ovs("no gateway bridge yet") };
    let name = &bridge.name;
    if let Some(why) = exclusions.node.as_ref().or_else(|| exclusions.ports.values().next()) {
        return PathStatus::ovs(format!("gateway bridge {name}: {why}"));
    }
    if let Some(what) = exported(bridge) {
        return PathStatus::ovs(format!("gateway bridge {name} exports its packets by {what}"));
    }
    for place in places {
        let Some(NodePlace { port, interface, mirrored, queue }) = place else {
            return PathStatus::ovs("uplink, gateway bridge or management port is not complete yet");
        };
        let name = &port.name;
        if let Some(what) = mirrored.of_port(&port.uuid) {
            return PathStatus::ovs(format!("port {name} {what}"));
        }
        if port.interfaces.len() > 1 {
            return PathStatus::ovs(format!("OVS port {name} is a bond"));
        }
        if port.qos.is_some() {
            return PathStatus::ovs(format!("OVS port {name} has a QoS setting"));
        }
        if let Some(why) = policed(interface) {
            return PathStatus::ovs(format!("OVS interface {name} {why}"));
        }
        if let Some(kind) = queue {
            return PathStatus::ovs(format!(
                "interface {name} has queueing discipline `{kind}`, which the fast path bypasses"
            ));
        }
    }
    PathStatus::ebpf("eligible")
}

/// How a bridge exports its packets, if it does.
pub(super) fn exported(bridge: &Bridge) -> Option<&'static str> {
    let counted = [
        ("sFlow", bridge.sflow.is_some()),
        ("NetFlow", bridge.netflow.is_some()),
        ("IPFIX", bridge.ipfix.is_some()),
    ];
    counted.into_iter().find(|(_, on)| *on).map(|(what, _)| what)
}

/// What OVS does to the rate of an interface's packets, if anything.
pub(super) fn policed(interface: &Interface) -> Option<&'static str> {
    let limited = interface.ingress_policing_rate > 0 || interface.ingress_policing_kpkts_rate > 0;
    limited.then_some("has a rate limit (ingress policing)")
}

/// Inputs of the rules for one pod.
#[derive(Debug, Clone, Copy)]
pub struct Pod<'a> {
    /// OVS port of the pod.
    pub port: &'a Port,
    /// OVS interface of the pod.
    pub interface: &'a Interface,
    /// Value of the pod's annotation [`POD_PATH`].
    pub wanted: Option<&'a str>,
    /// Why the pod forwards packets of others instead of being their destination.
    pub forwards: Option<&'a str>,
    /// Queueing discipline configured on the pod's host veth.
    pub queue: Option<&'a str>,
}

/// Path of one pod's endpoint on an eligible node. `physical`: the paths of physical networks, by the ports of br-int that lead there.
pub fn endpoint(
    pod: Pod<'_>,
    mirrored: &Mirrored,
    exclusions: &FlowExclusions,
    physical: &BTreeMap<u32, PathStatus>,
) -> PathStatus {
    match pod.wanted {
        // The annotation overrides the detection of forwarding pods.
        Some("ebpf") => {}
        None => {
            if let Some(why) = pod.forwards {
                return PathStatus::ovs(why);
            }
        }
        Some("ovs") => return PathStatus::ovs(format!("requested by annotation {POD_PATH} of the pod")),
        Some(other) => {
            return PathStatus::ovs(format!("annotation {POD_PATH} is `{other}`; use `ovs` or `ebpf`"));
        }
    }
    if let Some(what) = mirrored.of_port(&pod.port.uuid) {
        return PathStatus::ovs(format!("the port {what}"));
    }
    if pod.port.qos.is_some() {
        return PathStatus::ovs("the OVS port has a QoS setting");
    }
    if let Some(why) = policed(pod.interface) {
        return PathStatus::ovs(format!("the OVS interface {why}"));
    }
    if let Some(kind) = pod.queue {
        return PathStatus::ovs(format!(
            "the host veth has queueing discipline `{kind}`, which the fast path bypasses"
        ));
    }
    if let Some(why) = concerning(pod.interface, exclusions) {
        return PathStatus::ovs(why);
    }
    let ways = number(pod.interface).and_then(|port| exclusions.on_physical.get(&port));
    for way in ways.into_iter().flatten() {
        match physical.get(way) {
            Some(path) if path.path == Path::Ebpf => {}
            Some(path) => {
                return PathStatus::ovs(format!(
                    "its network is on a physical network (localnet): {}",
                    path.reason
                ));
            }
            None => {
                return PathStatus::ovs(
                    "its network is on a physical network (localnet), whose bridge is not known yet",
                );
            }
        }
    }
    if pod.interface.ofport.is_none_or(|port| port <= 0) {
        return PathStatus::ovs("the OVS port is not open yet (no ofport)");
    }
    PathStatus::ebpf("eligible")
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::admin::Path;

    fn chassis(ids: &[(&str, &str)]) -> OpenVSwitch {
        let external_ids = ids.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        OpenVSwitch { external_ids, ..OpenVSwitch::default() }
    }

    fn tunnel_row(kind: &str, options: &[(&str, &str)]) -> Interface {
        let options = options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Interface { name: "ovn-n2-0".to_owned(), r#type: kind.to_owned(), options, ..Interface::default() }
    }

    #[test]
    fn an_ipv6_underlay_a_mirrored_or_shaped_uplink_and_a_missing_bridge_keep_the_tunnel_slow() {
        let v4 = chassis(&[("ovn-encap-ip", "172.18.0.2")]);
        let bridge = Bridge { name: "breth0".to_owned(), ..Bridge::default() };
        let port = Port { uuid: Uuid::new_v4(), name: "so-eth0".to_owned(), ..Port::default() };
        let none = Mirrored::default();
        let ask = |system: &OpenVSwitch, gateway, port: &Port, mirrored: &Mirrored| {
            tunnel_endpoint(system, gateway, Some(port), mirrored, std::iter::empty())
        };
        assert_eq!(ask(&v4, Some(&bridge), &port, &none), Ok(Ipv4Addr::new(172, 18, 0, 2)));
        let v6 = chassis(&[("ovn-encap-ip", "fd00::2")]);
        assert!(ask(&v6, Some(&bridge), &port, &none).unwrap_err().to_string().contains("underlay is IPv6"));
        assert!(ask(&chassis(&[]), Some(&bridge), &port, &none).unwrap_err().to_string().contains("not set"));
        assert!(ask(&v4, None, &port, &none).unwrap_err().to_string().contains("no gateway bridge"));
        let copied = Mirrored { ports: vec![(port.uuid, "m".to_owned())], ..Mirrored::default() };
        assert!(ask(&v4, Some(&bridge), &port, &copied).unwrap_err().to_string().contains("mirror m"));
        let shaped = Port { qos: Some(Uuid::new_v4()), ..port };
        assert!(ask(&v4, Some(&bridge), &shaped, &none).unwrap_err().to_string().contains("QoS"));
        let open = tunnel_row("geneve", &[("remote_ip", "flow")]);
        let why =
            tunnel_endpoint(&v4, Some(&bridge), None, &none, std::iter::once(&open)).unwrap_err().to_string();
        assert!(why.contains("tunnel ovn-n2-0 has no fixed remote_ip"), "{why}");
    }

    #[test]
    fn several_endpoints_and_tunnels_that_cannot_be_repeated_keep_the_node_slow() {
        let bridge = Bridge::default();
        let ask = |system: &OpenVSwitch, rows: &[Interface]| {
            node(system, &bridge, &FlowExclusions::default(), rows.iter())
        };
        let geneve = chassis(&[("ovn-encap-type", "geneve"), ("ovn-encap-ip", "172.18.0.2")]);
        let plain = tunnel_row("geneve", &[("remote_ip", "172.18.0.3"), ("key", "flow"), ("csum", "false")]);
        assert_eq!(ask(&geneve, &[plain, tunnel_row("", &[]), tunnel_row("patch", &[("peer", "x")])]), None);
        let two = chassis(&[("ovn-encap-ip", "172.18.0.2,172.19.0.2")]);
        assert!(ask(&two, &[]).unwrap().contains("several tunnel endpoints"));
        let both = chassis(&[("ovn-encap-type", "geneve,vxlan")]);
        assert!(ask(&both, &[]).unwrap().contains("`geneve,vxlan`"));
        for (row, why) in [
            (tunnel_row("vxlan", &[]), "is of type vxlan"),
            (tunnel_row("geneve", &[("remote_name", "n2")]), "inside IPsec"),
            (tunnel_row("geneve", &[("ttl", "inherit")]), "ttl=inherit"),
        ] {
            assert!(ask(&geneve, &[row]).unwrap().contains(why), "{why}");
        }
    }

    #[test]
    fn a_bridge_that_reports_its_packets_keeps_the_node_slow() {
        let system = chassis(&[]);
        let bridge = Bridge { netflow: Some(Uuid::new_v4()), ..Bridge::default() };
        assert!(
            node(&system, &bridge, &FlowExclusions::default(), std::iter::empty())
                .unwrap()
                .contains("NetFlow")
        );
    }

    #[test]
    fn a_mirror_that_takes_all_takes_every_port_and_one_of_another_bridge_none() {
        let mirror =
            Mirror { uuid: Uuid::new_v4(), name: "m".to_owned(), select_all: true, ..Mirror::default() };
        let bridge = Bridge { mirrors: [mirror.uuid].into(), ..Bridge::default() };
        let port = Port { uuid: Uuid::new_v4(), ..Port::default() };
        let interface = Interface { ofport: Some(3), ..Interface::default() };
        let pod = Pod { port: &port, interface: &interface, wanted: None, forwards: None, queue: None };
        let of = |bridge: &Bridge| {
            endpoint(
                pod,
                &Mirrored::of(bridge, std::iter::once(&mirror)),
                &FlowExclusions::default(),
                &BTreeMap::new(),
            )
            .path
        };
        assert_eq!(of(&bridge), Path::Ovs);
        assert_eq!(of(&Bridge::default()), Path::Ebpf);
    }

    #[test]
    fn a_port_that_gets_the_copies_of_a_mirror_is_slow_and_so_is_one_that_a_mirror_selects_in_either_direction()
     {
        let [source, destination, output, other] = [0; 4].map(|_| Uuid::new_v4());
        let mirror = Mirror {
            uuid: Uuid::new_v4(),
            name: "m".to_owned(),
            select_src_port: [source].into(),
            select_dst_port: [destination].into(),
            output_port: Some(output),
            ..Mirror::default()
        };
        let bridge = Bridge { mirrors: [mirror.uuid].into(), ..Bridge::default() };
        let mirrored = Mirrored::of(&bridge, std::iter::once(&mirror));
        let interface = Interface { ofport: Some(3), ..Interface::default() };
        let path = |uuid| {
            let port = Port { uuid, ..Port::default() };
            let pod = Pod { port: &port, interface: &interface, wanted: None, forwards: None, queue: None };
            endpoint(pod, &mirrored, &FlowExclusions::default(), &BTreeMap::new())
        };
        for selected in [source, destination] {
            assert_eq!(path(selected), PathStatus::ovs("the port is mirrored (mirror m)"));
        }
        assert_eq!(path(output), PathStatus::ovs("the port gets nothing but the copies of mirror m"));
        assert_eq!(path(other).path, Path::Ebpf);
    }

    #[test]
    fn a_mirror_that_may_copy_packets_of_fast_ports_keeps_the_node_slow() {
        let [pod, patch] = [0; 2].map(|_| Uuid::new_v4());
        let ruled = [pod].into();
        let mirror = Mirror { uuid: Uuid::new_v4(), name: "m".to_owned(), ..Mirror::default() };
        let bridge = Bridge { mirrors: [mirror.uuid].into(), ..Bridge::default() };
        let ask = |mirror: Mirror, marked| {
            copies("br-int", &Mirrored::of(&bridge, std::iter::once(&mirror)), &ruled, marked)
        };
        let from = |port| Mirror { select_src_port: [port].into(), ..mirror.clone() };
        let to = |port| Mirror { select_dst_port: [port].into(), ..mirror.clone() };
        let all = Mirror { select_all: true, ..mirror.clone() };
        let tagged = Mirror { select_vlan: [5].into(), ..mirror.clone() };
        // What such a pod sends has no number, as the pod is slow.
        assert_eq!((ask(from(pod), true), ask(from(pod), false)), (None, None));
        // Tunnels and patch ports: no rule of a port says anything of them.
        for marked in [true, false] {
            for one in [from(patch), to(patch)] {
                assert!(ask(one, marked).unwrap().contains("packets of any pod"));
            }
        }
        for one in [to(pod), all, tagged] {
            assert!(ask(one.clone(), true).unwrap().contains("numbers"));
            assert_eq!(ask(one, false), None);
        }
        assert_eq!(ask(Mirror { output_port: Some(patch), ..mirror.clone() }, true), None);
        let elsewhere = Mirrored::of(&Bridge::default(), std::iter::once(&to(pod)));
        assert_eq!(copies("br-int", &elsewhere, &ruled, true), None);
    }

    #[test]
    fn a_pods_port_that_is_logged_is_slow_alone_and_a_port_of_the_node_makes_all_slow() {
        let exclusions = FlowExclusions {
            ports: [(3, "logged".to_owned())].into(),
            on_physical: [5, 6, 7].map(|port| (port, BTreeSet::from([port + 35]))).into(),
            ..FlowExclusions::default()
        };
        let row = |ids: &[(&str, &str)], number| {
            let external_ids =
                ids.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            Interface { external_ids, ofport: Some(number), ..Interface::default() }
        };
        let ids = [("iface-id", "red_a"), ("sandbox", "c1")];
        let path = |number| {
            let (port, interface) = (Port::default(), row(&ids, number));
            let pod = Pod { port: &port, interface: &interface, wanted: None, forwards: None, queue: None };
            let physical =
                [(41, PathStatus::ebpf("eligible")), (42, PathStatus::ovs("it is mirrored"))].into();
            endpoint(pod, &Mirrored::default(), &exclusions, &physical)
        };
        assert_eq!((path(3), path(4).path), (PathStatus::ovs("logged"), Path::Ebpf));
        assert!(path(5).path == Path::Ovs && path(5).reason.contains("not known yet"));
        assert_eq!(path(6).path, Path::Ebpf);
        assert!(path(7).path == Path::Ovs && path(7).reason.ends_with("(localnet): it is mirrored"));
        let ask = |rows: &[Interface]| node(&chassis(&[]), &Bridge::default(), &exclusions, rows.iter());
        assert_eq!(ask(&[row(&ids, 3), row(&[], 4)]), None);
        assert!(ask(&[row(&[], 3)]).unwrap().contains("logged"));
        assert_eq!(ask(&[row(&[], 5)]), None, "what another port of such a switch sends is its own");
    }

    #[test]
    fn what_the_fast_path_cannot_repeat_at_a_port_of_the_gateway_keeps_its_traffic_slow_with_the_ports_name()
    {
        let bridge = Bridge { name: "breth0".to_owned(), ..Bridge::default() };
        let none = Mirrored::default();
        let port = |name: &str| Port { uuid: Uuid::new_v4(), name: name.to_owned(), ..Port::default() };
        let place = |port: Port, interface: Interface, mirrored, queue: Option<&str>| {
            let queue = queue.map(str::to_owned);
            Some(NodePlace { port: Arc::new(port), interface: Arc::new(interface), mirrored, queue })
        };
        let plain = |name| place(port(name), Interface::default(), &none, None);
        let ask =
            |places: &[Option<NodePlace<'_>>]| gateway(Some(&bridge), places, &FlowExclusions::default());
        assert_eq!(ask(&[plain("eth0"), plain("breth0"), plain("ovn-k8s-mp0")]).path, Path::Ebpf);
        let mirrored_port = port("eth0");
        let copied = Mirrored { ports: vec![(mirrored_port.uuid, "m".to_owned())], ..Mirrored::default() };
        let bond = Port { interfaces: [Uuid::new_v4(), Uuid::new_v4()].into(), ..port("bond0") };
        let shaped = Port { qos: Some(Uuid::new_v4()), ..port("breth0") };
        let limited = Interface { ingress_policing_rate: 1, ..Interface::default() };
        for (last, why) in [
            (place(mirrored_port, Interface::default(), &copied, None), "port eth0 is mirrored (mirror m)"),
            (place(bond, Interface::default(), &none, None), "port bond0 is a bond"),
            (place(shaped, Interface::default(), &none, None), "port breth0 has a QoS setting"),
            (place(port("breth0"), limited, &none, None), "interface breth0 has a rate limit"),
            (place(port("breth0"), Interface::default(), &none, Some("tbf")), "discipline `tbf`"),
            (None, "not complete yet"),
        ] {
            let path = ask(&[plain("eth0"), last]);
            assert!(path.path == Path::Ovs && path.reason.contains(why), "{why}: {path:?}");
        }
        let logging = FlowExclusions {
            node: Some("2 flows of the bridge log".to_owned()),
            ..FlowExclusions::default()
        };
        let path = gateway(Some(&bridge), &[plain("eth0")], &logging);
        assert_eq!(path, PathStatus::ovs("gateway bridge breth0: 2 flows of the bridge log"));
        let counted = Bridge { ipfix: Some(Uuid::new_v4()), ..bridge.clone() };
        assert!(gateway(Some(&counted), &[], &FlowExclusions::default()).reason.contains("IPFIX"));
        assert_eq!(gateway(None, &[], &FlowExclusions::default()).path, Path::Ovs);
    }

    #[test]
    fn a_geneve_tunnel_without_a_fixed_other_end_accepts_any_remote() {
        let row = |kind: &str, remote_ip: Option<&str>| {
            let options: Vec<_> = remote_ip.map(|remote| ("remote_ip", remote)).into_iter().collect();
            tunnel_row(kind, &options)
        };
        assert!(accepts_any_remote(&row("geneve", Some("flow"))));
        assert!(accepts_any_remote(&row("geneve", None)));
        assert!(!accepts_any_remote(&row("geneve", Some("172.18.0.3"))));
        assert!(!accepts_any_remote(&row("geneve", Some("fd00::3"))));
        assert!(!accepts_any_remote(&row("vxlan", Some("flow"))));
    }
}
