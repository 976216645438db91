//! The ends of a trace, from the objects of the cluster.

use std::net::{IpAddr, SocketAddr};

use serde_json::Value;

use crate::client::Error;
use crate::cluster::Reach;

/// A pod with an address of the cluster's network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pod {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) node: String,
    pub(super) address: IpAddr,
    pub(super) mac: String,
    /// The gateway whose address the MAC of the router's port is made of: that of IPv4, where there is one.
    pub(super) gateway: Option<IpAddr>,
    /// Prefix length of the node's range.
    pub(super) prefix: u8,
    pub(super) labels: Value,
}

/// A ready endpoint of a service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Backend {
    pub(super) address: SocketAddr,
    pub(super) node: Option<String>,
    /// `NAMESPACE/NAME` of the pod.
    pub(super) pod: Option<String>,
}

/// Where the packet is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    Pod(Pod),
    Service { name: String, address: SocketAddr, backends: Vec<Backend> },
    Address(IpAddr),
}

/// Parses `NAMESPACE/NAME`.
pub(super) fn name(text: &str) -> Result<(&str, &str), Error> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
            Ok((namespace, name))
        }
        _ => {
            Err(Error::Usage(format!("`{text}`: must be NAMESPACE/NAME of a pod or service, or an address")))
        }
    }
}

/// Reads a pod.
pub(super) fn pod(reach: &Reach, text: &str, ipv6: bool) -> Result<Pod, Error> {
    let (namespace, name) = name(text)?;
    of_pod(&reach.get(&["pod", "-n", namespace, name])?, ipv6)
}

/// See [`Pod::gateway`].
fn gateway(list: &Value) -> Option<IpAddr> {
    let all = list.as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter().filter_map(|ip| ip.as_str()?.parse().ok()).min_by_key(IpAddr::is_ipv6)
}

/// Reads the target: an address, a pod, or the service of that name.
pub(super) fn target(
    reach: &Reach,
    text: &str,
    ipv6: bool,
    port: Option<u16>,
    protocol: &str,
) -> Result<Target, Error> {
    if let Ok(address) = text.parse() {
        return Ok(Target::Address(address));
    }
    let (service, text) = match text.strip_prefix("service/") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (namespace, name) = name(text)?;
    if !service && let Ok(pod) = pod(reach, text, ipv6) {
        return Ok(Target::Pod(pod));
    }
    let object = reach.get(&["service", "-n", namespace, name]).map_err(|error| {
        Error::Usage(format!(
            "`{text}` is neither a pod with an address of the cluster's network nor a service: {error}"
        ))
    })?;
    let selector = format!("--selector=kubernetes.io/service-name={name}");
    let slices = reach.list(&["endpointslices", "-n", namespace, &selector])?;
    of_service(&object, &slices, ipv6, port, protocol)
}

fn of_pod(object: &Value, ipv6: bool) -> Result<Pod, Error> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
    let wrong = |why: &str| Error::Usage(format!("pod {namespace}/{name}: {why}"));
    if object.pointer("/spec/hostNetwork") == Some(&Value::Bool(true)) {
        return Err(wrong("it is on its node's own network, which has no logical port"));
    }
    let annotation = text("/metadata/annotations/k8s.ovn.org~1pod-networks");
    let networks: Value = serde_json::from_str(&annotation)
        .map_err(|_none| wrong("it has no annotation k8s.ovn.org/pod-networks yet; is it scheduled, and does the controller run?"))?;
    let network = &networks["default"];
    let of_family = |list: &Value| {
        let all = list.as_array().cloned().unwrap_or_default();
        let texts: Vec<String> = all.iter().filter_map(|ip| Some(ip.as_str()?.to_owned())).collect();
        texts.into_iter().find(|text| text.contains(':') == ipv6)
    };
    let address = of_family(&network["ip_addresses"])
        .ok_or_else(|| wrong(if ipv6 { "it has no IPv6 address" } else { "it has no IPv4 address" }))?;
    let (ip, prefix) = address.split_once('/').unwrap_or((&address, ""));
    Ok(Pod {
        node: text("/spec/nodeName"),
        address: ip.parse().map_err(|_not| wrong(&format!("`{address}` is no address")))?,
        prefix: prefix.parse().unwrap_or(if ipv6 { 64 } else { 24 }),
        mac: network["mac_address"].as_str().unwrap_or_default().to_owned(),
        gateway: gateway(&network["gateway_ips"]),
        labels: object["metadata"]["labels"].clone(),
        namespace,
        name,
    })
}

