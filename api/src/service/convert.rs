//! Reads Services and EndpointSlices.

use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1 as discovery;

use super::{
    Condition, EndpointPort, EndpointSlice, Hints, LABEL_HEADLESS, LABEL_PROXY_NAME, LABEL_SERVICE_NAME,
    Service, ServicePort, SliceEndpoint,
};
use crate::problem::{Problem, Problems};
use crate::{NamespacedName, Protocol};

/// Kubernetes' default of `sessionAffinityConfig.clientIP.timeoutSeconds`.
const DEFAULT_AFFINITY_SECONDS: u32 = 10_800;

impl Service {
    /// Reads a Service. Unusable parts are left out and reported as problems.
    pub fn from_object(object: &core::Service) -> (Self, Vec<Problem>) {
        let name = NamespacedName::from(&object.metadata);
        let mut problems = Problems::new("service", &name);
        let created = object.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second());
        let mut service = Self {
            name,
            created,
            cluster_ips: Vec::new(),
            external_ips: Vec::new(),
            ingress_ips: Vec::new(),
            source_ranges: Vec::new(),
            unreadable_ranges: false,
            ports: Vec::new(),
            external_local: false,
            internal_local: false,
            affinity: None,
            health_check_port: None,
        };
        let labels = object.metadata.labels.as_ref();
        let left_out =
            labels.is_some_and(|l| l.contains_key(LABEL_PROXY_NAME) || l.contains_key(LABEL_HEADLESS));
        let Some(spec) = object.spec.as_ref().filter(|_| !left_out) else {
            return (service, problems.into_inner());
        };
        let kind = spec.type_.as_deref().unwrap_or("ClusterIP");
        if kind == "ExternalName" {
            return (service, problems.into_inner());
        }
        service.cluster_ips = cluster_ips(spec, &mut problems);
        service.external_local =
            is_external(kind, spec) && spec.external_traffic_policy.as_deref() == Some("Local");
        service.internal_local = spec.internal_traffic_policy.as_deref() == Some("Local");
        if spec.session_affinity.as_deref() == Some("ClientIP") {
            let seconds = spec
                .session_affinity_config
                .as_ref()
                .and_then(|config| config.client_ip.as_ref())
                .and_then(|client| client.timeout_seconds)
                .and_then(|seconds| u32::try_from(seconds).ok());
            service.affinity = Some(seconds.unwrap_or(DEFAULT_AFFINITY_SECONDS));
        }
        service.health_check_port = spec
            .health_check_node_port
            .filter(|number| service.external_local && kind == "LoadBalancer" && *number != 0)
            .and_then(|number| problems.port("spec.healthCheckNodePort", number));
        for (i, text) in spec.external_ips.iter().flatten().enumerate() {
            service.external_ips.extend(ip(text, &format!("spec.externalIPs[{i}]"), &mut problems));
        }
        if kind == "LoadBalancer" {
            service.ingress_ips = ingress_ips(object, &mut problems);
            service.external_ips.extend(&service.ingress_ips);
            (service.source_ranges, service.unreadable_ranges) = source_ranges(spec, &mut problems);
        }
        let node_ports = matches!(kind, "NodePort" | "LoadBalancer");
        for (i, port) in spec.ports.iter().flatten().enumerate() {
            service.ports.extend(service_port(port, i, node_ports, &mut problems));
        }
        (service, problems.into_inner())
    }
}

/// Whether the service has an external address or a node port; without either `externalTrafficPolicy` has no meaning (as in
/// kube-proxy).
fn is_external(kind: &str, spec: &core::ServiceSpec) -> bool {
    matches!(kind, "NodePort" | "LoadBalancer")
        || spec.external_ips.as_ref().is_some_and(|ips| !ips.is_empty())
}

fn cluster_ips(spec: &core::ServiceSpec, problems: &mut Problems) -> Vec<IpAddr> {
    let first = spec.cluster_ip.as_deref().unwrap_or_default();
    if first.is_empty() || first == "None" {
        return Vec::new();
    }
    let mut found = Vec::new();
    for text in std::iter::once(first).chain(spec.cluster_ips.iter().flatten().map(String::as_str)) {
        if let Some(ip) = ip(text, "spec.clusterIPs", problems)
            && !found.contains(&ip)
        {
            found.push(ip);
        }
    }
    found
}

