//! Virtual networks on a real API server: what the kind refuses, and the life of a network and a pod on it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[allow(dead_code, reason = "shared with the other tests")]
mod cluster;
#[allow(dead_code, reason = "shared with the other tests")]
mod common;

use std::time::{Duration, Instant};

use api::virtual_network::VirtualNetwork;
use cluster::{Cluster, Replica};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);

async fn install_kind(client: &Client) {
    let kind: CustomResourceDefinition =
        serde_saphyr::from_str(&common::read("../deploy/virtual-network.yaml")).unwrap();
    let kinds: Api<CustomResourceDefinition> = Api::all(client.clone());
    kinds.create(&PostParams::default(), &kind).await.unwrap();
    let name = kind.metadata.name.unwrap();
    until("the kind is established", async || {
        let conditions = kinds.get(&name).await.unwrap().status.and_then(|status| status.conditions);
        let is = |kind: &str| conditions.iter().flatten().any(|c| c.type_ == kind && c.status == "True");
        assert!(!is("NonStructuralSchema"), "{conditions:?}");
        is("Established")
    })
    .await;
}

async fn until(what: &str, there: impl AsyncFn() -> bool) {
    let start = Instant::now();
    while !there().await {
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Networks as untyped objects.
struct Networks(Api<DynamicObject>);

impl Networks {
    fn new(client: &Client) -> Self {
        Self(Api::namespaced_with(client.clone(), "default", &ApiResource::erase::<VirtualNetwork>(&())))
    }

    async fn create(&self, name: &str, spec: Value) -> Result<DynamicObject, String> {
        let object = json!({"apiVersion": "slipstream.dev/v1alpha1", "kind": "VirtualNetwork",
            "metadata": {"name": name}, "spec": spec});
        let object = serde_json::from_value(object).unwrap();
        self.0.create(&PostParams::default(), &object).await.map_err(|error| error.to_string())
    }

    async fn change(&self, name: &str, spec: Value) -> Result<DynamicObject, String> {
        let patch = Patch::Merge(json!({ "spec": spec }));
        self.0.patch(name, &PatchParams::default(), &patch).await.map_err(|error| error.to_string())
    }

    /// Status of the network's condition.
    async fn condition(&self, name: &str, kind: &str) -> Option<String> {
        let object = self.0.get(name).await.unwrap();
        let conditions = object.data["status"]["conditions"].as_array()?;
        let found = conditions.iter().find(|condition| condition["type"] == kind)?;
        Some(found["status"].as_str()?.to_owned())
    }
}

async fn create_pod(client: &Client, name: &str, request: &str) {
    let object = json!({
        "metadata": {"name": name, "annotations": {"ovnNetwork": request}},
        "spec": {"nodeName": "node-0", "containers": [{"name": "c", "image": "none"}]},
    });
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    pods.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
}

async fn kind_refuses(networks: &Networks) {
    let one = || json!({"subnets": ["172.16.30.0/24"]});
    for (name, spec, words) in [
        ("a.b", one(), "without dots"),
        ("none", json!({}), "spec.subnets: Required value"),
        ("empty", json!({"subnets": []}), "should have at least 1 items"),
        ("text", json!({"subnets": ["172.16.30.0"]}), "must be of type cidr"),
        ("twice", json!({"subnets": ["172.16.30.0/24", "172.16.31.0/24"]}), "one of IPv4 and one of IPv6"),
        ("reach", json!({"subnets": ["172.16.30.0/24"], "reach": "Everywhere"}), "Unsupported value"),
        ("mtu", json!({"subnets": ["fd00:30::/64"], "mtu": 1000}), "at least 1280"),
        (
            "gateways",
            json!({"subnets": ["172.16.30.0/24"], "gateways": ["172.16.30.1", "172.16.30.2"]}),
            "one gateway for each subnet",
        ),
    ] {
        let error = networks.create(name, spec).await.unwrap_err();
        assert!(error.contains(words), "{name}: {error}");
    }
    let made = networks.create("both", json!({"subnets": ["172.16.30.0/24", "fd00:30::/64"]})).await.unwrap();
    assert_eq!(
        (&made.data["spec"]["scope"], &made.data["spec"]["reach"]),
        (&json!("Namespace"), &json!("Isolated"))
    );
    for (spec, words) in [
        (json!({"subnets": ["172.16.31.0/24", "fd00:30::/64"]}), "subnets cannot be changed"),
        (json!({"reach": "Outside"}), "reach cannot be changed"),
        (json!({"scope": "Cluster"}), "scope cannot be changed"),
        (json!({"gateways": ["172.16.30.9"]}), "gateways cannot be changed"),
    ] {
        let error = networks.change("both", spec).await.unwrap_err();
        assert!(error.contains(words), "{error}");
    }
    networks.change("both", json!({"mtu": 1300, "excludedRanges": ["172.16.30.7"]})).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_lives_from_before_its_kind_is_known_until_its_last_pod_is_gone() {
    let cluster = Cluster::start().await;
    let client = cluster.client();
    cluster.create_nodes(1).await;
    let replica = Replica::start(&cluster);
    replica.is_ready("ok", PATIENCE).await;
    create_pod(&client, "early", r#"[{"name":"blue","interface":"net1"}]"#).await;
    let events: Api<Event> = Api::namespaced(client.clone(), "default");
    until("an event tells what is missing", async || {
        let all = events.list(&ListParams::default()).await.unwrap();
        all.items.iter().any(|event| {
            event.reason.as_deref() == Some("VirtualNetworkUnusable")
                && event
                    .note
                    .as_deref()
                    .is_some_and(|note| note.contains("there is no virtual network default/blue"))
        })
    })
    .await;

    install_kind(&client).await;
    let networks = Networks::new(&client);
    kind_refuses(&networks).await;
    let spec = json!({"scope": "Cluster", "reach": "Outside", "subnets": ["172.16.24.0/24"]});
    networks.create("blue", spec).await.unwrap();
    networks.create("overlaps", json!({"subnets": ["10.244.7.0/24"]})).await.unwrap();
    cluster.wait_for_port("default.blue_default_early", PATIENCE).await;
    until("the network is ready and in use", async || {
        networks.condition("blue", "Ready").await.as_deref() == Some("True")
            && networks.condition("blue", "InUse").await.as_deref() == Some("True")
            && networks.condition("overlaps", "Ready").await.as_deref() == Some("False")
    })
    .await;
    let object = networks.0.get("blue").await.unwrap();
    assert_eq!(
        object.metadata.finalizers.as_deref(),
        Some(&["slipstream.dev/virtual-network".to_owned()][..])
    );
    assert_eq!(
        (&object.data["status"]["addressesUsed"], &object.data["status"]["addressesFree"]),
        (&json!(1), &json!(252))
    );
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    until("the pod is annotated", async || {
        let annotations = pods.get("early").await.unwrap().metadata.annotations.unwrap();
        annotations
            .get("k8s.ovn.org/pod-networks")
            .is_some_and(|value| value.contains(r#""default/blue":{"ip_addresses":["172.16.24.2/24"]"#))
            && annotations.contains_key("ovnIfaceList")
    })
    .await;

    networks.0.delete("blue", &DeleteParams::default()).await.unwrap();
    create_pod(&client, "late", r#"[{"name":"blue","interface":"net1"}]"#).await;
    until("a pod that is late is told", async || {
        let all = events.list(&ListParams::default()).await.unwrap();
        all.items
            .iter()
            .any(|event| event.note.as_deref().is_some_and(|note| note.contains("is being deleted")))
    })
    .await;
    assert!(cluster.nbctl(&["ls-list"]).contains("(blue)"), "it stays while a pod is attached");
    pods.delete("early", &DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() })
        .await
        .unwrap();
    until("the network is gone", async || networks.0.get_opt("blue").await.unwrap().is_none()).await;
    until("its switch is gone", async || !cluster.nbctl(&["ls-list"]).contains("(blue)")).await;
}
