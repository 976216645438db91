//! The packet of a trace: as ovn-trace reads it, as an operator reads it, and as the agents of nodes are asked about it.

use std::net::{IpAddr, SocketAddr};

use api::MacAddr;
use api::admin::{Action, AuditReply, Flow, Outcome, TunnelEnd};
use api::ovn_name::pod_port;

use super::objects::{Backend, Pod, Target};
use crate::client::Error;
use crate::cluster::Reach;

/// The packet for ovn-trace (ovn-sb(5), Logical_Flow).
pub(super) fn microflow(
    from: &Pod,
    to: &Target,
    destination: SocketAddr,
    source_port: u16,
    protocol: &str,
) -> Result<String, Error> {
    let near = |ip: IpAddr| shares_prefix(from.address, from.prefix, ip);
    let next = match to {
        Target::Pod(pod) if near(pod.address) => pod.mac.clone(),
        _ => {
            let gateway = from.gateway.ok_or_else(|| {
                Error::Usage(format!("pod {}/{}: its annotation names no gateway", from.namespace, from.name))
            })?;
            MacAddr::from_ip(gateway).to_string()
        }
    };
    let ip = if from.address.is_ipv6() { "ip6" } else { "ip4" };
    Ok(format!(
        "inport == \"{}\" && eth.src == {} && eth.dst == {next} && {ip}.src == {} && {ip}.dst == {} && ip.ttl == 64 && \
         {protocol}.src == {source_port} && {protocol}.dst == {}",
        pod_port(&from.namespace, &from.name),
        from.mac,
        from.address,
        destination.ip(),
        destination.port()
    ))
}

/// Whether two addresses share their first bits.
pub(super) fn shares_prefix(one: IpAddr, prefix: u8, other: IpAddr) -> bool {
    let bits = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => u128::from(u32::from(ip)) << 96,
        IpAddr::V6(ip) => u128::from(ip),
    };
    let differing = (bits(one) ^ bits(other)).leading_zeros();
    one.is_ipv4() == other.is_ipv4() && differing >= u32::from(prefix)
}

/// What the flow cache of a node has of a pod's packets to `destination`, whatever their source port is.
pub(super) fn cached(
    reach: &Reach,
    node: &str,
    endpoint: &str,
    protocol: &str,
    source: IpAddr,
    destination: SocketAddr,
) -> Vec<String> {
    let words = ["slipctl", "-o", "json", "flows", "--limit", "1000000", "--endpoint", endpoint];
    let flows: Vec<Flow> = match asked(reach, node, &words) {
        Ok(flows) => flows,
        Err(error) => return vec![format!("flow cache: {error}")],
    };
    let is = |flow: &&Flow| {
        let spec = flow.flow;
        spec.protocol.name() == protocol && spec.source.ip() == source && spec.destination == destination
    };
    let lines: Vec<String> =
        flows.iter().filter(is).map(|flow| format!("flow cache: {}", entry(flow))).collect();
    match lines.is_empty() {
        true => vec![format!("flow cache: no entry of {endpoint} for packets to {destination}")],
        false => lines,
    }
}

/// An entry of the cache in a line.
fn entry(flow: &Flow) -> String {
    let end = |end: &TunnelEnd| end.node.clone().unwrap_or_else(|| end.remote.to_string());
    let action = match &flow.action {
        Action::Tunnel(to) => format!("tunnel to {}", end(to)),
        Action::Local { to, pod } => format!("local to {}", pod.as_ref().unwrap_or(to)),
        Action::Deliver(from) => format!("deliver from {}", end(from)),
    };
    let to = flow.translated.map(|to| format!(", translated to {}", to.destination)).unwrap_or_default();
    let state = if flow.valid { "valid" } else { "not in use" };
    format!("from port {}: {action}{to}, {} packets, {state}", flow.flow.source.port(), flow.packets)
}

/// What OVS of a node says of a flow that it does not translate (`ofproto/trace`).
pub(super) fn by_ovs(
    reach: &Reach,
    node: &str,
    protocol: &str,
    source: SocketAddr,
    destination: SocketAddr,
) -> Vec<String> {
    let (source, destination) = (source.to_string(), destination.to_string());
    let words = ["slipctl", "-o", "json", "audit", protocol, &source, &destination];
    let reply: AuditReply = match asked(reach, node, &words) {
        Ok(reply) => reply,
        Err(error) => return vec![format!("OVS: {error}")],
    };
    let shown = |Outcome { kind, to, .. }: &Outcome| match to {
        Some(to) => format!("OVS: {kind} {to}"),
        None => format!("OVS: {kind}"),
    };
    let none = "OVS: no answer";
    reply.flows.iter().map(|flow| flow.ovs.as_ref().map_or_else(|| none.to_owned(), shown)).collect()
}

/// An answer of slipctl on a node, as JSON.
fn asked<T: serde::de::DeserializeOwned>(reach: &Reach, node: &str, words: &[&str]) -> Result<T, String> {
    let text = reach.on_node(node, words).map_err(|error| error.to_string())?;
    serde_json::from_str(&text).map_err(|error| format!("node {node}: {error}"))
}

/// The packet with the objects at its ends.
pub(super) fn described(
    from: &Pod,
    to: &Target,
    destination: SocketAddr,
    backend: Option<&Backend>,
    protocol: &str,
) -> String {
    let Pod { namespace, name, node, address, .. } = from;
    let end = match to {
        Target::Pod(pod) => format!("pod {}/{} on {}", pod.namespace, pod.name, pod.node),
        Target::Service { name, .. } => format!("service {name}"),
        Target::Address(_) => "address".to_owned(),
    };
    let backend = backend.map(|backend| format!(", backend {}", backend.address)).unwrap_or_default();
    format!("{protocol} from pod {namespace}/{name} on {node} ({address}) to {end} ({destination}{backend})")
}
