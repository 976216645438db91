//! The pods, services and policies of the suite, and the flows between them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use api::MacAddr;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use testbed::cluster::Bed;
use testbed::cluster::config::node_ip;
use testbed::pod;

use super::control::Control;
use super::flows::{Flow, From, Packet, Translation, ethernet, geneve};
use crate::random::Random;

pub(super) const NAMESPACE: &str = "scoped";
/// Names of the pods of n1 and n2.
pub(super) const LOCAL: [&str; 4] = ["a", "b", "c", "d"];
pub(super) const REMOTE: [&str; 4] = ["e", "f", "g", "h"];
/// Protocol, source port, destination port.
const PORTS: [(bool, u16, u16); 6] = [
    (false, 40000, 80),
    (false, 40001, 443),
    (false, 40002, 8080),
    (true, 40003, 53),
    (false, 8080, 40004),
    (false, 40005, 99),
];
const STATES: [&str; 3] = ["trk,new", "trk,est", "trk,est,rpl"];

/// What OVN calls a pod's port, and its addresses.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) port: String,
    pub(super) mac: MacAddr,
    pub(super) addresses: Vec<IpAddr>,
    /// OpenFlow port on its node.
    ofport: u32,
}

impl Member {
    /// The address of the family of another one.
    pub(super) fn address_like(&self, other: IpAddr) -> Option<IpAddr> {
        self.addresses.iter().copied().find(|address| address.is_ipv4() == other.is_ipv4())
    }

    /// The IPv4 address.
    pub(super) fn ip(&self) -> String {
        self.addresses.first().map(ToString::to_string).unwrap_or_default()
    }
}

/// Everything that is there before the first change.
pub(super) struct Scene {
    pub(super) members: BTreeMap<&'static str, Member>,
    /// Addresses of the services `web` and `sticky`.
    services: Vec<(String, Vec<IpAddr>)>,
    tunnels: BTreeMap<&'static str, u32>,
}

/// Creates or changes objects.
pub(super) fn apply(bed: &Bed, objects: &[Value]) -> Result<()> {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    bed.apply(&list.to_string())?;
    Ok(())
}

/// A pod with the label `role`.
pub(super) fn pod_of(bed: &Bed, name: &str, node: &str, role: &str) -> Result<Value> {
    let mut object = pod::with_image(bed, pod::manifest(NAMESPACE, name, Some(node)))?;
    object["metadata"]["labels"]["role"] = role.into();
    Ok(object)
}

/// A service of port 80.
pub(super) fn service(name: &str, role: &str, sticky: bool, dual: bool) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": {
        "selector": {"role": role}, "ports": [{"port": 80, "targetPort": 8080}],
        "ipFamilyPolicy": if dual { "PreferDualStack" } else { "SingleStack" },
        "sessionAffinity": if sticky { "ClientIP" } else { "None" },
    }})
}

/// A policy that lets these peers in.
pub(super) fn ingress(name: &str, role: &str, peers: &Value, ports: &Value) -> Value {
    let policy = json!({"podSelector": {"matchLabels": {"role": role}}, "policyTypes": ["Ingress"],
        "ingress": [{"from": peers, "ports": ports}]});
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": NAMESPACE}, "spec": policy})
}

