//! Puts objects into the API server, many at once.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use api::annotation;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod as PodObject, Service as ServiceObject};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::Request;
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::contents::Contents;
use super::node;
use super::policy::{Labels, Policy};
use super::world::{Pod, World};

/// Requests under way at once.
const PARALLEL: usize = 64;
/// Objects of one page of a list.
const PAGE: u32 = 2000;

/// Makes objects; those that are there stay.
async fn create<K>(objects: impl IntoIterator<Item = Result<(Api<K>, K)>>) -> Result<()>
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned,
{
    stream::iter(objects)
        .map(|object| async move {
            let (api, object) = object?;
            match api.create(&PostParams::default(), &object).await {
                Ok(_) => Ok(()),
                Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
                Err(error) => Err(error).with_context(|| format!("creation of {}", object.name_any())),
            }
        })
        .buffer_unordered(PARALLEL)
        .try_collect()
        .await
}

/// The first so many simulated nodes, with what the agent of each would have written on it.
pub(super) async fn nodes(client: &Client, count: usize) -> Result<()> {
    create((0..count).map(|i| Ok((Api::<Node>::all(client.clone()), node::object(i)?)))).await?;
    stream::iter(0..count)
        .map(|i| async move {
            let patch = json!({"metadata": {"annotations": node::annotations(i)?}});
            as_agent(client, &node::name(i), &patch).await.with_context(|| format!("node {}", node::name(i)))
        })
        .buffer_unordered(PARALLEL)
        .try_collect()
        .await
}

/// Patches a node as its agent, by a token that is bound to it: no other client may write these annotations. The administrator
/// impersonates the agent, with all rights, so that only admission decides.
async fn as_agent(client: &Client, node: &str, patch: &Value) -> Result<()> {
    let url = Node::url_path(&(), None);
    let mut request = Request::new(url).patch(node, &PatchParams::default(), &Patch::Merge(patch))?;
    for (header, value) in [
        ("impersonate-user", "system:serviceaccount:kube-system:slipstream-node-agent"),
        ("impersonate-group", "system:masters"),
        ("impersonate-extra-authentication.kubernetes.io%2fnode-name", node),
    ] {
        request.headers_mut().insert(header, value.parse()?);
    }
    client.request::<Node>(request).await?;
    Ok(())
}

/// Namespaces with their labels.
pub(super) async fn namespaces(
    client: &Client,
    list: impl IntoIterator<Item = (&String, &Labels)>,
) -> Result<()> {
    create(list.into_iter().map(|(name, labels)| {
        let object = json!({"metadata": {"name": name, "labels": labels}});
        Ok((Api::<Namespace>::all(client.clone()), serde_json::from_value(object)?))
    }))
    .await
}

/// Pods.
pub(super) async fn pods(client: &Client, list: impl IntoIterator<Item = &Pod>) -> Result<()> {
    create(list.into_iter().map(|pod| Ok((of_pods(client, pod), pod.object()?)))).await
}

/// Policies.
pub(super) async fn policies(client: &Client, list: impl IntoIterator<Item = &Policy>) -> Result<()> {
    create(list.into_iter().map(|policy| Ok((of_policies(client, policy), policy.object()?)))).await
}

/// All services of a world with their slices; the endpoints have the addresses that the database has.
pub(super) async fn services(client: &Client, world: &World, contents: &Contents) -> Result<()> {
    create(world.services.iter().map(|service| {
        let api = Api::<ServiceObject>::namespaced(client.clone(), &service.namespace);
        Ok((api, serde_json::from_value(service.json())?))
    }))
    .await?;
    create(world.services.iter().map(|service| {
        let api = Api::<EndpointSlice>::namespaced(client.clone(), &service.namespace);
        let endpoint = |port: &String| {
            let node = world.pods.get(port).map(|pod| pod.node.clone());
            Some((contents.address(port)?.to_owned(), node?))
        };
        let endpoints: Vec<_> = service.backends.iter().filter_map(endpoint).collect();
        ensure!(
            endpoints.len() == service.backends.len(),
            "an endpoint of {} has no address",
            service.owner()
        );
        Ok((api, serde_json::from_value(service.slice(&endpoints))?))
    }))
    .await
}

/// Deletes pods at once.
pub(super) async fn delete_pods(client: &Client, list: &[Pod]) -> Result<()> {
    stream::iter(list)
        .map(|pod| async move {
            of_pods(client, pod).delete(&pod.name, &DeleteParams::default().grace_period(0)).await?;
            anyhow::Ok(())
        })
        .buffer_unordered(PARALLEL)
        .try_collect()
        .await
}

/// Gives pods the labels that the book has.
pub(super) async fn relabel(client: &Client, list: &[Pod]) -> Result<()> {
    stream::iter(list)
        .map(|pod| async move {
            let patch = json!({"metadata": {"labels": pod.labels}});
            of_pods(client, pod)
                .patch_metadata(&pod.name, &PatchParams::default(), &Patch::Merge(&patch))
                .await?;
            anyhow::Ok(())
        })
        .buffer_unordered(PARALLEL)
        .try_collect()
        .await
}

/// Replaces the spec of a policy.
pub(super) async fn change_policy(client: &Client, policy: &Policy) -> Result<()> {
    let api = of_policies(client, policy);
    let mut object = policy.object()?;
    object.metadata.resource_version = api.get(&policy.name).await?.metadata.resource_version;
    api.replace(&policy.name, &PostParams::default(), &object).await?;
    Ok(())
}

/// Deletes a policy.
pub(super) async fn delete_policy(client: &Client, policy: &Policy) -> Result<()> {
    of_policies(client, policy).delete(&policy.name, &DeleteParams::default()).await?;
    Ok(())
}

/// Waits until every pod of the cluster has its annotation; says when that was seen.
pub(super) async fn annotated(client: &Client, limit: Duration) -> Result<Instant> {
    let api = Api::<PodObject>::all(client.clone());
    let end = Instant::now() + limit;
    loop {
        let mut lacks = 0;
        let mut params = ListParams::default().limit(PAGE);
        loop {
            let list = api.list_metadata(&params).await.context("list of pods")?;
            lacks +=
                list.iter().filter(|pod| !pod.annotations().contains_key(annotation::POD_NETWORKS)).count();
            match list.metadata.continue_ {
                Some(next) if !next.is_empty() => params = params.continue_token(&next),
                _ => break,
            }
        }
        if lacks == 0 {
            return Ok(Instant::now());
        }
        ensure!(Instant::now() < end, "{lacks} pods have no {} after {limit:?}", annotation::POD_NETWORKS);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

pub(super) fn of_pods(client: &Client, pod: &Pod) -> Api<PodObject> {
    Api::namespaced(client.clone(), &pod.namespace)
}

fn of_policies(client: &Client, policy: &Policy) -> Api<NetworkPolicy> {
    Api::namespaced(client.clone(), &policy.namespace)
}
