//! From Kubernetes objects to the index's structs. Everything that planning does not need is dropped here, before it is
//! kept; what users or other programs wrote wrongly becomes a [`Problem`] that names object and field.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use api::annotation::{
    self, AnnotationError, FamilyAddresses, GatewayConfig, GatewayConfigs, NodeSubnets, PodNetwork,
    PodNetworks,
};
use api::pod_attachments::{self, PodAttachments, RequestError, Selection};
use ipnet::IpNet;
use k8s_openapi::api::core::v1 as core;

use super::{ContainerPort, ExternalGateways, Namespace, Pod, Protocol};
use api::NamespacedName;
use api::problem::Problem;

/// A node as the API server has it.
#[derive(Debug, Clone, PartialEq)]
pub struct SeenNode {
    /// Name of the node.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// Creation time, seconds since the epoch: of two nodes with the same claim the older one wins.
    pub created: i64,
    /// Ranges in the annotation; `None` when there is none.
    pub subnets: Option<Result<Vec<IpNet>, AnnotationError>>,
    /// The ranges are in an older format and are to be written again.
    pub subnets_outdated: bool,
    /// Number in the annotation; `None` when there is none.
    pub id: Option<Result<u32, AnnotationError>>,
    /// Addresses of type `InternalIP` in the status.
    pub addresses: Vec<IpAddr>,
    /// OVS `system-id`, once the agent has reported it.
    pub chassis: Option<String>,
    /// Gateway configuration, once the agent has reported one that can be read.
    pub gateway: Option<GatewayConfig>,
    /// The gateway annotation exists and cannot be read.
    pub gateway_unreadable: bool,
    /// All addresses of the host, with prefix length.
    pub host_cidrs: Vec<IpNet>,
    /// The node's OVS segments packets in the userspace datapath ([`api::annotation::USERSPACE_TSO`]).
    pub userspace_tso: bool,
    /// Physical networks that it has a bridge for, beside that of its gateway.
    pub physical_networks: BTreeSet<String>,
    /// Labels of the Node.
    pub labels: BTreeMap<String, String>,
    /// The cluster's network, as the annotation describes it.
    pub cluster_network: Option<String>,
    /// Annotations of others that could not be read.
    pub problems: Vec<Problem>,
}

/// The StatefulSet that a pod belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatefulSet {
    /// `apiVersion` of its reference.
    pub api_version: String,
    /// Name of the StatefulSet.
    pub name: String,
    /// UID of the StatefulSet.
    pub uid: String,
}

/// A pod as the API server has it.
#[derive(Debug, Clone, PartialEq)]
pub struct SeenPod {
    /// Without addresses: the allocator keeps those.
    pub pod: Pod,
    /// Succeeded or Failed: its address is free for others.
    pub finished: bool,
    /// Creation time, seconds since the epoch; the order in which pods without an address get one.
    pub created: i64,
    /// Addresses in the annotation; `None` when there is none.
    pub networks: Option<Result<PodNetwork, AnnotationError>>,
    /// The entries of other networks in the annotation, by their keys.
    pub others: BTreeMap<String, PodNetwork>,
    /// The interfaces on other networks that it asks for.
    pub request: Result<PodAttachments, RequestError>,
    /// The NetworkAttachmentDefinitions that it names, of any plugin.
    pub selections: Result<Vec<Selection>, RequestError>,
    /// The StatefulSet that it belongs to.
    pub stateful_set: Option<StatefulSet>,
    /// The annotation is trusted: it existed when this controller started, and only a controller writes it.
    pub believed: bool,
}

fn malformed(key: &'static str, problem: impl Into<String>, value: &str) -> AnnotationError {
    AnnotationError::Malformed { key, problem: problem.into(), value: value.to_owned() }
}

/// Maximum number of a host's addresses that are used; each is a policy on the cluster router.
const MAX_HOST_CIDRS: usize = 256;