/// Addresses of the load balancer, without those whose load balancer terminates the connection itself (`ipMode: Proxy`).
fn ingress_ips(object: &core::Service, problems: &mut Problems) -> Vec<IpAddr> {
    let ingress =
        object.status.as_ref().and_then(|s| s.load_balancer.as_ref()).and_then(|b| b.ingress.as_ref());
    let mut found = Vec::new();
    for (i, ingress) in ingress.into_iter().flatten().enumerate() {
        if ingress.ip_mode.as_deref() == Some("Proxy") {
            continue;
        }
        if let Some(text) = ingress.ip.as_deref().filter(|text| !text.is_empty()) {
            found.extend(ip(text, &format!("status.loadBalancer.ingress[{i}].ip"), problems));
        }
    }
    found
}

/// The ranges, and whether there are unreadable ones. An unreadable range is reported as a problem and admits no client.
fn source_ranges(spec: &core::ServiceSpec, problems: &mut Problems) -> (Vec<IpNet>, bool) {
    let (mut found, mut unreadable) = (Vec::new(), false);
    for (i, text) in spec.load_balancer_source_ranges.iter().flatten().enumerate() {
        match text.trim().parse::<IpNet>() {
            Ok(net) => found.push(net.trunc()),
            Err(_) => {
                let problem = format!(
                    "`{text}` is not a CIDR such as 192.0.2.0/24; the entry is ignored and admits no source"
                );
                problems.add(format!("spec.loadBalancerSourceRanges[{i}]"), problem);
                unreadable = true;
            }
        }
    }
    (found, unreadable)
}

fn ip(text: &str, field: &str, problems: &mut Problems) -> Option<IpAddr> {
    let ip = text.parse().ok();
    if ip.is_none() {
        problems.add(field, format!("`{text}` is not an IP address"));
    }
    ip
}

fn protocol(text: Option<&str>, field: String, problems: &mut Problems) -> Option<Protocol> {
    let protocol = Protocol::parse(text);
    if protocol.is_none() {
        problems.add(
            field,
            format!("unknown protocol `{}`; supported: TCP, UDP, SCTP", text.unwrap_or_default()),
        );
    }
    protocol
}

fn service_port(
    port: &core::ServicePort,
    i: usize,
    node_ports: bool,
    problems: &mut Problems,
) -> Option<ServicePort> {
    let protocol = protocol(port.protocol.as_deref(), format!("spec.ports[{i}].protocol"), problems)?;
    let number = problems.port(format!("spec.ports[{i}].port"), port.port)?;
    let node_port = port
        .node_port
        .filter(|number| node_ports && *number != 0)
        .and_then(|number| problems.port(format!("spec.ports[{i}].nodePort"), number));
    Some(ServicePort { name: port.name.clone().unwrap_or_default(), protocol, port: number, node_port })
}

impl EndpointSlice {
    /// Reads an EndpointSlice. Unusable parts are left out and reported as problems; slices of host names have no endpoints.
    pub fn from_object(object: &discovery::EndpointSlice) -> (Self, Vec<Problem>) {
        let name = NamespacedName::from(&object.metadata);
        let mut problems = Problems::new("endpoint slice", &name);
        // A slice with one of these labels is not for service proxies, whatever the labels of its service (as in kube-proxy's watch).
        let labels = object
            .metadata
            .labels
            .as_ref()
            .filter(|l| ![LABEL_PROXY_NAME, LABEL_HEADLESS].iter().any(|k| l.contains_key(*k)));
        let service = labels.and_then(|labels| labels.get(LABEL_SERVICE_NAME)).cloned();
        let mut slice = Self { name, service, ports: Vec::new(), endpoints: Vec::new() };
        if object.address_type == "FQDN" {
            return (slice, problems.into_inner());
        }
        for (i, port) in object.ports.iter().flatten().enumerate() {
            let Some(protocol) =
                protocol(port.protocol.as_deref(), format!("ports[{i}].protocol"), &mut problems)
            else {
                continue;
            };
            let Some(number) = port.port.and_then(|number| problems.port(format!("ports[{i}].port"), number))
            else {
                continue;
            };
            slice.ports.push(EndpointPort {
                name: port.name.clone().unwrap_or_default(),
                protocol,
                port: number,
            });
        }
        for (i, endpoint) in object.endpoints.iter().enumerate() {
            // All addresses of an endpoint belong to the same endpoint, and only the first is to be used (EndpointSlice API).
            let Some(text) = endpoint.addresses.first() else { continue };
            let Some(address) = ip(text, &format!("endpoints[{i}].addresses[0]"), &mut problems) else {
                continue;
            };
            let condition = Condition::of(endpoint.conditions.as_ref());
            let hints = endpoint.hints.as_ref().map(Hints::of).unwrap_or_default();
            slice.endpoints.push(SliceEndpoint {
                address,
                node: endpoint.node_name.clone(),
                condition,
                hints,
            });
        }
        (slice, problems.into_inner())
    }
}

