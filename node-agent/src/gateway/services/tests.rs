use std::collections::BTreeSet;
use std::net::IpAddr;

use api::NamespacedName;
use api::addr::Family;
use api::service::Hints;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::{Value, json};

use super::fixture::{objects, port, reference_index, reference_services, service, slice};
use super::{ELSEWHERE, NodeService, ServiceIndex};

#[test]
fn only_services_that_need_the_node_are_kept() {
    let names: Vec<String> = reference_services("n1").into_iter().map(|s| s.name.to_string()).collect();
    assert_eq!(names, ["red/external", "red/internal-local", "red/lb", "red/lb-local", "red/nodeport"]);
}

#[test]
fn backends_are_those_of_the_node() {
    let local = |node: &str| {
        let services = reference_services(node);
        services.iter().find(|s| s.name.name == "lb-local").unwrap().local_backends
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
    assert!(index.services().iter().all(|s| s.name.name != "nodeport"));
}

#[test]
fn backends_that_are_not_ready_do_not_count() {
    let mut index = reference_index("n1");
    let mut gone = slice("lb-local", &[("10.244.0.3", "n1")]);
    gone.endpoints[0].conditions = serde_json::from_value(json!({ "ready": false })).unwrap();
    assert!(index.apply_slice(&gone));
    let services = index.services();
    assert_eq!(services.iter().find(|s| s.name.name == "lb-local").unwrap().local_backends, 0);
}

#[test]
fn a_dual_service_has_the_addresses_of_both_families_and_a_pod_counts_once() {
    let mut index = ServiceIndex::new("n1", Vec::new());
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
    index.services().into_iter().find(|s| s.name.name == "lb-local").unwrap()
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
        let mut index = ServiceIndex::new("n1", Vec::new());
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
    assert!(index.services().iter().all(|s| s.name.name != "nodeport"));
}

/// An index with these services alone.
fn index_of(services: &[Service]) -> ServiceIndex {
    let mut index = ServiceIndex::new("n1", vec!["10.96.0.0/12".parse().unwrap()]);
    for service in services {
        index.apply_service(service);
    }
    index
}

fn external_ips(index: &ServiceIndex, name: &str) -> Vec<String> {
    let service = index.services().into_iter().find(|s| s.name.name == name).unwrap();
    service.external_ips.iter().map(ToString::to_string).collect()
}

fn with_external(name: &str, created: &str, ips: &[&str]) -> Service {
    let spec = json!({ "clusterIP": "10.96.0.60", "externalIPs": ips, "ports": port(json!({})) });
    let mut object = service(name, spec, None);
    object.metadata.creation_timestamp = serde_json::from_value(json!(created)).unwrap();
    object
}

#[test]
fn an_external_address_that_two_services_claim_is_the_older_ones() {
    let old = with_external("old", "2026-01-01T00:00:00Z", &["172.18.11.1"]);
    let young = with_external("a", "2026-01-02T00:00:00Z", &["172.18.11.1", "172.18.11.2"]);
    let mut index = index_of(&[young.clone(), old.clone()]);
    assert_eq!(external_ips(&index, "old"), ["172.18.11.1"]);
    assert_eq!(external_ips(&index, "a"), ["172.18.11.2"]);
    assert!(index.delete_service(&old));
    assert_eq!(external_ips(&index, "a"), ["172.18.11.1", "172.18.11.2"], "the older one is gone");
    index.apply_service(&old);
    index.retain_services(&BTreeSet::from([NamespacedName::from(&young.metadata)]));
    assert_eq!(external_ips(&index, "a").len(), 2, "and after a relist, too");
    // Other ports are no conflict.
    let mut other = old;
    other.spec.as_mut().unwrap().ports.as_mut().unwrap()[0].port = 81;
    index.apply_service(&other);
    assert_eq!((external_ips(&index, "a").len(), external_ips(&index, "old").len()), (2, 1));
}

#[test]
fn addresses_of_the_cluster_and_of_nodes_are_no_services_to_serve() {
    let claimed = ["10.96.0.10", "172.18.0.2", "172.18.0.10", "192.0.2.1"];
    let mut index = index_of(&[with_external("greedy", "2026-01-01T00:00:00Z", &claimed)]);
    assert_eq!(external_ips(&index, "greedy"), ["172.18.0.2", "172.18.0.10", "192.0.2.1"]);
    index.set_node_addresses(BTreeSet::from(["172.18.0.2".parse().unwrap()]));
    assert_eq!(external_ips(&index, "greedy"), ["172.18.0.10", "192.0.2.1"]);
    index.set_node_addresses(BTreeSet::new());
    assert_eq!(external_ips(&index, "greedy").len(), 3, "the node is gone");
}

/// The backends that an index finds for each port of a service with two ports of one name, given a slice with `ports`.
fn behind(ports: Value) -> Vec<Vec<(IpAddr, u16)>> {
    let spec = json!({ "type": "NodePort", "clusterIP": "10.96.0.60", "ports": [
        { "name": "dns", "port": 53, "protocol": "TCP", "nodePort": 30053 },
        { "name": "dns", "port": 53, "protocol": "UDP", "nodePort": 30053 },
    ] });
    let mut index = index_of(&[service("dns", spec, None)]);
    let mut slice = slice("dns", &[("10.244.0.3", "n1"), ("10.244.1.3", "n2")]);
    slice.ports = serde_json::from_value(ports).unwrap();
    index.apply_slice(&slice);
    let found = index.services().remove(0).ports;
    let nowhere = |p: &super::NodeServicePort| p.local.is_empty() == p.elsewhere.is_empty();
    assert!(found.iter().all(nowhere), "another node's backends are those of the same ports");
    found.into_iter().map(|port| port.local).collect()
}

#[test]
fn a_port_of_a_slice_serves_the_port_of_the_same_name_and_protocol() {
    let to = |port: u16| vec![("10.244.0.3".parse().unwrap(), port)];
    let tcp = json!({ "name": "dns", "port": 5353, "protocol": "TCP" });
    let udp = json!({ "name": "dns", "port": 5354, "protocol": "UDP" });
    assert_eq!(behind(json!([tcp, udp])), [to(5353), to(5354)]);
    assert_eq!(behind(json!([udp])), [vec![], to(5354)]);
    assert_eq!(behind(json!([{ "name": "other", "port": 5353 }])), [vec![], vec![]]);
}

#[test]
fn port_0_is_refused() {
    assert_eq!(behind(json!([{ "name": "dns", "port": 0, "protocol": "TCP" }])), [vec![], vec![]]);
    let spec = json!({ "type": "NodePort", "clusterIP": "10.96.0.60", "ports": [
        { "name": "zero", "port": 0, "nodePort": 30080 }, { "name": "http", "port": 80, "nodePort": 0 },
    ], "externalIPs": ["172.18.11.1"] });
    let ports = index_of(&[service("own", spec, None)]).services().remove(0).ports;
    assert_eq!(ports.iter().map(|p| (p.port, p.node_port)).collect::<Vec<_>>(), [(80, None)]);
    let only = json!({ "clusterIP": "10.96.0.60", "externalIPs": ["172.18.11.1"], "ports": [{ "port": 0 }] });
    assert!(index_of(&[service("own", only, None)]).services().is_empty(), "no port, nothing to serve");
}

#[test]
fn slices_of_host_names_and_endpoints_without_an_address_count_nowhere() {
    let kept = |change: fn(&mut EndpointSlice)| {
        let mut slice = slice("lb-local", &[("10.244.0.3", "n1"), ("10.244.1.3", "n2")]);
        change(&mut slice);
        let mut index = reference_index("n1");
        index.apply_slice(&slice);
        let service = lb_local(&index);
        (service.ports[0].local.len(), service.local_backends, service.ports[0].elsewhere.len())
    };
    assert_eq!(kept(|_| {}), (1, 1, 1));
    assert_eq!(kept(|slice| slice.address_type = "FQDN".to_owned()), (0, 0, 0));
    let without = |slice: &mut EndpointSlice| slice.endpoints.iter_mut().for_each(|e| e.addresses.clear());
    assert_eq!(kept(without), (0, 0, 0));
    let unreadable =
        |slice: &mut EndpointSlice| slice.endpoints.iter_mut().for_each(|e| e.addresses[0].push('x'));
    assert_eq!(kept(unreadable), (0, 0, 0));
    assert_eq!(kept(|slice| slice.ports = None), (0, 0, 0), "no port, no backend");
}

#[test]
fn external_name_and_headless_services_are_not_kept_whatever_their_cluster_addresses() {
    let kept = |kind: &str, first: Option<&str>| {
        let spec = json!({ "type": kind, "clusterIP": first, "clusterIPs": ["10.96.0.60"],
            "externalIPs": ["172.18.11.1"], "ports": port(json!({})) });
        index_of(&[service("own", spec, None)]).services().len()
    };
    assert_eq!(kept("ClusterIP", Some("10.96.0.60")), 1);
    assert_eq!(kept("ClusterIP", Some("None")), 0);
    assert_eq!(kept("ClusterIP", None), 0);
    assert_eq!(kept("ExternalName", Some("10.96.0.60")), 0);
}

#[test]
fn the_cluster_address_comes_before_the_other_cluster_addresses() {
    let spec = json!({ "clusterIP": "10.96.0.61", "clusterIPs": ["fd00:10:96::60", "10.96.0.60", "10.96.0.61"],
        "internalTrafficPolicy": "Local", "ports": port(json!({})) });
    let found = index_of(&[service("own", spec, None)]).services().remove(0);
    let ips: Vec<String> = found.cluster_ips.iter().map(ToString::to_string).collect();
    assert_eq!(ips, ["10.96.0.61", "fd00:10:96::60", "10.96.0.60"]);
    assert_eq!(found.cluster_ip(Family::V4).unwrap().to_string(), "10.96.0.61");
}

#[test]
fn of_a_slice_only_this_nodes_usable_endpoints_and_a_few_names_are_kept() {
    let names: Vec<(String, String)> = (0..100).map(|n| (format!("10.244.{n}.3"), format!("n{n}"))).collect();
    let endpoints: Vec<(&str, &str)> = names.iter().map(|(ip, node)| (ip.as_str(), node.as_str())).collect();
    let mut large = slice("lb-local", &endpoints);
    large.endpoints[1].hints = serde_json::from_value(json!({ "forNodes": [{ "name": "n1" }] })).unwrap();
    let mut index = ServiceIndex::new("n1", Vec::new());
    assert!(index.apply_slice(&large));
    let kept = index.slices.values().next().unwrap();
    assert_eq!((kept.here.endpoints.len(), kept.elsewhere.len()), (1, ELSEWHERE));
    assert_eq!(kept.here.endpoints.capacity(), 1);
    assert_eq!(kept.here.endpoints[0].hints, Hints::default());
    // A slice in another order, or with other hints, is no change.
    large.endpoints.reverse();
    large.endpoints.iter_mut().for_each(|endpoint| endpoint.hints = None);
    assert!(!index.apply_slice(&large));
    large.endpoints.clear();
    assert!(index.apply_slice(&large));
    assert!(index.slices.is_empty(), "nothing to keep");
}

#[test]
fn a_node_that_serves_no_node_ports_keeps_the_other_addresses() {
    let mut service = lb_local(&reference_index("ovn-worker"));
    assert!(service.ports.iter().any(|port| port.node_port.is_some()));
    service.without_node_ports();
    assert!(service.ports.iter().all(|port| port.node_port.is_none()));
    assert!(!service.external_ips.is_empty());
}