fn of_service(
    object: &Value,
    slices: &[Value],
    ipv6: bool,
    port: Option<u16>,
    protocol: &str,
) -> Result<Target, Error> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let name = format!("{}/{}", text("/metadata/namespace"), text("/metadata/name"));
    let wrong = |why: String| Error::Usage(format!("service {name}: {why}"));
    let addresses = object.pointer("/spec/clusterIPs").and_then(Value::as_array).cloned().unwrap_or_default();
    let address: IpAddr = addresses
        .iter()
        .filter_map(|ip| ip.as_str()?.parse().ok())
        .find(|ip: &IpAddr| ip.is_ipv6() == ipv6)
        .ok_or_else(|| wrong("it has no cluster address of that family".to_owned()))?;
    let ports = object.pointer("/spec/ports").and_then(Value::as_array).cloned().unwrap_or_default();
    let is = |p: &&Value| {
        p["protocol"].as_str().unwrap_or("TCP").eq_ignore_ascii_case(protocol)
            && port.is_none_or(|port| p["port"] == port)
    };
    let shown: Vec<String> =
        ports.iter().map(|p| format!("{} {}", p["protocol"].as_str().unwrap_or("TCP"), p["port"])).collect();
    let chosen = ports
        .iter()
        .find(is)
        .ok_or_else(|| wrong(format!("it has no such port ({protocol}); there are {}", shown.join(", "))))?;
    let number = chosen["port"].as_u64().and_then(|port| u16::try_from(port).ok()).unwrap_or_default();
    let mut backends = Vec::new();
    for slice in slices {
        let port = slice["ports"].as_array().and_then(|ports| {
            let named = |p: &&Value| {
                p["name"].as_str().unwrap_or_default() == chosen["name"].as_str().unwrap_or_default()
            };
            u16::try_from(ports.iter().find(named)?["port"].as_u64()?).ok()
        });
        for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
            if endpoint.pointer("/conditions/ready") == Some(&Value::Bool(false)) {
                continue;
            }
            let ips = endpoint["addresses"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|ip| ip.as_str()?.parse().ok());
            let node = endpoint["nodeName"].as_str().map(str::to_owned);
            let pod = endpoint.pointer("/targetRef/name").and_then(Value::as_str);
            let pod = pod.map(|pod| format!("{}/{pod}", text("/metadata/namespace")));
            let of = |ip| {
                Some(Backend { address: SocketAddr::new(ip, port?), node: node.clone(), pod: pod.clone() })
            };
            backends.extend(ips.filter(|ip: &IpAddr| ip.is_ipv6() == ipv6).filter_map(of));
        }
    }
    backends.sort_unstable();
    Ok(Target::Service { name, address: SocketAddr::new(address, number), backends })
}

/// Names of the policies of a namespace that select a pod for a direction, `Ingress` or `Egress`.
pub(super) fn selecting(policies: &[Value], labels: &Value, direction: &str) -> Vec<String> {
    let applies = |policy: &&Value| {
        let spec = &policy["spec"];
        let types = spec["policyTypes"].as_array();
        let of_type = match types {
            Some(types) => types.iter().any(|kind| kind == direction),
            None => direction == "Ingress" || spec.get("egress").is_some(),
        };
        of_type && selects(&spec["podSelector"], labels)
    };
    policies
        .iter()
        .filter(applies)
        .filter_map(|policy| Some(policy["metadata"]["name"].as_str()?.to_owned()))
        .collect()
}