impl Hints {
    fn of(hints: &discovery::EndpointHints) -> Self {
        Self {
            zones: hints.for_zones.iter().flatten().map(|zone| zone.name.clone()).collect(),
            nodes: hints.for_nodes.iter().flatten().map(|node| node.name.clone()).collect(),
        }
    }
}

impl Condition {
    /// Absent means ready, serving and not terminating (EndpointSlice API). With `publishNotReadyAddresses` the slice
    /// controller sets ready, so no rule for it is needed here.
    fn of(conditions: Option<&discovery::EndpointConditions>) -> Self {
        let Some(conditions) = conditions else { return Self::Ready };
        let ready = conditions.ready.unwrap_or(true);
        if ready {
            Self::Ready
        } else if conditions.serving.unwrap_or(ready) && conditions.terminating.unwrap_or(false) {
            Self::Terminating
        } else {
            Self::NotReady
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn service(json: serde_json::Value) -> (Service, Vec<Problem>) {
        Service::from_object(&serde_json::from_value(json).unwrap())
    }

    fn slice(json: serde_json::Value) -> (EndpointSlice, Vec<Problem>) {
        EndpointSlice::from_object(&serde_json::from_value(json).unwrap())
    }

    fn balanced(spec: serde_json::Value, labels: serde_json::Value) -> bool {
        service(json!({"metadata": {"name": "s", "namespace": "n", "labels": labels}, "spec": spec}))
            .0
            .is_balanced()
    }

    #[test]
    fn headless_external_name_and_services_of_another_proxy_are_not_balanced() {
        let ports = json!([{"port": 80}]);
        assert!(balanced(json!({"clusterIP": "10.96.0.9", "ports": ports}), json!({})));
        assert!(!balanced(json!({"clusterIP": "None", "ports": ports}), json!({})));
        assert!(!balanced(json!({"ports": ports}), json!({})));
        assert!(!balanced(json!({"clusterIP": "10.96.0.9", "ports": []}), json!({})));
        assert!(!balanced(json!({"type": "ExternalName", "externalName": "a.b", "ports": ports}), json!({})));
        for label in [LABEL_PROXY_NAME, LABEL_HEADLESS] {
            assert!(
                !balanced(json!({"clusterIP": "10.96.0.9", "ports": ports}), json!({label: "x"})),
                "{label}"
            );
        }
    }

    #[test]
    fn node_ports_and_ingress_addresses_count_only_for_the_types_that_have_them() {
        let make = |kind: &str| {
            service(json!({"metadata": {"name": "s", "namespace": "n"},
                "spec": {"type": kind, "clusterIP": "10.96.0.9", "ports": [{"port": 80, "nodePort": 30080}]},
                "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}, {"ip": "192.0.2.2", "ipMode": "Proxy"}]}}}))
            .0
        };
        assert_eq!((make("ClusterIP").ports[0].node_port, make("ClusterIP").external_ips.len()), (None, 0));
        assert_eq!(
            (make("NodePort").ports[0].node_port, make("NodePort").external_ips.len()),
            (Some(30080), 0)
        );
        let balancer = make("LoadBalancer");
        assert_eq!(balancer.ports[0].node_port, Some(30080));
        assert_eq!(balancer.external_ips, ["192.0.2.1".parse::<IpAddr>().unwrap()]);
    }

    #[test]
    fn external_traffic_policy_counts_wherever_the_outside_has_an_address_or_port() {
        let local = |spec: serde_json::Value| {
            let mut object = json!({"metadata": {"name": "s", "namespace": "n"}, "spec": spec});
            object["spec"]["externalTrafficPolicy"] = "Local".into();
            object["spec"]["clusterIP"] = "10.96.0.9".into();
            service(object).0.external_local
        };
        assert!(local(json!({"type": "NodePort"})));
        assert!(local(json!({"type": "LoadBalancer"})));
        assert!(local(json!({"type": "ClusterIP", "externalIPs": ["192.0.2.1"]})));
        assert!(!local(json!({"type": "ClusterIP"})));
    }

    #[test]
    fn a_source_range_that_cannot_be_read_is_named_and_does_not_open_the_service() {
        let read = |ranges: serde_json::Value| {
            service(json!({"metadata": {"name": "s", "namespace": "n"}, "spec": {"type": "LoadBalancer",
                "clusterIP": "10.96.0.9", "loadBalancerSourceRanges": ranges, "ports": [{"port": 80}]}}))
        };
        let (service, problems) = read(json!(["10.0.0.0/33", " 192.0.2.0/24 "]));
        assert_eq!(service.source_ranges, ["192.0.2.0/24".parse::<IpNet>().unwrap()]);
        assert!(service.unreadable_ranges);
        assert_eq!(
            problems[0].message,
            "spec.loadBalancerSourceRanges[0]: `10.0.0.0/33` is not a CIDR such as 192.0.2.0/24; the entry is ignored and admits no source"
        );
        assert!(!read(json!(["192.0.2.0/24"])).0.unreadable_ranges);
        assert!(!read(json!([])).0.unreadable_ranges);
    }

    #[test]
    fn affinity_has_the_default_timeout_of_kubernetes() {
        let make = |spec: serde_json::Value| {
            service(json!({"metadata": {"name": "s", "namespace": "n"}, "spec": spec})).0.affinity
        };
        assert_eq!(make(json!({})), None);
        assert_eq!(make(json!({"sessionAffinity": "None"})), None);
        assert_eq!(make(json!({"sessionAffinity": "ClientIP"})), Some(10_800));
        let config = json!({"clientIP": {"timeoutSeconds": 125}});
        assert_eq!(make(json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": config})), Some(125));
    }

    #[test]
    fn malformed_parts_are_named_and_left_out() {
        let (service, problems) = service(json!({"metadata": {"name": "s", "namespace": "n"}, "spec": {
            "clusterIP": "10.96.0.9", "externalIPs": ["x"],
            "ports": [{"port": 0}, {"port": 80, "protocol": "ICMP"}, {"port": 81}]}}));
        assert_eq!(service.ports.iter().map(|port| port.port).collect::<Vec<_>>(), [81]);
        assert_eq!(
            problems.iter().map(|p| format!("{}: {}", p.object, p.message)).collect::<Vec<_>>(),
            [
                "service n/s: spec.externalIPs[0]: `x` is not an IP address",
                "service n/s: spec.ports[0].port: port 0 is not between 1 and 65535",
                "service n/s: spec.ports[1].protocol: unknown protocol `ICMP`; supported: TCP, UDP, SCTP",
            ]
        );
    }

    #[test]
    fn conditions_that_are_absent_mean_ready() {
        for (conditions, expected) in [
            (json!(null), Condition::Ready),
            (json!({}), Condition::Ready),
            (json!({"ready": false}), Condition::NotReady),
            (json!({"ready": false, "serving": true, "terminating": true}), Condition::Terminating),
            (json!({"ready": false, "serving": true, "terminating": false}), Condition::NotReady),
            (json!({"ready": true, "serving": false, "terminating": true}), Condition::Ready),
        ] {
            let (slice, _) =
                slice(json!({"metadata": {"name": "s", "namespace": "n"}, "addressType": "IPv4",
                "endpoints": [{"addresses": ["10.0.0.1", "10.0.0.2"], "conditions": conditions}]}));
            assert_eq!(slice.endpoints.len(), 1, "only the first address counts");
            assert_eq!(slice.endpoints[0].condition, expected, "{conditions}");
        }
    }

    #[test]
    fn a_slice_that_is_not_for_service_proxies_belongs_to_no_service() {
        let make = |label: &str| {
            slice(json!({"metadata": {"name": "s", "namespace": "n",
                "labels": {LABEL_SERVICE_NAME: "web", label: ""}}, "addressType": "IPv4"}))
            .0
            .service
        };
        assert_eq!(make("app").as_deref(), Some("web"));
        assert_eq!(make(LABEL_HEADLESS), None);
        assert_eq!(make(LABEL_PROXY_NAME), None);
    }

    #[test]
    fn a_slice_of_host_names_has_no_endpoints() {
        let (slice, problems) =
            slice(json!({"metadata": {"name": "s", "namespace": "n"}, "addressType": "FQDN",
            "endpoints": [{"addresses": ["a.example"]}]}));
        assert!(slice.endpoints.is_empty() && problems.is_empty());
    }

    #[test]
    fn hints_for_zones_and_nodes_are_read() {
        let (slice, _) = slice(
            json!({"metadata": {"name": "s", "namespace": "n"}, "addressType": "IPv4", "endpoints": [
                {"addresses": ["10.0.0.1"], "hints": {"forZones": [{"name": "z1"}], "forNodes": [{"name": "n1"}]}},
                {"addresses": ["10.0.0.2"]}]}),
        );
        assert_eq!(slice.endpoints[0].hints.zones.iter().collect::<Vec<_>>(), ["z1"]);
        assert_eq!(slice.endpoints[0].hints.nodes.iter().collect::<Vec<_>>(), ["n1"]);
        assert_eq!(slice.endpoints[1].hints, Hints::default());
    }
}
