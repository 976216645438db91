//! The few Kubernetes objects that the scenarios make.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use api::virtual_network::{VirtualNetwork, condition};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::Client;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use serde_json::{Value, json};
use testbed::cluster::Actor;
use testbed::cluster::access;

/// Label of pods that the test bed's kubelet leaves alone: the benchmark runs their CNI calls itself.
pub(crate) const MANUAL_LABEL: &str = "testbed.slipstream.dev/manual";

/// A client from a kubeconfig file.
pub(crate) async fn client(kubeconfig: &Path) -> Result<Client> {
    // Fails only when a provider is installed already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    access::client(kubeconfig, None).await
}

/// Makes the namespace if it is not there.
pub(crate) async fn ensure_namespace(client: &Client, name: &str) -> Result<()> {
    let api: Api<Namespace> = Api::all(client.clone());
    let object: Namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    match api.create(&PostParams::default(), &object).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(e)) if e.code == 409 => Ok(()),
        Err(e) => Err(e).with_context(|| format!("namespace {name}")),
    }
}

/// Makes an object, or gives one that is there these fields.
pub(crate) async fn apply<K>(api: &Api<K>, name: &str, object: &Value) -> Result<()>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let params = PatchParams::apply("bench").force();
    api.patch(name, &params, &Patch::Apply(object)).await.with_context(|| name.to_owned())?;
    Ok(())
}

/// Makes an isolated virtual network if it is not there, and waits until the controller has taken it.
pub(crate) async fn ensure_network(client: &Client, namespace: &str, name: &str, subnet: &str) -> Result<()> {
    // The type itself is for reading: it has no `apiVersion` and `kind` to create an object with.
    let resource = ApiResource::erase::<VirtualNetwork>(&());
    let object = DynamicObject::new(name, &resource).data(json!({"spec": {"subnets": [subnet]}}));
    let untyped: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    match untyped.create(&PostParams::default(), &object).await {
        Ok(_) => {}
        Err(kube::Error::Api(e)) if e.code == 409 => {}
        Err(e) => return Err(e).with_context(|| format!("virtual network {namespace}/{name}")),
    }
    let is_ready = |network: Option<&VirtualNetwork>| {
        let conditions = network.map(|network| network.read_status().conditions).unwrap_or_default();
        conditions.iter().any(|one| one.kind == condition::READY && one.status == "True")
    };
    let networks: Api<VirtualNetwork> = Api::namespaced(client.clone(), namespace);
    let ready = await_condition(networks, name, is_ready);
    tokio::time::timeout(Duration::from_secs(30), ready)
        .await
        .with_context(|| format!("virtual network {namespace}/{name} is not Ready after 30 s"))??;
    Ok(())
}

/// A pod bound to `node` that only the benchmark plugs in.
pub(crate) fn manual_pod(name: &str, node: &str) -> Result<Pod> {
    Ok(serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {MANUAL_LABEL: "true", "app": "bench"}},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": false,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "main", "image": "none"}],
        },
    }))?)
}

/// Deletes every benchmark pod of the namespace at once.
pub(crate) async fn delete_pods(client: &Client, namespace: &str) -> Result<()> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    api.delete_collection(
        &DeleteParams::default().grace_period(0),
        &ListParams::default().labels("app=bench"),
    )
    .await
    .with_context(|| format!("deleting the pods of {namespace}"))?;
    Ok(())
}

/// A node that exists only as an object, with the annotations that its agent would write. They are written as the agent, as no other
/// client may write them. `index` from 0 to 199.
async fn simulated_node(client: &Client, kubeconfig: &Path, index: u8) -> Result<String> {
    let api: Api<Node> = Api::all(client.clone());
    let name = format!("sim{index}");
    let agent = access::client(kubeconfig, Some(&Actor::agent(Some(&name)))).await?;
    let address = format!("172.18.1.{index}");
    let mac = format!("02:42:ac:12:01:{index:02x}");
    let gateway = json!({"default": {
        "mode": "shared", "bridge-id": "breth0", "interface-id": format!("breth0_{name}"), "mac-address": mac,
        "ip-addresses": [format!("{address}/16")], "ip-address": format!("{address}/16"),
        "next-hops": ["172.18.0.1"], "next-hop": "172.18.0.1", "node-port-enable": "true", "vlan-id": "0",
    }});
    let object: Node =
        serde_json::from_value(json!({"metadata": {"name": name, "labels": {"app": "bench"}}}))?;
    match api.create(&PostParams::default(), &object).await {
        Ok(_) => {}
        Err(kube::Error::Api(e)) if e.code == 409 => {}
        Err(e) => return Err(e).with_context(|| format!("node {name}")),
    }
    let annotations = json!({"metadata": {"annotations": {
        api::annotation::NODE_CHASSIS_ID: format!("00000000-0000-4000-8000-0000000001{index:02x}"),
        api::annotation::L3_GATEWAY_CONFIG: gateway.to_string(),
        api::annotation::NODE_ENCAP_IPS: json!([address]).to_string(),
        api::annotation::HOST_CIDRS: json!([format!("{address}/16")]).to_string(),
        api::annotation::NODE_PRIMARY_IFADDR: json!({"ipv4": format!("{address}/16")}).to_string(),
        api::annotation::ZONE_NAME: api::annotation::GLOBAL_ZONE,
    }}});
    let own: Api<Node> = Api::all(agent);
    own.patch(&name, &PatchParams::default(), &Patch::Merge(&annotations)).await?;
    let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": address}],
        "conditions": [{"type": "Ready", "status": "True", "reason": "Simulated", "message": "an object only"}]}});
    api.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status)).await?;
    Ok(name)
}

/// Makes `count` simulated nodes, and waits until they can have pods.
pub(crate) async fn simulated_nodes(client: &Client, kubeconfig: &Path, count: u8) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for index in 0..count {
        names.push(simulated_node(client, kubeconfig, index).await?);
    }
    wait_for_subnets(client, &names).await?;
    Ok(names)
}

/// Waits until the controller has given these nodes their ranges.
async fn wait_for_subnets(client: &Client, names: &[String]) -> Result<()> {
    let api: Api<Node> = Api::all(client.clone());
    for _ in 0..300 {
        let nodes = api.list(&ListParams::default().labels("app=bench")).await?;
        let ready = nodes
            .iter()
            .filter(|n| {
                n.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(api::annotation::NODE_SUBNETS))
            })
            .count();
        if ready >= names.len() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    bail!("the simulated nodes got no {} within 30 s", api::annotation::NODE_SUBNETS)
}

/// Deletes the simulated nodes.
pub(crate) async fn delete_simulated_nodes(client: &Client) -> Result<()> {
    let api: Api<Node> = Api::all(client.clone());
    api.delete_collection(&DeleteParams::default(), &ListParams::default().labels("app=bench")).await?;
    Ok(())
}