impl Scene {
    pub(super) fn make(bed: &Bed) -> Result<Self> {
        let dual = bed.config().dual_stack;
        apply(bed, &[json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})])?;
        let mut objects = vec![service("web", "web", false, dual), service("sticky", "web", true, dual)];
        for (node, names) in [("n1", LOCAL), ("n2", REMOTE)] {
            for (at, name) in names.into_iter().enumerate() {
                let role = ["web", "client", "idle", "guarded"].get(at).copied().unwrap_or("idle");
                objects.push(pod_of(bed, name, node, role)?);
            }
        }
        objects.push(ingress(
            "guarded",
            "guarded",
            &json!([{"podSelector": {"matchLabels": {"role": "client"}}}, {"podSelector": {"matchLabels": {"role": "web"}}}]),
            &json!([{"port": 8080}, {"port": 80}]),
        ));
        apply(bed, &objects)?;
        pod::wait_ready(bed, NAMESPACE, Duration::from_secs(60))?;
        bed.nbctl(&["--wait=hv", "sync"])?;
        let mut members = BTreeMap::new();
        for (node, names) in [("n1", LOCAL), ("n2", REMOTE)] {
            for name in names {
                members.insert(name, member(bed, node, name)?);
            }
        }
        let services = ["web", "sticky"].map(|name| Ok((name.to_owned(), bed.cluster_ips(NAMESPACE, name)?)));
        let services = services.into_iter().collect::<Result<_>>()?;
        let mut tunnels = BTreeMap::new();
        for node in ["n1", "n2"] {
            let find = ["--bare", "--columns=ofport", "find", "interface", "type=geneve"];
            let port = bed.vsctl(node, &find)?;
            tunnels.insert(node, port.split_whitespace().next().context("no tunnel")?.parse()?);
        }
        Ok(Self { members, services, tunnels })
    }

    pub(super) fn member(&self, name: &str) -> Result<&Member> {
        self.members.get(name).with_context(|| format!("there is no pod {name}"))
    }

    /// Random flows that pass n1.
    pub(super) fn flows(&self, bed: &Bed, random: &mut Random, count: usize) -> Result<Vec<Flow>> {
        let mut far = Control::connect(bed, "n2")?;
        let mut flows = Vec::new();
        let mut tries = 0;
        while flows.len() < count && tries < count * 20 {
            tries += 1;
            let flow = match random.below(10) {
                0..=2 => self.between(random, &LOCAL, &REMOTE),
                3..=5 => self.of_far(random, &mut far)?,
                6 => self.between(random, &LOCAL, &LOCAL),
                7 | 8 => self.request(random),
                _ => self.reply(random, &mut far)?,
            };
            flows.extend(flow);
        }
        Ok(flows)
    }

    /// A packet from a pod of `from` to one of `to`, as it leaves the pod.
    fn sent(&self, random: &mut Random, from: &[&str], to: &[&str]) -> Option<(Packet, String)> {
        let (source, target) = (*random.pick(from)?, *random.pick(to)?);
        let (sender, receiver) = (self.members.get(source)?, self.members.get(target)?);
        let address = *random.pick(&sender.addresses)?;
        let (udp, sport, dport) = *random.pick(&PORTS)?;
        let state = *random.pick(&STATES)?;
        let gateway = gateway(address_v4(sender)?);
        let same = from == to;
        let packet = Packet {
            from: From::Port(sender.ofport),
            macs: (sender.mac, if same { receiver.mac } else { gateway }),
            addresses: (address, receiver.address_like(address)?),
            udp,
            ports: (sport, dport),
            ttl: 64,
            state,
        };
        let protocol = if udp { "udp" } else { "tcp" };
        (source != target)
            .then(|| (packet, format!("{source} to {target}, {protocol} {sport} to {dport}, {state}")))
    }

    fn between(&self, random: &mut Random, from: &[&str], to: &[&str]) -> Option<Flow> {
        let (packet, name) = self.sent(random, from, to)?;
        Some(Flow { name, packet, translation: Translation::None })
    }

    /// What n1 gets of a packet that a pod of n2 sends.
    fn of_far(&self, random: &mut Random, far: &mut Control) -> Result<Option<Flow>> {
        let Some((packet, name)) = self.sent(random, &REMOTE, &LOCAL) else { return Ok(None) };
        let packet = self.arrives(packet, far)?;
        Ok(packet.map(|packet| Flow { name, packet, translation: Translation::None }))
    }

    fn arrives(&self, mut packet: Packet, far: &mut Control) -> Result<Option<Packet>> {
        // What n2 lets through does not matter here.
        let actions =
            far.trace(&Packet { state: "trk,est,rpl", ..packet.clone() }.text(), &["trk,est,rpl"; 5])?;
        let Some(last) = actions.last() else { return Ok(None) };
        let Some((vni, option)) = geneve(last) else { return Ok(None) };
        let port = *self.tunnels.get("n1").context("no tunnel")?;
        packet.from = From::Tunnel { port, vni, option, underlay: (node_ip(2).into(), node_ip(1).into()) };
        if let (Some(source), Some(destination)) = (ethernet(&actions, "src"), ethernet(&actions, "dst")) {
            packet.macs = (source, destination);
            packet.ttl = 63;
        }
        Ok(Some(packet))
    }

    fn request(&self, random: &mut Random) -> Option<Flow> {
        let (mut packet, name) = self.sent(random, &LOCAL, &REMOTE)?;
        let (service, addresses) = random.pick(&self.services)?;
        let address = addresses.iter().copied().find(|a| a.is_ipv4() == packet.addresses.0.is_ipv4())?;
        packet.addresses.1 = address;
        (packet.udp, packet.ports.1, packet.state) = (false, 80, "trk,new");
        let client = name.split(' ').next().unwrap_or_default();
        Some(Flow {
            name: format!("{client} to service {service} {address}"),
            packet,
            translation: Translation::Request,
        })
    }

    fn reply(&self, random: &mut Random, far: &mut Control) -> Result<Option<Flow>> {
        let Some((mut packet, _)) = self.sent(random, &REMOTE[..1], &LOCAL) else { return Ok(None) };
        (packet.udp, packet.ports, packet.state) = (false, (8080, 40000), "trk,est,rpl");
        let Some((service, addresses)) = random.pick(&self.services) else { return Ok(None) };
        let like = |a: &IpAddr| a.is_ipv4() == packet.addresses.0.is_ipv4();
        let Some(address) = addresses.iter().copied().find(like) else { return Ok(None) };
        let name = format!("answer of e for service {service} {address} to {}", packet.addresses.1);
        let packet = self.arrives(packet, far)?;
        Ok(packet.map(|packet| Flow { name, packet, translation: Translation::Reply(address) }))
    }
}

