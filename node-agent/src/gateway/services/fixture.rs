//! The services of the reference run, as the API returns them, for tests.

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::{Value, json};

use super::{NodeService, ServiceIndex};

pub(super) fn service(name: &str, spec: Value, ingress: Option<&str>) -> Service {
    let ingress: Vec<Value> = ingress.iter().map(|ip| json!({ "ip": ip, "ipMode": "VIP" })).collect();
    serde_json::from_value(json!({
        "metadata": { "name": name, "namespace": "red" },
        "spec": spec,
        "status": { "loadBalancer": { "ingress": ingress } },
    }))
    .unwrap()
}

pub(super) fn port(extra: Value) -> Value {
    let mut port = json!({ "name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP" });
    port.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    json!([port])
}

pub(super) fn objects() -> Vec<Service> {
    let cluster = |ip: &str| json!({ "type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip], "ports": port(json!({})) });
    let with = |ip: &str, more: Value| {
        let mut spec = cluster(ip);
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    };
    vec![
        service("web", cluster("10.96.0.50"), None),
        service(
            "nodeport",
            with(
                "10.96.0.51",
                json!({ "type": "NodePort", "externalTrafficPolicy": "Cluster", "ports": port(json!({ "nodePort": 30080 })) }),
            ),
            None,
        ),
        service(
            "headless",
            json!({ "type": "ClusterIP", "clusterIP": "None", "clusterIPs": ["None"], "ports": port(json!({})) }),
            None,
        ),
        service("sticky", with("10.96.0.52", json!({ "sessionAffinity": "ClientIP" })), None),
        service(
            "lb-local",
            with(
                "10.96.0.53",
                json!({ "type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30181, "ports": port(json!({ "nodePort": 30081 })) }),
            ),
            Some("172.18.10.1"),
        ),
        service(
            "lb",
            with(
                "10.96.0.60",
                json!({ "type": "LoadBalancer", "externalTrafficPolicy": "Cluster", "ports": port(json!({ "nodePort": 30082 })) }),
            ),
            Some("172.18.10.2"),
        ),
        service("external", with("10.96.0.54", json!({ "externalIPs": ["172.18.11.1"] })), None),
        service("internal-local", with("10.96.0.56", json!({ "internalTrafficPolicy": "Local" })), None),
        service("empty", cluster("10.96.0.57"), None),
    ]
}

pub(super) fn slice(service: &str, endpoints: &[(&str, &str)]) -> EndpointSlice {
    let endpoints: Vec<Value> = endpoints
        .iter()
        .map(|(ip, node)| json!({ "addresses": [ip], "nodeName": node, "conditions": { "ready": true } }))
        .collect();
    serde_json::from_value(json!({
        "metadata": { "name": format!("{service}-x"), "namespace": "red", "labels": { "kubernetes.io/service-name": service } },
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }],
    }))
    .unwrap()
}

/// An index of the reference's objects on one node.
pub(crate) fn reference_index(node: &str) -> ServiceIndex {
    let mut index = ServiceIndex::new(node, Vec::new());
    for service in objects() {
        index.apply_service(&service);
    }
    let both = [("10.244.0.3", "n1"), ("10.244.1.3", "n2")];
    for service in ["web", "nodeport", "headless", "sticky", "lb", "external", "internal-local"] {
        index.apply_slice(&slice(service, &both));
    }
    index.apply_slice(&slice("lb-local", &both[..1]));
    index
}

/// What a node needs of the reference's services.
pub(crate) fn reference_services(node: &str) -> Vec<NodeService> {
    reference_index(node).services()
}