/// Reads a node.
pub fn node(object: core::Node) -> Option<SeenNode> {
    let name = object.metadata.name?;
    let annotations = object.metadata.annotations.unwrap_or_default();
    let mut problems = Vec::new();
    let mut note = |error: AnnotationError| {
        problems.push(Problem { object: format!("node {name}"), message: error.to_string() });
    };
    let gateway = annotations.get(annotation::L3_GATEWAY_CONFIG).and_then(|value| {
        let mut gateway = gateway(value, &name).map_err(&mut note).ok()?;
        if let Err(error) = second_uplink(&gateway, value, &name) {
            note(error);
            gateway.exgw_interface_id = None;
        }
        Some(gateway)
    });
    let gateway_unreadable = gateway.is_none() && annotations.contains_key(annotation::L3_GATEWAY_CONFIG);
    let host_cidrs = annotations.get(annotation::HOST_CIDRS).and_then(|value| {
        annotation::decode::<Vec<IpNet>>(annotation::HOST_CIDRS, value).map_err(&mut note).ok()
    });
    let host_cidrs = host_cidrs.map(|mut all| {
        if all.len() > MAX_HOST_CIDRS {
            let problem = format!("{} addresses; the first {MAX_HOST_CIDRS} are used", all.len());
            note(malformed(annotation::HOST_CIDRS, problem, ".."));
            all.truncate(MAX_HOST_CIDRS);
        }
        all
    });
    let physical_networks = annotations.get(annotation::PHYSICAL_NETWORKS).and_then(|value| {
        annotation::decode::<Vec<String>>(annotation::PHYSICAL_NETWORKS, value).map_err(&mut note).ok()
    });
    let physical_networks = physical_networks.map(|mut all| {
        if all.len() > annotation::MAX_PHYSICAL_NETWORKS {
            let most = annotation::MAX_PHYSICAL_NETWORKS;
            let problem = format!("{} names; the first {most} are used", all.len());
            note(malformed(annotation::PHYSICAL_NETWORKS, problem, ".."));
            all.truncate(most);
        }
        all.into_iter().collect()
    });
    let mut addresses: Vec<IpAddr> = Vec::new();
    for address in object.status.and_then(|status| status.addresses).unwrap_or_default() {
        match address.address.parse() {
            Ok(ip) if address.type_ == "InternalIP" => addresses.push(ip),
            _ => {}
        }
    }
    // Before the kubelet has reported addresses, the agent may have reported the main one.
    if addresses.is_empty()
        && let Some(value) = annotations.get(annotation::NODE_PRIMARY_IFADDR)
        && let Ok(main) =
            annotation::decode::<FamilyAddresses>(annotation::NODE_PRIMARY_IFADDR, value).map_err(&mut note)
    {
        addresses.extend([main.ipv4, main.ipv6].into_iter().flatten().map(|net| net.addr()));
    }
    let chassis = annotations.get(annotation::NODE_CHASSIS_ID).filter(|id| !id.is_empty()).cloned();
    let subnets = annotations.get(annotation::NODE_SUBNETS).map(|value| NodeSubnets::default_of(value));
    let subnets_outdated =
        annotations.get(annotation::NODE_SUBNETS).is_some_and(|value| NodeSubnets::is_outdated(value));
    let id = annotations.get(annotation::NODE_ID).map(|value| {
        value
            .parse()
            .map_err(|_bad| malformed(annotation::NODE_ID, "a decimal number from 2 is needed", value))
    });
    Some(SeenNode {
        uid: object.metadata.uid.unwrap_or_default(),
        created: object.metadata.creation_timestamp.map_or(0, |time| time.0.as_second()),
        subnets,
        subnets_outdated,
        id,
        addresses,
        chassis,
        gateway,
        gateway_unreadable,
        host_cidrs: host_cidrs.unwrap_or_default(),
        cluster_network: annotations.get(annotation::CLUSTER_NETWORK).cloned(),
        physical_networks: physical_networks.unwrap_or_default(),
        userspace_tso: annotations.get(annotation::USERSPACE_TSO).is_some_and(|value| value == "true"),
        labels: object.metadata.labels.unwrap_or_default(),
        problems,
        name,
    })
}

fn gateway(value: &str, node: &str) -> Result<GatewayConfig, AnnotationError> {
    let config = GatewayConfigs::default_of(value)?;
    if config.ip_addresses.is_empty() || config.interface_id.is_empty() {
        let problem = "`default.ip-addresses` and `default.interface-id` must not be empty";
        return Err(malformed(annotation::L3_GATEWAY_CONFIG, problem, value));
    }
    // A port of any other name could be a pod's, or another node's.
    let derived = api::ovn_name::localnet_port(&config.bridge_id, node);
    if config.interface_id != derived {
        let problem = format!(
            "`default.interface-id` is `{}`; `{derived}` is needed, which follows from bridge and node",
            config.interface_id
        );
        return Err(malformed(annotation::L3_GATEWAY_CONFIG, problem, value));
    }
    Ok(config)
}

