//! Who must not use the fast path, and why (the list is in `docs/datapath.md`). Decided from the Open_vSwitch database,
//! pod annotations and br-int's flows; no I/O.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use api::annotation::POD_PATH;
use ovsdb_client::Uuid;
use ovsdb_client::vswitch::{Bridge, Interface, Mirror, OpenVSwitch, Port};

use super::status::Reasoned;

/// Options of a tunnel that say where it goes and do not change from packet to packet. Others may.
const PLAIN_OPTIONS: [&str; 7] =
    ["remote_ip", "local_ip", "key", "csum", "dst_port", "df_default", "packet_type"];

/// Options that ovn-controller sets on a tunnel inside IPsec.
const IPSEC_OPTIONS: [&str; 6] =
    ["remote_name", "remote_cert", "psk", "ipsec_encapsulation", "certificate", "private_key"];

/// Ports of a bridge that a mirror copies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mirrored {
    /// Name of a mirror that takes the whole bridge.
    pub all: Option<String>,
    /// Ports that are selected, with the mirror's name.
    pub ports: Vec<(Uuid, String)>,
}

impl Mirrored {
    /// What the mirrors of `bridge` copy, of all `mirrors` there are.
    pub fn of<'a>(bridge: &Bridge, mirrors: impl Iterator<Item = &'a Mirror>) -> Self {
        let mut found = Self::default();
        for mirror in mirrors.filter(|m| bridge.mirrors.contains(&m.uuid)) {
            if mirror.select_all || !mirror.select_vlan.is_empty() {
                found.all.get_or_insert_with(|| mirror.name.clone());
            }
            let selected: BTreeSet<_> = mirror.select_src_port.union(&mirror.select_dst_port).collect();
            found.ports.extend(selected.into_iter().map(|port| (*port, mirror.name.clone())));
        }
        found
    }

    fn of_port(&self, port: &Uuid) -> Option<&str> {
        let selected = self.ports.iter().find(|(selected, _)| selected == port).map(|(_, name)| name);
        self.all.as_ref().or(selected).map(String::as_str)
    }
}

/// Why no pod of the node may use the fast path; `None` when they may.
pub fn node<'a>(
    system: &OpenVSwitch,
    integration: &Bridge,
    effects: Option<&str>,
    interfaces: impl Iterator<Item = &'a Interface>,
) -> Option<String> {
    if let Some(effects) = effects {
        return Some(effects.to_owned());
    }
    let counted = [
        ("sFlow", integration.sflow.is_some()),
        ("NetFlow", integration.netflow.is_some()),
        ("IPFIX", integration.ipfix.is_some()),
    ];
    if let Some((what, _)) = counted.into_iter().find(|(_, on)| *on) {
        return Some(format!("br-int reports its packets by {what}"));
    }
    let id = |key: &str| system.external_ids.get(key).map_or("", String::as_str);
    let kind = id("ovn-encap-type");
    if !matches!(kind, "" | "geneve") {
        return Some(format!("ovn-encap-type is `{kind}`; the fast path knows `geneve` alone"));
    }
    if id("ovn-encap-ip").contains(',') {
        return Some(format!("several tunnel endpoints (ovn-encap-ip is `{}`)", id("ovn-encap-ip")));
    }
    let tos = id("ovn-encap-tos");
    if !matches!(tos, "" | "0") {
        return Some(format!("ovn-encap-tos is `{tos}`: the outer header depends on the packet"));
    }
    interfaces.filter_map(tunnel).next()
}

/// Why this tunnel keeps the node off the fast path.
fn tunnel(row: &Interface) -> Option<String> {
    let kind = row.r#type.as_str();
    let known = match kind {
        "geneve" => true,
        "vxlan" | "stt" | "gre" | "ip6gre" | "lisp" | "erspan" | "ip6erspan" | "gtpu" | "srv6"
        | "bareudp" => false,
        _ => return None,
    };
    if !known {
        return Some(format!("tunnel {} is of type {kind}; the fast path knows geneve alone", row.name));
    }
    if let Some(option) = IPSEC_OPTIONS.iter().find(|option| row.options.contains_key(**option)) {
        return Some(format!("tunnel {} is inside IPsec (option `{option}`)", row.name));
    }
    let odd = row.options.iter().find(|(option, _)| !PLAIN_OPTIONS.contains(&option.as_str()))?;
    Some(format!("tunnel {} has option {}={}, which the fast path cannot repeat", row.name, odd.0, odd.1))
}

/// Why no packet may cross the tunnel on the fast path; the tunnel endpoint's address otherwise.
pub fn tunnel_endpoint(
    system: &OpenVSwitch,
    gateway: Option<&Bridge>,
    uplink: Option<&Port>,
    mirrored: &Mirrored,
) -> Result<Ipv4Addr, String> {
    let text = system.external_ids.get("ovn-encap-ip").map_or("", String::as_str);
    let address = match text.parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) => address,
        Ok(IpAddr::V6(address)) => {
            return Err(format!(
                "the underlay is IPv6 (tunnel endpoint {address}); the fast path knows IPv4 alone"
            ));
        }
        Err(_) if text.is_empty() => {
            return Err("no tunnel endpoint yet (ovn-encap-ip is not set)".to_owned());
        }
        Err(error) => return Err(format!("ovn-encap-ip is `{text}`: {error}")),
    };
    let Some(gateway) = gateway else { return Err("no gateway bridge yet".to_owned()) };
    if let Some(uplink) = uplink {
        if let Some(mirror) = mirrored.of_port(&uplink.uuid) {
            return Err(format!("the uplink is mirrored (mirror {mirror} of bridge {})", gateway.name));
        }
        if uplink.qos.is_some() {
            return Err(format!("OVS port {} of the uplink has a QoS setting", uplink.name));
        }
    }
    Ok(address)
}

/// What is looked at of one pod.
#[derive(Debug, Clone, Copy)]
pub struct Pod<'a> {
    /// Its OVS port.
    pub port: &'a Port,
    /// Its OVS interface.
    pub interface: &'a Interface,
    /// Its annotation [`POD_PATH`].
    pub wanted: Option<&'a str>,
}

/// The path of one pod's endpoint when the node's is `ebpf`.
pub fn endpoint(pod: Pod<'_>, mirrored: &Mirrored) -> Reasoned {
    match pod.wanted {
        None | Some("ebpf") => {}
        Some("ovs") => return Reasoned::ovs(format!("annotation {POD_PATH} of the pod")),
        Some(other) => {
            return Reasoned::ovs(format!("annotation {POD_PATH} is `{other}`; `ovs` or `ebpf` is needed"));
        }
    }
    if let Some(mirror) = mirrored.of_port(&pod.port.uuid) {
        return Reasoned::ovs(format!("the port is mirrored (mirror {mirror})"));
    }
    if pod.port.qos.is_some() {
        return Reasoned::ovs("the OVS port has a QoS setting");
    }
    if pod.interface.ingress_policing_rate > 0 || pod.interface.ingress_policing_kpkts_rate > 0 {
        return Reasoned::ovs("the OVS interface limits its rate (ingress policing)");
    }
    if pod.interface.ofport.is_none_or(|port| port <= 0) {
        return Reasoned::ovs("OVS has not opened the port yet");
    }
    Reasoned::ebpf("nothing is against it")
}
