//! The packet of a trace: as ovn-trace reads it, as an operator reads it, and as the agents of nodes are asked about it.

use std::net::{IpAddr, SocketAddr};

use api::MacAddr;
use api::admin::{AuditReply, Outcome};
use api::ovn_name::pod_port;

use super::objects::{Pod, Target};
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

/// What flow cache and OVS of a node say of the flow.
pub(super) fn on_node(
    reach: &Reach,
    node: &str,
    protocol: &str,
    source: SocketAddr,
    destination: SocketAddr,
) -> Vec<String> {
    let (source, destination) = (source.to_string(), destination.to_string());
    let words = ["slipctl", "-o", "json", "audit", protocol, &source, &destination];
    let reply = reach.on_node(node, &words).map_err(|error| error.to_string());
    let reply =
        reply.and_then(|text| serde_json::from_str::<AuditReply>(&text).map_err(|error| error.to_string()));
    let reply = match reply {
        Ok(reply) => reply,
        Err(error) => return vec![format!("not asked: {error}")],
    };
    let outcome = |outcome: &Option<Outcome>, none: &str| {
        outcome.as_ref().map_or_else(
            || none.to_owned(),
            |o| [Some(o.kind.clone()), o.to.clone()].into_iter().flatten().collect::<Vec<_>>().join(" "),
        )
    };
    let mut lines = Vec::new();
    for flow in &reply.flows {
        lines.push(format!("flow cache: {}", outcome(&flow.remembered, "not cached")));
        lines.push(format!("OVS: {}", outcome(&flow.ovs, "no answer")));
        lines.extend(flow.why.iter().cloned());
    }
    lines
}

/// The packet with the objects at its ends.
pub(super) fn described(
    from: &Pod,
    to: &Target,
    destination: SocketAddr,
    backend: Option<SocketAddr>,
    protocol: &str,
) -> String {
    let Pod { namespace, name, node, address, .. } = from;
    let end = match to {
        Target::Pod(pod) => format!("pod {}/{} on {}", pod.namespace, pod.name, pod.node),
        Target::Service { name, .. } => format!("service {name}"),
        Target::Address(_) => "address".to_owned(),
    };
    let backend = backend.map(|backend| format!(", backend {backend}")).unwrap_or_default();
    format!("{protocol} from pod {namespace}/{name} on {node} ({address}) to {end} ({destination}{backend})")
}
