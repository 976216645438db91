//! Carrying out changes of services: objects at the API server.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Service as Object;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Client as Kube;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::json;

use super::model::{Model, Protocol};
use super::nb::NAMESPACE;
use super::services::{
    Client, ENTRY, SERVICE_PORT, ServiceFlow, Way, address_of_node, cluster_ip, external_ip, node_port,
};
use crate::flow_cache_invariants::load_pods::LoadPods;
use testbed::cluster::config::EXT_IP;
use testbed::exec;

/// The outside world's host.
const OUTSIDE: &str = "ext";

/// Name of a service and of its slice.
pub(super) fn service_name(service: usize) -> String {
    format!("service-{service}")
}

/// Starts the load tools outside pods, and tells the outside world where external addresses are.
pub(super) fn add_hosts(pods: &mut LoadPods<'_>, nodes: &[String], services: usize) -> Result<()> {
    for (number, node) in nodes.iter().enumerate() {
        pods.add_host(node, address_of_node(number).into())?;
    }
    pods.add_host(OUTSIDE, EXT_IP.into())?;
    let via = address_of_node(ENTRY).to_string();
    for service in 0..services {
        let to = format!("{}/32", external_ip(service));
        let mut command = pods.bed.host(OUTSIDE).command("ip")?;
        exec::output(command.args(["route", "replace", &to, "via", &via]))?;
    }
    Ok(())
}

/// Begins a flow, or begins it again.
pub(super) fn dial(
    pods: &mut LoadPods<'_>,
    number: u32,
    flow: &ServiceFlow,
    nodes: &[String],
    model: &Model,
) -> Result<()> {
    let from = match flow.client {
        Client::Pod(pod) => model.pods[pod].name.clone(),
        Client::Node(node) => nodes[node].clone(),
        Client::Outside => OUTSIDE.to_owned(),
    };
    let (ip, port) = match flow.way {
        Way::ClusterIp => (cluster_ip(flow.service), SERVICE_PORT),
        Way::ExternalIp => (external_ip(flow.service), SERVICE_PORT),
        Way::NodePort(node) => (address_of_node(node), node_port(flow.service)),
    };
    let to = SocketAddr::new(IpAddr::V4(ip), port);
    pods.dial_address(number, &from, to, flow.protocol == Protocol::Udp)
}

/// Writes a service as the model has it, or deletes it.
pub(super) async fn write(kube: &Kube, model: &Model, number: usize) -> Result<()> {
    let service = &model.services[number];
    let name = service_name(number);
    let api: Api<Object> = Api::namespaced(kube.clone(), NAMESPACE);
    if !service.live {
        return remove(kube, number).await;
    }
    let port = |protocol: &str| {
        json!({
            "name": protocol.to_lowercase(), "protocol": protocol,
            "port": SERVICE_PORT, "nodePort": node_port(number),
        })
    };
    let object = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "type": "NodePort",
            "clusterIP": cluster_ip(number),
            "externalIPs": [external_ip(number)],
            "externalTrafficPolicy": if service.local { "Local" } else { "Cluster" },
            "sessionAffinity": if service.affinity { "ClientIP" } else { "None" },
            "ports": [port("TCP"), port("UDP")],
        },
    });
    let params = PatchParams::apply("laws").force();
    api.patch(&name, &params, &Patch::Apply(&object)).await.with_context(|| format!("service {name}"))?;
    Ok(())
}

/// Deletes a service and its endpoints.
pub(super) async fn remove(kube: &Kube, number: usize) -> Result<()> {
    let name = service_name(number);
    let services: Api<Object> = Api::namespaced(kube.clone(), NAMESPACE);
    let slices: Api<EndpointSlice> = Api::namespaced(kube.clone(), NAMESPACE);
    services.delete(&name, &DeleteParams::default()).await.with_context(|| format!("service {name}"))?;
    slices.delete(&name, &DeleteParams::default()).await.with_context(|| format!("slice {name}"))?;
    Ok(())
}

/// Writes the endpoints of a service as the model has them, less one pod that is just not there.
pub(super) async fn write_backends(
    kube: &Kube,
    model: &Model,
    number: usize,
    addresses: &[String],
    nodes: &[String],
    without: Option<usize>,
) -> Result<()> {
    let backends = model.services[number].backends.iter().filter(|pod| Some(**pod) != without);
    let endpoints: Vec<_> = backends
        .map(|&pod| {
            let node = &nodes[model.pods[pod].node];
            json!({"addresses": [addresses[pod]], "nodeName": node, "conditions": {"ready": true}})
        })
        .collect();
    let port = model.backend_port(number);
    let port = |protocol: &str| json!({"name": protocol.to_lowercase(), "protocol": protocol, "port": port});
    let name = service_name(number);
    let object = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": name, "namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": name},
        },
        "addressType": "IPv4",
        "ports": [port("TCP"), port("UDP")],
        "endpoints": endpoints,
    });
    let api: Api<EndpointSlice> = Api::namespaced(kube.clone(), NAMESPACE);
    let params = PatchParams::apply("laws").force();
    api.patch(&name, &params, &Patch::Apply(&object)).await.with_context(|| format!("slice {name}"))?;
    Ok(())
}
