//! Makes a VirtualNetwork of each `onapNetwork`, where that kind is installed, and tells at the object what becomes of it. The
//! VirtualNetwork belongs to its `onapNetwork` and goes with it; everything else (addresses, conditions, pods that use it) is that one's.
//! Only the controller that leads writes.

use std::collections::BTreeMap;
use std::time::Duration;

use api::NamespacedName;
use api::error::chain;
use api::onap_network::{API_VERSION, KIND, OnapNetwork};
use api::virtual_network::{VirtualNetwork, VirtualNetworkSpec, condition};
use futures::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ApiResource, DeleteParams, DynamicObject, PostParams, Preconditions};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::TIMEOUT;
use super::watch::{WATCH, is_unknown_kind};
use crate::engine::Leadership;
use crate::metrics::{ErrorKind, Metrics};
use crate::state::{Notice, NoticeKind, ObjectRef};

/// First and longest wait before an object is looked at again that is not as it should be.
const RETRY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(300));
/// Before one that is right is looked at again, as somebody may have deleted its VirtualNetwork.
const AGAIN: Duration = Duration::from_secs(300);
/// Before a controller that does not lead asks whether it does.
const FOLLOWER: Duration = Duration::from_secs(1);

/// An object, or one that is gone and whose VirtualNetwork has to go.
#[derive(Debug)]
struct Known {
    object: OnapNetwork,
    is_gone: bool,
    due: Instant,
    wait: Duration,
    /// What has been told last.
    told: String,
}

/// What has been found.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// Nothing is left to be done.
    Right,
    /// Something has been done, or is being done by others.
    Underway,
    /// To be told to the object's user.
    Told(NoticeKind, String),
}

/// Follows the objects until the process ends.
pub async fn run(
    client: Client,
    leadership: Leadership,
    notices: mpsc::UnboundedSender<Notice>,
    metrics: Metrics,
) {
    let config = watcher::Config::default().timeout(WATCH);
    let mut events =
        watcher::watcher(Api::<OnapNetwork>::all(client.clone()), config).default_backoff().boxed();
    let mut all: BTreeMap<NamespacedName, Known> = BTreeMap::new();
    let mut listed: Vec<OnapNetwork> = Vec::new();
    loop {
        let wake = all.values().map(|known| known.due).min();
        let wake =
            wake.map(|due| if leadership.is_held() { due } else { due.max(Instant::now() + FOLLOWER) });
        tokio::select! {
            event = events.next() => match event {
                None => return,
                Some(Ok(event)) => take(&mut all, &mut listed, event),
                Some(Err(error)) if is_unknown_kind(&error) => gone_all(&mut all),
                Some(Err(error)) => {
                    metrics.error(ErrorKind::Watch);
                    tracing::warn!(error = chain(&error), "watch of {KIND} failed; retrying");
                }
            },
            () = sleep_until(wake), if wake.is_some() => {
                if leadership.is_held() {
                    settle_next(&client, &mut all, &notices, &metrics).await;
                }
            }
        }
    }
}

async fn sleep_until(wake: Option<Instant>) {
    match wake {
        Some(wake) => tokio::time::sleep_until(wake).await,
        None => std::future::pending().await,
    }
}

fn take(all: &mut BTreeMap<NamespacedName, Known>, listed: &mut Vec<OnapNetwork>, event: Event<OnapNetwork>) {
    match event {
        Event::Init => listed.clear(),
        Event::InitApply(object) => listed.push(object),
        Event::InitDone => {
            gone_all(all);
            std::mem::take(listed).into_iter().for_each(|object| put(all, object, false));
        }
        Event::Apply(object) => put(all, object, false),
        Event::Delete(object) => put(all, object, true),
    }
}

fn gone_all(all: &mut BTreeMap<NamespacedName, Known>) {
    for known in all.values_mut() {
        (known.is_gone, known.due, known.wait) = (true, Instant::now(), RETRY.0);
    }
}

fn put(all: &mut BTreeMap<NamespacedName, Known>, object: OnapNetwork, is_gone: bool) {
    let name = NamespacedName::from(&object.metadata);
    // One that was made again has the same name; the old one's VirtualNetwork is not its own, and goes by its owner.
    let told = all.remove(&name).filter(|old| old.object.metadata.uid == object.metadata.uid);
    let told = told.map(|old| old.told).unwrap_or_default();
    all.insert(name, Known { object, is_gone, due: Instant::now(), wait: RETRY.0, told });
}

