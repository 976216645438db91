//! The services of the reference run, as the API gives them, for tests.

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::{Value, json};

use super::{NodeService, ServiceIndex};

fn service(name: &str, spec: Value, ingress: Option<&str>) -> Service {
    let ingress: Vec<Value> = ingress.iter().map(|ip| json!({ "ip": ip, "ipMode": "VIP" })).collect();
    serde_json::from_value(json!({
        "metadata": { "name": name, "namespace": "red" },
        "spec": spec,
        "status": { "loadBalancer": { "ingress": ingress } },
    }))
    .unwrap()
}

fn port(extra: Value) -> Value {
    let mut port = json!({ "name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP" });
    port.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    json!([port])
}

fn objects() -> Vec<Service> {
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

fn slice(service: &str, endpoints: &[(&str, &str)]) -> EndpointSlice {
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
    let mut index = ServiceIndex::new(node);
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

#[test]
fn only_services_that_need_the_node_are_kept() {
    let names: Vec<String> = reference_services("n1").into_iter().map(|s| s.key).collect();
    assert_eq!(names, ["red/external", "red/internal-local", "red/lb", "red/lb-local", "red/nodeport"]);
}

#[test]
fn backends_are_those_of_the_node() {
    let local = |node: &str| {
        let services = reference_services(node);
        services.iter().find(|s| s.key == "red/lb-local").unwrap().local_backends
    };
    assert_eq!((local("n1"), local("n2")), (1, 0));
}

#[test]
fn the_same_object_again_is_no_change_and_a_deletion_is_one() {
    let mut index = reference_index("n1");
    for service in objects() {
        assert!(!index.apply_service(&service), "{:?}", service.metadata.name);
    }
    assert!(index.delete_service(&service("lb", json!({}), None)));
    assert!(!index.delete_service(&service("lb", json!({}), None)));
    assert!(index.delete_slice(&slice("lb-local", &[])));
}

#[test]
fn a_service_that_loses_its_node_ports_is_forgotten() {
    let mut index = reference_index("n1");
    let plain = service(
        "nodeport",
        json!({ "type": "ClusterIP", "clusterIP": "10.96.0.51", "ports": port(json!({})) }),
        None,
    );
    assert!(index.apply_service(&plain));
    assert!(index.services().iter().all(|s| s.key != "red/nodeport"));
}

#[test]
fn backends_that_are_not_ready_do_not_count() {
    let mut index = reference_index("n1");
    let mut gone = slice("lb-local", &[("10.244.0.3", "n1")]);
    gone.endpoints[0].conditions = serde_json::from_value(json!({ "ready": false })).unwrap();
    assert!(index.apply_slice(&gone));
    let services = index.services();
    assert_eq!(services.iter().find(|s| s.key == "red/lb-local").unwrap().local_backends, 0);
}

#[test]
fn a_dual_service_has_the_addresses_of_both_families_and_a_pod_counts_once() {
    let mut index = ServiceIndex::new("n1");
    let spec = json!({ "type": "NodePort", "clusterIP": "10.96.0.51", "clusterIPs": ["10.96.0.51", "fd00:10:96::51"],
        "externalIPs": ["172.18.11.1"], "ports": port(json!({ "nodePort": 30080 })) });
    index.apply_service(&service("dual", spec.clone(), None));
    for (n, ip) in ["10.244.0.3", "fd00:10:244::3"].iter().enumerate() {
        let mut slice = slice("dual", &[(ip, "n1")]);
        slice.metadata.name = Some(format!("dual-{n}"));
        index.apply_slice(&slice);
    }
    let seen = index.services().remove(0);
    assert_eq!(seen.cluster_ips.len(), 2);
    assert_eq!(seen.ports[0].local.len(), 2);
    assert_eq!(seen.local_backends, 1);
    // The service loses a family, and with it the external address.
    let mut single = spec;
    single["clusterIP"] = json!("fd00:10:96::51");
    single["clusterIPs"] = json!(["fd00:10:96::51"]);
    assert!(index.apply_service(&service("dual", single, None)));
    let seen = index.services().remove(0);
    assert_eq!((seen.cluster_ips.len(), seen.external_ips.len()), (1, 0));
}

/// The index with other conditions of `lb-local`'s backends, by node.
fn with_conditions(node: &str, endpoints: &[(&str, &str, Value)]) -> ServiceIndex {
    let mut index = reference_index(node);
    let names: Vec<(&str, &str)> = endpoints.iter().map(|(ip, node, _)| (*ip, *node)).collect();
    let mut changed = slice("lb-local", &names);
    for (endpoint, (_, _, conditions)) in changed.endpoints.iter_mut().zip(endpoints) {
        endpoint.conditions = serde_json::from_value(conditions.clone()).unwrap();
    }
    index.apply_slice(&changed);
    index
}

fn lb_local(index: &ServiceIndex) -> NodeService {
    index.services().into_iter().find(|s| s.key == "red/lb-local").unwrap()
}

#[test]
fn terminating_backends_serve_where_none_is_ready_but_do_not_count_as_healthy() {
    let leaving = json!({ "ready": false, "serving": true, "terminating": true });
    let only = lb_local(&with_conditions("n1", &[("10.244.0.3", "n1", leaving.clone())]));
    assert_eq!(only.ports[0].local, [("10.244.0.3".parse().unwrap(), 8080)]);
    assert_eq!(only.local_backends, 0);
    let ready = json!({ "ready": true });
    let both = [("10.244.0.3", "n1", leaving), ("10.244.0.4", "n1", ready)];
    let both = lb_local(&with_conditions("n1", &both));
    assert_eq!(both.ports[0].local, [("10.244.0.4".parse().unwrap(), 8080)]);
    assert_eq!(both.local_backends, 1);
}

#[test]
fn other_nodes_with_backends_are_known_and_a_change_there_is_one_for_local_policy_services_only() {
    let index = with_conditions("n1", &[("10.244.1.3", "n2", json!({ "ready": true }))]);
    let service = lb_local(&index);
    assert!(service.ports[0].local.is_empty());
    assert_eq!(service.ports[0].elsewhere.iter().collect::<Vec<_>>(), ["n2"]);
    let mut index = index;
    assert!(index.apply_slice(&slice("lb-local", &[("10.244.2.3", "n3")])));
    assert!(!index.apply_slice(&slice("web", &[("10.244.0.3", "n1"), ("10.244.2.3", "n3")])));
}

#[test]
fn external_traffic_policy_counts_for_external_addresses_without_node_ports_too() {
    let local = |spec: Value| {
        let mut index = ServiceIndex::new("n1");
        let mut spec = spec;
        spec["clusterIP"] = "10.96.0.60".into();
        spec["ports"] = port(json!({}));
        spec["externalTrafficPolicy"] = "Local".into();
        spec["internalTrafficPolicy"] = "Local".into();
        spec["healthCheckNodePort"] = 30099.into();
        index.apply_service(&service("own", spec, None));
        let found = index.services().remove(0);
        (found.external_local, found.health_check_port)
    };
    assert_eq!(local(json!({ "externalIPs": ["172.18.11.1"] })), (true, None));
    assert_eq!(local(json!({ "type": "NodePort" })), (true, None));
    assert_eq!(local(json!({ "type": "LoadBalancer" })), (true, Some(30099)));
    assert_eq!(local(json!({})), (false, None), "nothing is external");
}

#[test]
fn services_of_other_proxies_are_not_kept() {
    let mut index = reference_index("n1");
    let mut other = objects().remove(1);
    other.metadata.labels =
        Some([("service.kubernetes.io/service-proxy-name".to_owned(), "x".to_owned())].into());
    assert!(index.apply_service(&other));
    assert!(index.services().iter().all(|s| s.key != "red/nodeport"));
}