/// Checks that the port of the second uplink has a name that no other port can have.
fn second_uplink(gateway: &GatewayConfig, value: &str, node: &str) -> Result<(), AnnotationError> {
    let Some(name) = gateway.second_uplink().map(|second| second.interface_id) else { return Ok(()) };
    let bridge = name.strip_suffix(node).and_then(|rest| rest.strip_suffix('_'));
    if bridge.is_some_and(|bridge| !bridge.is_empty()) && name != gateway.interface_id {
        return Ok(());
    }
    let problem = format!(
        "`default.exgw-interface-id` is `{name}`; the name of a bridge and `_{node}` are needed, and another bridge than the first \
         uplink's"
    );
    Err(malformed(annotation::L3_GATEWAY_CONFIG, problem, value))
}

/// Reads a pod; `None` while it is bound to no node.
pub fn pod(object: core::Pod) -> Option<SeenPod> {
    let name = NamespacedName::new(object.metadata.namespace?, object.metadata.name?);
    let spec = object.spec?;
    let node = spec.node_name.filter(|node| !node.is_empty())?;
    let created = object.metadata.creation_timestamp.map_or(0, |time| time.0.as_second());
    let status = object.status.unwrap_or_default();
    let finished = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    let ports = spec
        .containers
        .into_iter()
        .chain(restartable(spec.init_containers))
        .flat_map(|c| c.ports.unwrap_or_default());
    let status_ips = match status.pod_ips {
        Some(ips) if !ips.is_empty() => ips.into_iter().filter_map(|ip| ip.ip.parse().ok()).collect(),
        _ => status.pod_ip.and_then(|ip| ip.parse().ok()).into_iter().collect(),
    };
    let annotations = object.metadata.annotations.as_ref();
    let get = |key: &str| annotations?.get(key).map(String::as_str);
    let networks = get(annotation::POD_NETWORKS).map(PodNetworks::default_of);
    let others = get(annotation::POD_NETWORKS)
        .filter(|value| value.contains(annotation::ROLE_SECONDARY))
        .and_then(|value| PodNetworks::read(value).ok())
        .map(|(_, others)| others);
    let request = pod_attachments::parse(get);
    let selections =
        get(pod_attachments::SELECTIONS).map_or_else(|| Ok(Vec::new()), pod_attachments::selections);
    let owners = object.metadata.owner_references.into_iter().flatten();
    let set = owners
        .filter(|owner| owner.controller == Some(true))
        .find(|owner| owner.kind == "StatefulSet" && owner.api_version.split('/').next() == Some("apps"));
    Some(SeenPod {
        stateful_set: set.map(|set| StatefulSet {
            api_version: set.api_version,
            name: set.name,
            uid: set.uid,
        }),
        finished,
        created,
        networks,
        others: others.unwrap_or_default(),
        request,
        selections,
        believed: false,
        pod: Pod {
            name,
            uid: object.metadata.uid.unwrap_or_default(),
            created,
            node,
            host_network: spec.host_network.unwrap_or(false),
            labels: object.metadata.labels.unwrap_or_default(),
            addresses: Vec::new(),
            mac: None,
            attachments: Vec::new(),
            status_ips,
            ports: ports.filter_map(container_port).collect(),
        },
    })
}

/// Init containers that keep running beside the pod's containers.
fn restartable(containers: Option<Vec<core::Container>>) -> impl Iterator<Item = core::Container> {
    containers.into_iter().flatten().filter(|container| container.restart_policy.as_deref() == Some("Always"))
}

fn container_port(port: core::ContainerPort) -> Option<ContainerPort> {
    let positive = |port: i32| u16::try_from(port).ok().filter(|port| *port > 0);
    Some(ContainerPort {
        port: positive(port.container_port)?,
        protocol: Protocol::parse(port.protocol.as_deref())?,
        host_port: port.host_port.and_then(positive),
        host_ip: port.host_ip.and_then(|ip| ip.parse().ok()),
        name: port.name,
    })
}

