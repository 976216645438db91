//! `slipstream-controller cleanup`: the end of an installation, as far as it is in Kubernetes' objects.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::annotation;
use api::virtual_network::{FINALIZER, VirtualNetwork};
use futures::StreamExt;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::{Value, json};

use crate::certificates;

/// How long the pods of controller, agents and Open vSwitch may take to end.
const PODS_END: Duration = Duration::from_secs(240);
/// Admission policies that were deleted are in force for about a second more.
const RETRY: Duration = Duration::from_secs(1);
const ATTEMPTS: u32 = 30;
/// How many objects are changed at the same time.
const PARALLEL: usize = 16;
/// How long the nodes may take.
const NODES_END: Duration = Duration::from_secs(240);
/// DaemonSet whose pods are ready when their node is clean.
const NODES: &str = "slipstream-cleanup";
/// Label of our pods.
const OURS: &str = "app.kubernetes.io/name=slipstream,app.kubernetes.io/component in (controller,node,ovs)";
/// Label of the pods that clean nodes, and the container that does.
const CLEANERS: &str = "app.kubernetes.io/name=slipstream,app.kubernetes.io/component=cleanup";
const CLEANER: &str = "cleanup";
/// Annotations of ovn-kubernetes that controller and agents write.
const KEYS: [&str; 11] = [
    annotation::POD_NETWORKS,
    api::pod_attachments::IFACE_LIST,
    annotation::NODE_SUBNETS,
    annotation::NODE_ID,
    annotation::NODE_CHASSIS_ID,
    annotation::L3_GATEWAY_CONFIG,
    annotation::NODE_ENCAP_IPS,
    annotation::HOST_CIDRS,
    annotation::NODE_PRIMARY_IFADDR,
    annotation::NODE_MASQUERADE_SUBNET,
    annotation::ZONE_NAME,
];

/// Waits until a pod that cleans its node runs on every node: without an agent and Open vSwitch a node may be cut off, and no pod would
/// come to it any more.
///
/// # Errors
/// They do not come.
pub async fn prepare(client: Client, namespace: &str) -> Result<()> {
    let sets: Api<DaemonSet> = Api::namespaced(client.clone(), namespace);
    let pods: Api<Pod> = Api::namespaced(client, namespace);
    let end = tokio::time::Instant::now() + NODES_END;
    loop {
        let set = sets.get(NODES).await.with_context(|| format!("DaemonSet {NODES}"))?;
        let status = set.status.unwrap_or_default();
        let wanted = usize::try_from(status.desired_number_scheduled).unwrap_or_default();
        let there = pods.list(&ListParams::default().labels(CLEANERS)).await.context("pods")?.items;
        let waiting: Vec<_> = there.iter().filter(|pod| has_begun(pod)).collect();
        if status.observed_generation.is_some() && waiting.len() >= wanted {
            tracing::info!(nodes = wanted, "every node has a pod that will clean it");
            return Ok(());
        }
        ensure!(
            tokio::time::Instant::now() < end,
            "{} of {wanted} nodes have a pod of DaemonSet {NODES} after {NODES_END:?}; see those that do not run, and delete Nodes \
             that are gone",
            waiting.len()
        );
        tokio::time::sleep(RETRY).await;
    }
}

/// Whether the last of the containers that clean the node has been started: nothing more is needed of the API server.
fn has_begun(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let mut containers =
        status.into_iter().flat_map(|status| status.init_container_statuses.iter().flatten());
    let cleaner = containers.find(|container| container.name == CLEANER);
    cleaner.and_then(|container| container.state.as_ref()).is_some_and(|state| state.running.is_some())
}

