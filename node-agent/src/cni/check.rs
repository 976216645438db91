//! CHECK: verifies that a container is still connected as ADD left it. STATUS: reports whether ADD can be served.

use api::MacAddr;
use api::annotation::PodNetworks;
use api::cni::code;
use ipnet::IpNet;
use serde_json::Value;

use super::CniError;
use super::request::Call;
use crate::attach::Names;
use crate::kernel::netns::Netns;
use crate::node::Node;
use crate::pod::pod_netns::PodSide;

/// Executes CHECK.
///
/// # Errors
/// Everything that is missing or differs.
pub async fn check(node: &Node, call: &Call) -> Result<(), CniError> {
    let prev = call.conf.prev_result.as_ref();
    let prev = prev.ok_or_else(|| CniError::new(code::INVALID_CONFIG, "CHECK: `prevResult` is missing"))?;
    let mut side = expected(prev, &call.ifname)?;
    // Routes are not part of the result; they are derived from the pod's annotation, if it still exists.
    if let Some(info) = call.pod().and_then(|key| node.pods.get(&key))
        && let Some(Ok(network)) = info.networks.as_deref().map(PodNetworks::default_of)
    {
        side.routes = network.routes.iter().map(|r| (r.dest, r.next_hop)).collect();
    }
    let netns = Netns::open(call.netns.as_deref().unwrap_or_default().as_ref())?;
    let mut wrong = side.differences(&netns).await?;
    wrong.extend(host_differences(node, &call.container_id).await?);
    if wrong.is_empty() { Ok(()) } else { Err(CniError::failure(format!("CHECK: {}", wrong.join("; ")))) }
}

async fn host_differences(node: &Node, container: &str) -> Result<Vec<String>, CniError> {
    let names = Names::of(container);
    let mut wrong = Vec::new();
    match node.netlink.find(&names.host).await? {
        None => wrong.push(format!("interface {} is not on the node", names.host)),
        Some(link) if !link.up => wrong.push(format!("interface {} is down", names.host)),
        Some(_) => {}
    }
    let ports = node.ovs.ports_of(container);
    if ports.is_empty() {
        wrong.push("the container has no OVS port".to_owned());
    }
    for port in ports {
        if !node.ovs.is_on_integration_bridge(&port.name) {
            wrong.push(format!("OVS port {} is not on br-int", port.name));
        }
        // In interposed mode the OVS port is the shim's far end.
        if port.name != names.host && node.netlink.find(&port.name).await?.is_none() {
            wrong.push(format!("interface {} is not on the node", port.name));
        }
    }
    Ok(wrong)
}

/// Reads the expected state of the container's interface from `prevResult`.
pub fn expected(prev: &Value, ifname: &str) -> Result<PodSide, CniError> {
    let invalid = |what: String| CniError::new(code::INVALID_CONFIG, format!("prevResult: {what}"));
    let list = |key: &str| prev.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let interfaces = list("interfaces");
    let ours = |i: &Value| {
        text(i, "name").as_deref() == Some(ifname) && text(i, "sandbox").is_some_and(|s| !s.is_empty())
    };
    let position = interfaces.iter().position(ours);
    let position = position.ok_or_else(|| invalid(format!("no interface {ifname} with a sandbox")))?;
    let mac = text(&interfaces[position], "mac").unwrap_or_default();
    let mac: MacAddr = mac.parse().map_err(|e| invalid(format!("interface {ifname}: {e}")))?;
    let mut side = PodSide {
        ifname: ifname.to_owned(),
        mac,
        mac_is_set: true,
        addresses: Vec::new(),
        gateways: Vec::new(),
        routes: Vec::new(),
        complete_checksums: false,
    };
    for ip in list("ips") {
        let of_us =
            ip.get("interface").and_then(Value::as_u64).is_some_and(|i| usize::try_from(i) == Ok(position));
        if !of_us {
            continue;
        }
        let address = text(&ip, "address").unwrap_or_default();
        let parsed: IpNet = address.parse().map_err(|e| invalid(format!("address `{address}`: {e}")))?;
        side.addresses.push(parsed);
        if let Some(gateway) = text(&ip, "gateway") {
            side.gateways.push(gateway.parse().map_err(|e| invalid(format!("gateway `{gateway}`: {e}")))?);
        }
    }
    Ok(side)
}

/// Executes STATUS.
///
/// # Errors
/// ADD cannot be served; with all reasons.
pub fn status(node: &Node) -> Result<(), CniError> {
    let problems = node.problems();
    if problems.is_empty() { Ok(()) } else { Err(CniError::new(code::NOT_AVAILABLE, problems.join("; "))) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_the_containers_interface_counts_in_a_previous_result() {
        let prev = json!({
            "interfaces": [
                { "name": "host", "mac": "02:00:00:00:00:01" },
                { "name": "eth0", "mac": "0a:58:0a:f4:00:04", "sandbox": "/x" },
            ],
            "ips": [
                { "address": "10.244.0.4/24", "gateway": "10.244.0.1", "interface": 1 },
                { "address": "10.9.9.9/24", "interface": 0 },
            ],
        });
        let side = expected(&prev, "eth0").unwrap();
        assert_eq!((side.addresses.len(), side.gateways.len()), (1, 1));
        assert!(expected(&prev, "host").unwrap_err().msg.contains("no interface host"));
        assert_eq!(expected(&json!({}), "eth0").unwrap_err().code, code::INVALID_CONFIG);
        let bad = json!({ "interfaces": [{ "name": "eth0", "mac": "x", "sandbox": "/x" }] });
        assert!(expected(&bad, "eth0").unwrap_err().msg.contains("not a MAC"));
    }
}