/// Reads a namespace.
pub fn namespace(object: core::Namespace) -> Option<(Namespace, Vec<Problem>)> {
    let name = object.metadata.name?;
    let annotations = object.metadata.annotations.unwrap_or_default();
    let (external_gateways, problems) =
        ExternalGateways::read(|key| annotations.get(key).map(String::as_str));
    let problem = |message| Problem { object: format!("namespace {name}"), message };
    let problems = problems.into_iter().map(problem).collect();
    let labels = object.metadata.labels.unwrap_or_default();
    Some((Namespace { name, labels, external_gateways }, problems))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node_with(annotations: serde_json::Value) -> SeenNode {
        let object = serde_json::json!({ "metadata": { "name": "n1", "annotations": annotations } });
        node(serde_json::from_value(object).unwrap()).unwrap()
    }

    #[test]
    fn a_malformed_gateway_configuration_names_node_and_annotation_and_leaves_the_rest() {
        let seen = node_with(serde_json::json!({
            "k8s.ovn.org/l3-gateway-config": "{\"default\":{\"mode\":\"shared\"}}",
            "k8s.ovn.org/node-chassis-id": "c1",
        }));
        assert_eq!(seen.gateway, None);
        assert_eq!(seen.chassis.as_deref(), Some("c1"));
        assert_eq!(seen.problems.len(), 1);
        assert_eq!(seen.problems[0].object, "node n1");
        assert!(seen.problems[0].message.contains("l3-gateway-config"), "{}", seen.problems[0].message);
    }

    #[test]
    fn a_second_uplink_of_another_name_is_left_out_and_the_first_stays() {
        let with = |name: &str| {
            let config = serde_json::json!({"default": {"mode": "shared", "bridge-id": "b", "interface-id": "b_n1",
                "mac-address": "02:42:ac:12:00:02", "ip-addresses": ["172.18.0.2/16"], "next-hops": [],
                "node-port-enable": "true", "vlan-id": "0", "exgw-interface-id": name,
                "exgw-mac-address": "02:42:ac:13:00:02", "exgw-ip-addresses": ["172.19.0.2/16"]}});
            node_with(serde_json::json!({"k8s.ovn.org/l3-gateway-config": config.to_string()}))
        };
        let good = with("brx_n1");
        assert_eq!(
            (good.gateway.unwrap().second_uplink().unwrap().interface_id, good.problems),
            ("brx_n1", vec![])
        );
        // The uplink itself, another node's, a pod's, one of a bridge without name.
        for bad in ["b_n1", "brx_n2", "x_a", "_n1", "n1", "brxn1"] {
            let seen = with(bad);
            assert_eq!(seen.gateway.unwrap().second_uplink(), None, "{bad}");
            assert!(seen.problems[0].message.contains("exgw-interface-id"), "{:?}", seen.problems);
        }
    }

    #[test]
    fn a_nodes_physical_networks_are_read_up_to_a_number_and_what_is_no_list_is_told() {
        let seen =
            node_with(serde_json::json!({ "slipstream.dev/physical-networks": r#"["dc","storage"]"# }));
        assert_eq!(seen.physical_networks, ["dc".to_owned(), "storage".to_owned()].into());
        let many: Vec<String> = (0..100).map(|number| number.to_string()).collect();
        let many = serde_json::to_string(&many).unwrap();
        for (value, count) in [(many.as_str(), annotation::MAX_PHYSICAL_NETWORKS), ("dc", 0)] {
            let seen = node_with(serde_json::json!({ "slipstream.dev/physical-networks": value }));
            assert_eq!(seen.physical_networks.len(), count);
            assert!(seen.problems[0].message.contains("physical-networks"), "{:?}", seen.problems);
        }
    }

    #[test]
    fn a_node_id_that_is_no_number_is_an_error() {
        let seen = node_with(serde_json::json!({ "k8s.ovn.org/node-id": "two" }));
        assert!(seen.id.unwrap().unwrap_err().to_string().contains("decimal number"));
    }

    #[test]
    fn a_pod_without_a_node_is_not_seen() {
        let object = serde_json::json!({ "metadata": { "name": "a", "namespace": "x" }, "spec": { "containers": [] } });
        assert_eq!(pod(serde_json::from_value(object).unwrap()), None);
    }

    #[test]
    fn finished_pods_and_ports_are_read() {
        let object = serde_json::json!({
            "metadata": { "name": "a", "namespace": "x", "uid": "u" },
            "spec": { "nodeName": "n1", "containers": [{ "name": "c", "ports": [
                { "name": "http", "containerPort": 8080, "hostPort": 80, "hostIP": "10.0.0.1" },
                { "containerPort": 0 },
                { "containerPort": 53, "protocol": "UDP" },
            ] }] },
            "status": { "phase": "Succeeded", "podIPs": [{ "ip": "10.244.0.3" }] },
        });
        let seen = pod(serde_json::from_value(object).unwrap()).unwrap();
        assert!(seen.finished);
        assert_eq!(seen.pod.ports.len(), 2);
        assert_eq!(seen.pod.ports[0].host_port, Some(80));
        assert_eq!(seen.pod.ports[1].protocol, Protocol::Udp);
        assert_eq!(seen.pod.status_ips.len(), 1);
    }
}