/// Waits until no controller, no agent and no Open vSwitch is there, and removes everything; then waits for the nodes, which clean themselves by a
/// DaemonSet, and removes that.
///
/// # Errors
/// Pods do not end, nodes do not become clean, or the API server refuses something for longer than policies take to go.
pub async fn run(client: Client, namespace: &str, lease: &str) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let end = tokio::time::Instant::now() + PODS_END;
    loop {
        let there = pods.list_metadata(&ListParams::default().labels(OURS)).await.context("pods")?.items;
        let Some(pod) = there.first() else { break };
        ensure!(
            tokio::time::Instant::now() < end,
            "pod {namespace}/{} is still there after {PODS_END:?}; delete the release first",
            pod.name_any()
        );
        tokio::time::sleep(RETRY).await;
    }
    let nodes: Api<Node> = Api::all(client.clone());
    for node in nodes.list(&ListParams::default()).await.context("nodes")?.items {
        let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let ours: Vec<_> = conditions
            .filter(|c| c.type_.starts_with(annotation::OWN_PREFIX))
            .map(|c| c.type_.clone())
            .collect();
        if !ours.is_empty() {
            let gone: Vec<_> = ours.iter().map(|kind| json!({"type": kind, "$patch": "delete"})).collect();
            let patch = Patch::Strategic(json!({"status": {"conditions": gone}}));
            let name = node.name_any();
            nodes
                .patch_status(&name, &PatchParams::default(), &patch)
                .await
                .with_context(|| format!("Node {name}"))?;
        }
    }
    let annotations = |metadata: &ObjectMeta| without_ours(metadata.annotations.as_ref()?);
    let mut changed = patch_all::<Node>(&client, annotations).await?;
    changed += patch_all::<Pod>(&client, annotations).await?;
    changed += patch_all::<VirtualNetwork>(&client, without_finalizer).await?;
    let gone = |name: String, done: kube::Result<()>| match done {
        Err(error) if is_not_found(&error) => Ok(()),
        done => done.with_context(|| name),
    };
    let params = DeleteParams::default();
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    for name in certificates::SECRETS {
        gone(format!("Secret {name}"), secrets.delete(name, &params).await.map(drop))?;
    }
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let map = api::certificate::AUTHORITIES;
    gone(format!("ConfigMap {map}"), maps.delete(map, &params).await.map(drop))?;
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    gone(format!("Lease {lease}"), leases.delete(lease, &params).await.map(drop))?;
    let requests: Api<CertificateSigningRequest> = Api::all(client.clone());
    let ours = ListParams::default().fields(&format!("spec.signerName={}", api::certificate::SIGNER));
    for request in requests.list_metadata(&ours).await.context("certificate requests")?.items {
        let name = request.name_any();
        gone(format!("CertificateSigningRequest {name}"), requests.delete(&name, &params).await.map(drop))?;
    }
    tracing::info!(objects = changed, "annotations and objects are removed");
    nodes_are_clean(&Api::namespaced(client, namespace)).await
}

async fn nodes_are_clean(sets: &Api<DaemonSet>) -> Result<()> {
    let end = tokio::time::Instant::now() + NODES_END;
    while let Some(set) = sets.get_opt(NODES).await.with_context(|| format!("DaemonSet {NODES}"))? {
        let status = set.status.unwrap_or_default();
        let (ready, all) = (status.number_ready, status.desired_number_scheduled);
        // Before the controller of DaemonSets has seen it, both are 0.
        if status.observed_generation.is_some() && ready == all {
            sets.delete(NODES, &DeleteParams::default())
                .await
                .with_context(|| format!("DaemonSet {NODES}"))?;
            tracing::info!(nodes = all, "all nodes are clean");
            return Ok(());
        }
        ensure!(
            tokio::time::Instant::now() < end,
            "{ready} of {all} nodes are clean after {NODES_END:?}; see the pods of DaemonSet {NODES} that are not ready"
        );
        tokio::time::sleep(RETRY).await;
    }
    Ok(())
}

