//! The ways of connections that are translated or do not lead from pod to pod: services, the outside and the nodes themselves.

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::ValueEnum;
use serde_json::{Value, json};
use testbed::cluster::Bed;
use testbed::cluster::config::{EXT_IP, node_ip};
use testbed::nodes::sandbox::NO_SERVER_LABEL;
use testbed::{exec, pod};

use super::cell::{By, Route};
use super::cluster::{Cluster, NAMESPACE};
use super::load::Kind;
use super::place::Place;
use crate::names::Path;

/// What a node port is above the backend's port.
const NODE_PORTS: u16 = 23_000;
/// The pod with host ports.
const PORTED: &str = "ported";
/// How long the agents may take to serve a new service.
const SERVED: Duration = Duration::from_secs(20);

/// Makes the services, and tells where each path leads.
pub(super) fn routes(cluster: &Cluster) -> Result<Vec<(Path, Route)>> {
    let bed = cluster.bed()?;
    let ovs = cluster.ovs()?;
    let (near, near_ip) = cluster.pod("near")?;
    let (beside, beside_ip) = cluster.pod("beside")?;
    let (far, far_ip) = cluster.pod("far")?;
    serve(bed, Path::NodePort, "by-node-port", &beside_ip)?;
    serve(bed, Path::NodePortFar, "by-node-port-far", &far_ip)?;
    let back = serve(bed, Path::Hairpin, "by-hairpin", &near_ip)?;
    cluster.add_manifests(&[with_host_ports()])?;
    let (ported, ported_ip) = Place::pod(bed, "n1", NAMESPACE, PORTED)?;
    let host = |name: &str| Place::host(bed, name);
    let (n1, n2) = (node_ip(1).to_string(), node_ip(2).to_string());
    let route = |client: &Place, server: &Place, address: &str| Route {
        client: client.clone(),
        server: server.clone(),
        address: address.to_owned(),
        by: None,
        part_of_path: ovs.clone(),
    };
    let by = |route: Route, address: &str, port_offset: u16| Route {
        by: Some(By { address: address.to_owned(), port_offset }),
        ..route
    };
    let outside = host("ext")?;
    Ok(vec![
        (Path::ClusterIp, by_cluster_ip(cluster)?),
        (Path::NodePort, by(route(&outside, &beside, &beside_ip), &n1, NODE_PORTS)),
        (Path::NodePortFar, by(route(&outside, &far, &far_ip), &n1, NODE_PORTS)),
        (Path::Hairpin, by(route(&near, &near, &near_ip), &back, 0)),
        (Path::HostPort, by(route(&outside, &ported, &ported_ip), &n1, 0)),
        (Path::Outside, route(&near, &outside, &EXT_IP.to_string())),
        (Path::HostPod, route(&host("n1")?, &far, &far_ip)),
        (Path::Nodes, route(&host("n1")?, &host("n2")?, &n2)),
    ])
}

/// Makes the service of [`Path::ClusterIp`], whose backend is on the other node, and tells where the path leads.
pub(super) fn by_cluster_ip(cluster: &Cluster) -> Result<Route> {
    let route = cluster.across()?;
    let address = serve(cluster.bed()?, Path::ClusterIp, "by-cluster-ip", &route.address)?;
    Ok(Route { by: Some(By { address, port_offset: 0 }), ..route })
}

/// Makes a service of type NodePort without a selector, with every port of the path's loads; its cluster IP, once all nodes serve it.
fn serve(bed: &Bed, path: Path, name: &str, backend: &str) -> Result<String> {
    for object in objects(path, name, backend) {
        exec::input_output(bed.kubectl_command()?.args(["apply", "-f", "-"]), &object.to_string())?;
    }
    let address =
        bed.kubectl(&["get", "service", "-n", NAMESPACE, name, "-o", "jsonpath={.spec.clusterIP}"])?;
    exec::retry(SERVED, "the load balancer", || {
        let list = bed.nbctl(&["lb-list"])?;
        ensure!(list.contains(&format!("{address}:")), "{address} is in no load balancer");
        // It is in the flows of every node then.
        bed.nbctl(&["--wait=hv", "sync"])
    })?;
    Ok(address)
}

/// The ports of all loads on a path, for both of its openings.
fn ports(path: Path) -> Vec<(&'static str, u16)> {
    let first = |kind: &Kind| kind.port() + path.port_offset();
    let both = Kind::value_variants().iter().map(first).flat_map(|port| [port, port + 1]);
    both.flat_map(|port| [("TCP", port), ("UDP", port)]).collect()
}

/// A pod of n1 that has all ports of [`Path::HostPort`] on its node.
fn with_host_ports() -> Value {
    let mut pod = pod::manifest(NAMESPACE, PORTED, Some("n1"));
    let port = |(protocol, port): (&str, u16)| json!({"protocol": protocol, "containerPort": port, "hostPort": port});
    // The loads' own servers listen.
    pod["metadata"]["labels"][NO_SERVER_LABEL] = "true".into();
    pod["spec"]["containers"][0]["ports"] = ports(Path::HostPort).into_iter().map(port).collect();
    pod
}

/// The service and its backend.
fn objects(path: Path, name: &str, backend: &str) -> [Value; 2] {
    let ports = ports(path);
    let list = |node: bool| -> Vec<Value> {
        let one = |(protocol, port): &(&str, u16)| {
            let name = format!("{}-{port}", protocol.to_lowercase());
            let mut one = json!({"name": name, "protocol": protocol, "port": port});
            if node {
                one["nodePort"] = (port + NODE_PORTS).into();
            }
            one
        };
        ports.iter().map(one).collect()
    };
    [
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"type": "NodePort", "ports": list(true)}
        }),
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": name, "namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": name}
            },
            "addressType": "IPv4", "ports": list(false),
            "endpoints": [{"addresses": [backend], "conditions": {"ready": true}}]
        }),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn node_ports_are_in_their_range_and_differ() {
        let mut seen = BTreeSet::new();
        for path in [Path::ClusterIp, Path::NodePort, Path::NodePortFar, Path::Hairpin] {
            let [service, slice] = objects(path, "one", "10.244.0.5");
            let ports = service["spec"]["ports"].as_array().unwrap();
            assert_eq!(ports.len(), slice["ports"].as_array().unwrap().len());
            for port in ports {
                let number = port["nodePort"].as_u64().unwrap();
                assert!((30_000..32_768).contains(&number), "{port}");
                assert!(seen.insert((number, port["protocol"].as_str().unwrap().to_owned())), "{port}");
            }
        }
    }
}