fn address_v4(member: &Member) -> Option<IpAddr> {
    member.addresses.iter().copied().find(IpAddr::is_ipv4)
}

/// MAC address of the router's port on the switch of a pod's node: the first address of a /24.
fn gateway(address: IpAddr) -> MacAddr {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            MacAddr::from_ip(IpAddr::from([a, b, c, 1]))
        }
        IpAddr::V6(_) => MacAddr::from_ip(IpAddr::from([10, 244, 0, 1])),
    }
}

fn member(bed: &Bed, node: &str, name: &str) -> Result<Member> {
    let port = format!("{NAMESPACE}_{name}");
    let object: Pod = bed.read(NAMESPACE, name)?;
    let text = object.metadata.annotations.as_ref().and_then(|all| all.get("k8s.ovn.org/pod-networks"));
    let text = text.with_context(|| format!("pod {name} has no annotation of its networks"))?;
    let networks: Value =
        serde_json::from_str(text).with_context(|| format!("annotation of {name}: {text}"))?;
    let network = &networks["default"];
    let addresses = network["ip_addresses"].as_array().context("no addresses")?.iter();
    let addresses = addresses.filter_map(|text| text.as_str()?.split('/').next()?.parse().ok()).collect();
    let id = format!("external_ids:iface-id={port}");
    let ofport = bed.vsctl(node, &["--bare", "--columns=ofport", "find", "interface", &id])?;
    Ok(Member {
        port,
        mac: network["mac_address"].as_str().unwrap_or_default().parse()?,
        addresses,
        ofport: ofport.trim().parse().with_context(|| format!("port of {name}"))?,
    })
}