/// Patches all objects of a kind that need it; returns how many did. A kind that the API server does not know has none.
async fn patch_all<K: Resource<DynamicType = ()>>(
    client: &Client,
    patch: impl Fn(&ObjectMeta) -> Option<Value>,
) -> Result<usize> {
    let kind = ApiResource::erase::<K>(&());
    let all: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
    let objects = match all.list_metadata(&ListParams::default()).await {
        Err(error) if is_not_found(&error) => return Ok(0),
        listed => listed.with_context(|| kind.plural.clone())?.items,
    };
    let patches = objects.iter().filter_map(|object| {
        let patch = patch(&object.metadata)?;
        Some((object.namespace(), object.name_any(), patch))
    });
    let patches: Vec<_> = patches.collect();
    let count = patches.len();
    let mut done = futures::stream::iter(patches)
        .map(|(namespace, name, patch)| {
            let objects: Api<DynamicObject> = match &namespace {
                Some(namespace) => Api::namespaced_with(client.clone(), namespace, &kind),
                None => all.clone(),
            };
            async move {
                let shown = format!("{} {}/{name}", kind_of(&objects), namespace.unwrap_or_default());
                patched(&objects, &name, &patch).await.context(shown)
            }
        })
        .buffer_unordered(PARALLEL);
    while let Some(outcome) = done.next().await {
        outcome?;
    }
    Ok(count)
}

fn kind_of(objects: &Api<DynamicObject>) -> String {
    objects.resource_url().to_owned()
}

async fn patched(objects: &Api<DynamicObject>, name: &str, patch: &Value) -> kube::Result<()> {
    let mut attempts = 0;
    loop {
        attempts += 1;
        match objects.patch_metadata(name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Err(error) if is_not_found(&error) => return Ok(()),
            Err(kube::Error::Api(_)) if attempts < ATTEMPTS => tokio::time::sleep(RETRY).await,
            done => return done.map(drop),
        }
    }
}

/// The patch that removes our annotations, if there are any.
fn without_ours(annotations: &BTreeMap<String, String>) -> Option<Value> {
    let is_ours = |key: &&String| KEYS.contains(&key.as_str()) || key.starts_with(annotation::OWN_PREFIX);
    let ours: BTreeMap<_, _> = annotations.keys().filter(is_ours).map(|key| (key, Value::Null)).collect();
    (!ours.is_empty()).then(|| json!({"metadata": {"annotations": ours}}))
}

/// The patch that takes our finalizer off a virtual network. The network is its user's, and stays.
fn without_finalizer(metadata: &ObjectMeta) -> Option<Value> {
    let finalizers = metadata.finalizers.as_ref()?;
    let others: Vec<_> = finalizers.iter().filter(|finalizer| *finalizer != FINALIZER).collect();
    (others.len() < finalizers.len()).then(|| json!({"metadata": {"finalizers": others}}))
}

fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_annotations_go_and_those_of_others_stay() {
        let of = |keys: &[&str]| keys.iter().map(|key| ((*key).to_owned(), String::new())).collect();
        let patch =
            without_ours(&of(&[annotation::NODE_ID, "slipstream.dev/cluster-network", "example.com/a"]));
        assert_eq!(
            patch.unwrap(),
            json!({"metadata": {"annotations": {"k8s.ovn.org/node-id": null, "slipstream.dev/cluster-network": null}}})
        );
        assert_eq!(without_ours(&of(&["k8s.ovn.org/egress-assignable"])), None);
    }

    #[test]
    fn our_finalizer_goes_and_those_of_others_stay() {
        let of = |all: &[&str]| ObjectMeta {
            finalizers: Some(all.iter().map(|one| (*one).to_owned()).collect()),
            ..ObjectMeta::default()
        };
        let patch = without_finalizer(&of(&["example.com/a", FINALIZER]));
        assert_eq!(patch, Some(json!({"metadata": {"finalizers": ["example.com/a"]}})));
        assert_eq!(without_finalizer(&of(&["example.com/a"])), None);
        assert_eq!(without_finalizer(&ObjectMeta::default()), None);
    }
}