/// Looks at the object that is due first.
async fn settle_next(
    client: &Client,
    all: &mut BTreeMap<NamespacedName, Known>,
    notices: &mpsc::UnboundedSender<Notice>,
    metrics: &Metrics,
) {
    let Some(name) = all.iter().min_by_key(|(_, known)| known.due).map(|(name, _)| name.clone()) else {
        return;
    };
    let Some(known) = all.get_mut(&name) else { return };
    let looked = tokio::time::timeout(TIMEOUT, settle(client, &name, known)).await;
    let now = Instant::now();
    match looked {
        Ok(Ok(Found::Right)) if known.is_gone => {
            all.remove(&name);
            return;
        }
        Ok(Ok(Found::Right)) => {
            (known.due, known.wait) = (now + AGAIN, RETRY.0);
            known.told.clear();
            return;
        }
        Ok(Ok(Found::Underway)) => {}
        Ok(Ok(Found::Told(kind, problem))) => {
            let message = format!("{KIND} {name}: {problem}");
            if known.told != message {
                tracing::error!(?kind, "{message}");
                metrics.error(kind.into());
                let uid = known.object.metadata.uid.clone().unwrap_or_default();
                let object = Some(ObjectRef { uid, ..ObjectRef::named(KIND, &name) });
                // Fails only when the process is about to end.
                let _ = notices.send(Notice { kind, object, message: message.clone() });
                known.told = message;
            }
        }
        Ok(Err(error)) => {
            metrics.error(ErrorKind::OnapNetwork);
            tracing::warn!(object = %name, error = chain(&error), "the VirtualNetwork of an {KIND} is not written; retrying");
        }
        Err(_elapsed) => {
            metrics.error(ErrorKind::OnapNetwork);
            tracing::warn!(object = %name, "no answer about the VirtualNetwork of an {KIND}; retrying");
        }
    }
    known.due = now + known.wait;
    known.wait = (known.wait * 2).min(RETRY.1);
}

fn owner_of(network: &VirtualNetwork) -> Option<&str> {
    let owners = network.metadata.owner_references.iter().flatten();
    owners
        .into_iter()
        .find(|owner| owner.kind == KIND && owner.api_version == API_VERSION)
        .map(|owner| owner.uid.as_str())
}

/// Does what is to be done for an object.
async fn settle(client: &Client, name: &NamespacedName, known: &Known) -> kube::Result<Found> {
    let api: Api<VirtualNetwork> = Api::namespaced(client.clone(), &name.namespace);
    let uid = known.object.metadata.uid.as_deref().unwrap_or_default();
    let found = api.get_opt(&name.name).await?;
    if known.is_gone {
        let Some(network) = found.filter(|network| owner_of(network) == Some(uid)) else {
            return Ok(Found::Right);
        };
        if network.metadata.deletion_timestamp.is_none() {
            let preconditions = Preconditions { uid: network.metadata.uid.clone(), resource_version: None };
            let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
            api.delete(&name.name, &params).await?;
        }
        // It stays while pods are attached to it, and goes by itself then.
        return Ok(Found::Right);
    }
    let spec = match known.object.read() {
        Ok(spec) => spec,
        Err(error) => return Ok(Found::Told(NoticeKind::Malformed, error.to_string())),
    };
    let Some(network) = found else {
        let all = ApiResource::erase::<VirtualNetwork>(&());
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &name.namespace, &all);
        return match api.create(&PostParams::default(), &network(name, uid, &spec)).await {
            Ok(_made) => Ok(Found::Underway),
            Err(kube::Error::Api(status)) if (400..500).contains(&status.code) && status.code != 409 => {
                let problem = format!("the API server refuses its VirtualNetwork: {}", status.message);
                Ok(Found::Told(NoticeKind::Refused, problem))
            }
            Err(error) => Err(error),
        };
    };
    Ok(judge(name, uid, &spec, &network))
}

/// What is to be said of an object whose name a VirtualNetwork has.
fn judge(name: &NamespacedName, uid: &str, spec: &VirtualNetworkSpec, network: &VirtualNetwork) -> Found {
    match owner_of(network) {
        Some(owner) if owner == uid => {}
        // One of the name was deleted, and its VirtualNetwork is about to go.
        Some(_) if network.metadata.deletion_timestamp.is_some() => return Found::Underway,
        _ => {
            let problem = format!(
                "VirtualNetwork {name} was not made of this object and has its name; delete one of them, or choose another name"
            );
            return Found::Told(NoticeKind::NetworkConflict, problem);
        }
    }
    let fixed =
        |spec: &VirtualNetworkSpec| (spec.subnets.clone(), spec.gateways.clone(), spec.scope, spec.reach);
    if !network.read_spec().is_ok_and(|found| fixed(&found) == fixed(spec)) {
        let problem = format!(
            "spec.config differs from VirtualNetwork {name}, which stays as it is: a network cannot be changed, as pods have addresses of \
             it; make another one"
        );
        return Found::Told(NoticeKind::Malformed, problem);
    }
    let status = network.read_status();
    if status.observed_generation.is_none() || status.observed_generation < network.metadata.generation {
        return Found::Underway;
    }
    match status.conditions.iter().find(|one| one.kind == condition::READY) {
        Some(ready) if ready.status != "True" => {
            let kind = match status.is(condition::CONFLICT) {
                true => NoticeKind::NetworkConflict,
                false => NoticeKind::Malformed,
            };
            Found::Told(kind, format!("VirtualNetwork {name} is not ready: {}", ready.message))
        }
        Some(_) => Found::Right,
        None => Found::Underway,
    }
}

/// The VirtualNetwork of an object.
fn network(name: &NamespacedName, uid: &str, spec: &VirtualNetworkSpec) -> DynamicObject {
    let owner = OwnerReference {
        api_version: API_VERSION.to_owned(),
        kind: KIND.to_owned(),
        name: name.name.clone(),
        uid: uid.to_owned(),
        controller: Some(true),
        ..OwnerReference::default()
    };
    let mut object = DynamicObject::new(&name.name, &ApiResource::erase::<VirtualNetwork>(&()));
    object.metadata.namespace = Some(name.namespace.clone());
    object.metadata.owner_references = Some(vec![owner]);
    object.data = json!({ "spec": spec });
    object
}

#[cfg(test)]
mod tests;