/// Whether a label selector selects labels.
fn selects(selector: &Value, labels: &Value) -> bool {
    let empty = serde_json::Map::new();
    let wanted = selector["matchLabels"].as_object().unwrap_or(&empty);
    let expressions = selector["matchExpressions"].as_array().map(Vec::as_slice).unwrap_or_default();
    wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
        && expressions.iter().all(|expression| {
            let label = expression["key"].as_str().and_then(|key| labels.get(key));
            let values = expression["values"].as_array().map(Vec::as_slice).unwrap_or_default();
            match expression["operator"].as_str() {
                Some("In") => label.is_some_and(|label| values.contains(label)),
                Some("NotIn") => label.is_none_or(|label| !values.contains(label)),
                Some("Exists") => label.is_some(),
                Some("DoesNotExist") => label.is_none(),
                _ => false,
            }
        })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pods_logical_port_is_read_from_its_annotation() {
        let networks = r#"{"default":{"ip_addresses":["10.244.0.3/24","fd00::3/64"],"mac_address":"0a:58:0a:f4:00:03","gateway_ips":["10.244.0.1","fd00::1"]}}"#;
        let object = json!({"metadata": {"namespace": "shop", "name": "web", "labels": {"app": "web"},
            "annotations": {"k8s.ovn.org/pod-networks": networks}}, "spec": {"nodeName": "n1"}});
        let pod = of_pod(&object, false).unwrap();
        assert_eq!(
            (pod.address.to_string(), pod.prefix, pod.gateway),
            ("10.244.0.3".to_owned(), 24, "10.244.0.1".parse().ok())
        );
        let pod = of_pod(&object, true).unwrap();
        assert_eq!((pod.address.to_string(), pod.gateway), ("fd00::3".to_owned(), "10.244.0.1".parse().ok()));
        let host = json!({"metadata": {"namespace": "a", "name": "b"}, "spec": {"hostNetwork": true}});
        assert!(of_pod(&host, false).unwrap_err().to_string().contains("a/b"));
    }

    #[test]
    fn a_services_port_and_its_ready_backends_are_found() {
        let service = json!({"metadata": {"namespace": "shop", "name": "db"}, "spec": {"clusterIPs": ["10.96.0.7"],
            "ports": [{"name": "x", "port": 80, "protocol": "TCP"}, {"name": "y", "port": 53, "protocol": "UDP"}]}});
        let slice = json!({"ports": [{"name": "x", "port": 9000}], "endpoints": [
            {"addresses": ["10.244.1.3"], "conditions": {"ready": true}},
            {"addresses": ["10.244.1.4"], "conditions": {"ready": false}}]});
        let found = of_service(&service, &[slice], false, None, "tcp").unwrap();
        let Target::Service { address, backends, .. } = found else { panic!("{found:?}") };
        assert_eq!((address.to_string().as_str(), backends.len()), ("10.96.0.7:80", 1));
        assert_eq!(backends[0].address.to_string(), "10.244.1.3:9000");
        let wrong = of_service(&service, &[], false, Some(81), "tcp").unwrap_err().to_string();
        assert!(wrong.contains("TCP 80, UDP 53"), "{wrong}");
    }

    #[test]
    fn policies_that_select_a_pod_are_named() {
        let policies = [
            json!({"metadata": {"name": "all"}, "spec": {"podSelector": {}, "policyTypes": ["Ingress"]}}),
            json!({"metadata": {"name": "out"}, "spec": {"podSelector": {}, "policyTypes": ["Egress"]}}),
            json!({"metadata": {"name": "db"}, "spec": {"podSelector": {"matchLabels": {"app": "db"}}}}),
            json!({"metadata": {"name": "some"}, "spec": {"podSelector": {"matchExpressions": [
                {"key": "app", "operator": "NotIn", "values": ["db"]}]}}}),
        ];
        assert_eq!(selecting(&policies, &json!({"app": "web"}), "Ingress"), ["all", "some"]);
        assert_eq!(selecting(&policies, &json!({"app": "db"}), "Ingress"), ["all", "db"]);
        assert_eq!(selecting(&policies, &json!({}), "Egress"), ["out"]);
    }
}
