//! CHECK: verifies that a container is still connected as ADD left it. STATUS: reports whether ADD can be served.

use std::collections::{BTreeMap, BTreeSet};

use api::MacAddr;
use api::annotation::{PodNetwork, PodNetworks};
use api::cni::code;
use ipnet::IpNet;
use serde_json::Value;

use super::request::Call;
use super::{CniError, further};
use crate::attach::{self, Names};
use crate::kernel::netns::Netns;
use crate::node::Node;
use crate::ovs::ports::PodPort;
use crate::pod::pod_netns::{self, PodSide};

/// Executes CHECK, of all interfaces of the container.
///
/// # Errors
/// Everything that is missing or differs, with the interface.
pub async fn check(node: &Node, call: &Call) -> Result<(), CniError> {
    let prev = call.conf.prev_result.as_ref();
    let prev = prev.ok_or_else(|| CniError::new(code::INVALID_CONFIG, "CHECK: `prevResult` is missing"))?;
    let rows = node.ovs.ports_of(&call.container_id);
    let ports: Vec<PodPort> = rows.iter().filter_map(|row| PodPort::of(row)).collect();
    let annotation = call.pod().and_then(|key| node.pods.get(&key)?.networks);
    let networks = annotation.and_then(|text| PodNetworks::read(&text).ok());
    let others = networks.as_ref().map(|(_, others)| by_interface(others)).unwrap_or_default();
    // Interfaces of other plugins are none of this one's.
    let mut known: BTreeSet<&str> = others.keys().copied().collect();
    known.extend(ports.iter().filter(|port| !attach::is_first(&port.id())).map(|p| p.pod_interface.as_str()));
    let is_further = further::ports(node, call).is_some();
    let further: Vec<String> = in_pod(prev)
        .into_iter()
        .filter(|name| *name != call.ifname && known.contains(name.as_str()))
        .collect();
    let mut sides = vec![expected(prev, &call.ifname)?];
    for name in &further {
        sides.push(expected(prev, name)?);
    }
    // The result of a single interface has no routes; all are derived from the pod's annotation, if it still exists.
    for side in &mut sides {
        let network = match &networks {
            Some((default, _)) if side.ifname == call.ifname && !is_further => default.as_ref(),
            _ => others.get(side.ifname.as_str()).copied(),
        };
        side.routes = network.iter().flat_map(|n| &n.routes).map(|r| (r.dest, r.next_hop)).collect();
    }
    let netns = Netns::open(call.netns.as_deref().unwrap_or_default().as_ref())?;
    let mut wrong = pod_netns::differences(sides, &netns).await?;
    let ids = match is_further {
        true => ports.iter().filter(|port| port.pod_interface == call.ifname).map(PodPort::id).collect(),
        false => ports.iter().map(PodPort::id).chain([call.container_id.clone()]).collect(),
    };
    let own = is_further.then_some(call.ifname.as_str());
    let named: Vec<&str> = further.iter().map(String::as_str).chain(own).collect();
    wrong.extend(host_differences(node, &ids, &ports, &named).await?);
    if !is_further && !ports.iter().any(|port| attach::is_first(&port.id())) {
        wrong.push("the container has no OVS port".to_owned());
    }
    if wrong.is_empty() { Ok(()) } else { Err(CniError::failure(format!("CHECK: {}", wrong.join("; ")))) }
}

/// Entries of the annotation by the interface in the pod.
fn by_interface(others: &BTreeMap<String, PodNetwork>) -> BTreeMap<&str, &PodNetwork> {
    others.values().filter_map(|network| Some((network.interface.as_deref()?, network))).collect()
}

/// What is wrong on the node's side with the interfaces that have these ids. `further`: names in the pod of those beside the first.
async fn host_differences(
    node: &Node,
    ids: &BTreeSet<String>,
    ports: &[PodPort],
    further: &[&str],
) -> Result<Vec<String>, CniError> {
    let mut wrong = Vec::new();
    for id in ids {
        let names = Names::of(id);
        let port = ports.iter().find(|port| port.id() == *id);
        // The names of the first interface's links are those of the container.
        let whose = match port {
            Some(port) if !attach::is_first(id) => format!(" of {}", port.pod_interface),
            _ => String::new(),
        };
        match node.netlink.find(&names.host).await? {
            None => wrong.push(format!("interface {}{whose} is not on the node", names.host)),
            Some(link) if !link.up => wrong.push(format!("interface {}{whose} is down", names.host)),
            Some(_) => {}
        }
        for port in ports.iter().filter(|port| port.id() == *id) {
            if !node.ovs.is_on_integration_bridge(&port.name) {
                wrong.push(format!("OVS port {}{whose} is not on br-int", port.name));
            }
            // In interposed mode the OVS port is the shim's far end.
            if port.name != names.host && node.netlink.find(&port.name).await?.is_none() {
                wrong.push(format!("interface {}{whose} is not on the node", port.name));
            }
        }
    }
    let has_port = |name: &&&str| ports.iter().any(|port| port.pod_interface == **name);
    let without = further.iter().filter(|name| !has_port(name));
    wrong.extend(without.map(|name| format!("interface {name} of the container has no OVS port")));
    Ok(wrong)
}

/// Names of the interfaces in the container in `prevResult`.
fn in_pod(prev: &Value) -> Vec<String> {
    let list = prev.get("interfaces").and_then(Value::as_array);
    let named = |one: &Value| {
        let sandbox = one.get("sandbox").and_then(Value::as_str).unwrap_or_default();
        let name = one.get("name").and_then(Value::as_str)?;
        (!sandbox.is_empty()).then(|| name.to_owned())
    };
    list.into_iter().flatten().filter_map(named).collect()
}

/// Reads the expected state of an interface of the container from `prevResult`.
///
/// # Errors
/// `prevResult` does not describe the interface.
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
        takes_default: false,
        addresses_later: false,
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
    fn each_interface_has_the_addresses_of_its_own_index() {
        let prev = json!({
            "interfaces": [
                { "name": "h0", "mac": "02:00:00:00:00:01" },
                { "name": "eth0", "mac": "0a:58:0a:f4:00:04", "sandbox": "/x" },
                { "name": "h1", "mac": "02:00:00:00:00:02" },
                { "name": "net1", "mac": "0a:58:ac:10:01:03", "sandbox": "/x" },
            ],
            "ips": [
                { "address": "10.244.0.4/24", "interface": 1 },
                { "address": "172.16.1.3/24", "gateway": "172.16.1.1", "interface": 3 },
            ],
        });
        assert_eq!(in_pod(&prev), ["eth0", "net1"]);
        let of = |name| {
            let side = expected(&prev, name).unwrap();
            (side.mac.to_string(), side.addresses[0].to_string(), side.gateways.len())
        };
        assert_eq!(of("eth0"), ("0a:58:0a:f4:00:04".to_owned(), "10.244.0.4/24".to_owned(), 0));
        assert_eq!(of("net1"), ("0a:58:ac:10:01:03".to_owned(), "172.16.1.3/24".to_owned(), 1));
    }

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
        assert_eq!(in_pod(&prev), ["eth0"]);
        assert!(in_pod(&json!({ "interfaces": 5 })).is_empty());
        assert!(expected(&prev, "host").unwrap_err().msg.contains("no interface host"));
        assert_eq!(expected(&json!({}), "eth0").unwrap_err().code, code::INVALID_CONFIG);
        let bad = json!({ "interfaces": [{ "name": "eth0", "mac": "x", "sandbox": "/x" }] });
        assert!(expected(&bad, "eth0").unwrap_err().msg.contains("not a MAC"));
    }
}
