//! The Kubernetes objects of the matrix. Pure.

use std::net::IpAddr;

use serde_json::{Value, json};
use testbed::nodes::sandbox::NO_SERVER_LABEL;

use super::cell::{Backends, Kind, Node};
use super::world::{BEHIND_HOST_PORT, HOST_PORT, Pair, SERVICE_PORT, backend_ports, external, node_port};

/// Health check ports are so far above node ports.
const HEALTH_CHECKS: u16 = 100;
/// Namespace of everything.
pub(super) const NAMESPACE: &str = "matrix";
/// Pods, with their nodes: two backends, two clients. The first has a host port.
pub(super) const PODS: [(&str, Node); 4] =
    [("backend-1", Node::N1), ("backend-2", Node::N2), ("client-1", Node::N1), ("client-2", Node::N2)];

/// A pod whose ports a server of the matrix has.
pub(super) fn pod(name: &str, node: Node) -> Value {
    let port = |protocol: &str| {
        let mut port = json!({"containerPort": BEHIND_HOST_PORT, "protocol": protocol});
        if name == PODS[0].0 {
            port["hostPort"] = HOST_PORT.into();
        }
        port
    };
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {NO_SERVER_LABEL: ""}},
        "spec": {
            "nodeName": node.name(),
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "none", "ports": [port("TCP"), port("UDP")]}],
        },
    })
}

/// Name of a service, which says what it is like.
pub(super) fn name(kind: &Kind) -> String {
    let backends = match kind.backends {
        Backends::Pod => "pod",
        Backends::Pods => "pods",
        Backends::Host => "host",
    };
    let policy = |local| if local { "local" } else { "cluster" };
    let affinity = if kind.affinity { "sticky" } else { "free" };
    format!("{backends}-{}-{}-{affinity}", policy(kind.external_local), policy(kind.internal_local))
}

/// The service of a kind.
pub(super) fn service(kind: &Kind) -> Value {
    let policy = |local| if local { "Local" } else { "Cluster" };
    let both = |load_balancer: bool, node| {
        let Pair(v4, v6) = external(kind, load_balancer, node);
        [v4.to_string(), v6.to_string()]
    };
    let externals = [both(false, Node::N1), both(false, Node::N2)].concat();
    let port = |protocol: &str| json!({"name": protocol.to_lowercase(), "protocol": protocol, "port": SERVICE_PORT, "nodePort": node_port(kind)});
    let mut object = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name(kind), "namespace": NAMESPACE},
        "spec": {
            "type": "LoadBalancer",
            "ipFamilyPolicy": "RequireDualStack",
            "externalIPs": externals,
            "externalTrafficPolicy": policy(kind.external_local),
            "internalTrafficPolicy": policy(kind.internal_local),
            "sessionAffinity": if kind.affinity { "ClientIP" } else { "None" },
            "ports": [port("TCP"), port("UDP")],
        },
    });
    if kind.external_local {
        // One that the API server picks may be a later service's node port.
        object["spec"]["healthCheckNodePort"] = (node_port(kind) + HEALTH_CHECKS).into();
    }
    object
}

/// What a cloud would write: its load balancer's addresses.
pub(super) fn status(kind: &Kind) -> Value {
    let ips = [Node::N1, Node::N2].map(|node| external(kind, true, node));
    let ingress: Vec<Value> = ips
        .iter()
        .flat_map(|pair| [false, true].map(|six| json!({"ip": pair.of(six).to_string()})))
        .collect();
    json!({"status": {"loadBalancer": {"ingress": ingress}}})
}

/// A slice for each family and port of a service's endpoints. `pods`: the backends.
pub(super) fn slices(kind: &Kind, pods: [Pair; 2]) -> Vec<Value> {
    let mut slices = Vec::new();
    for (family, six) in [("IPv4", false), ("IPv6", true)] {
        let endpoint = |ip: IpAddr, node: Node| json!({"addresses": [ip.to_string()], "nodeName": node.name(), "conditions": {"ready": true}});
        let [near, far] = pods;
        let endpoints = match kind.backends {
            Backends::Pod => vec![endpoint(near.of(six), Node::N1)],
            Backends::Pods => vec![endpoint(near.of(six), Node::N1), endpoint(far.of(six), Node::N2)],
            Backends::Host => vec![endpoint(Node::N1.address(six), Node::N1)],
        };
        for target in backend_ports(kind) {
            let service = name(kind);
            let port = |protocol: &str| json!({"name": protocol.to_lowercase(), "protocol": protocol, "port": target});
            slices.push(json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {
                    "name": format!("{service}-{}-{target}", family.to_lowercase()), "namespace": NAMESPACE,
                    "labels": {"kubernetes.io/service-name": service}
                },
                "addressType": family,
                "ports": [port("TCP"), port("UDP")],
                "endpoints": endpoints,
            }));
        }
    }
    slices
}

#[cfg(test)]
mod tests {
    use super::super::cell::kinds;
    use super::super::world::tests::world;
    use super::*;

    #[test]
    fn a_service_has_the_policies_that_its_name_says() {
        let kind =
            Kind { backends: Backends::Host, external_local: true, internal_local: false, affinity: true };
        let object = service(&kind);
        assert_eq!(object["metadata"]["name"], "host-local-cluster-sticky");
        let spec = &object["spec"];
        assert_eq!(
            (&spec["externalTrafficPolicy"], &spec["internalTrafficPolicy"]),
            (&json!("Local"), &json!("Cluster"))
        );
        assert_eq!(spec["sessionAffinity"], "ClientIP");
        assert_eq!(spec["externalIPs"].as_array().unwrap().len(), 4, "two nodes, two families");
        assert_eq!(status(&kind)["status"]["loadBalancer"]["ingress"].as_array().unwrap().len(), 4);
    }

    #[test]
    fn every_endpoint_is_in_a_slice_and_affinity_has_a_choice() {
        for kind in kinds() {
            let slices = slices(&kind, world().backends);
            let of = |family: &str| {
                let of = slices.iter().filter(|slice| slice["addressType"] == family);
                of.map(|slice| slice["endpoints"].as_array().unwrap().len()).collect::<Vec<_>>()
            };
            let many = if kind.backends == Backends::Pods { 2 } else { 1 };
            assert_eq!((of("IPv4"), of("IPv6")), (vec![many; 2], vec![many; 2]));
        }
        let names: std::collections::BTreeSet<String> = kinds().iter().map(name).collect();
        assert_eq!(names.len(), kinds().len());
    }

    #[test]
    fn one_pod_has_a_host_port() {
        let with = PODS.iter().filter(|(name, node)| pod(name, *node).to_string().contains("hostPort"));
        assert_eq!(with.count(), 1);
    }
}
