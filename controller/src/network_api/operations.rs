//! The four operations, with the caller's rights. What is made is waited for: either the controller takes it, or nothing is left of it.

use std::time::Duration;

use api::NamespacedName;
use api::virtual_network::{
    API_VERSION, KIND, VirtualNetwork, VirtualNetworkSpec, check_name, condition, legacy,
};
use axum::http::StatusCode;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions,
};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::answer::{Answer, Failure, shown};

/// Wait between two looks at a network.
const LOOK: Duration = Duration::from_millis(200);
/// How long a deletion is waited for; a network in use takes as long as its pods.
const DELETED: Duration = Duration::from_secs(5);
/// Networks in one answer of the API server.
const PAGE: u32 = 500;

/// The networks, for one caller.
pub(super) struct Networks {
    pub(super) client: Client,
    /// How long the controller may take to judge a network.
    pub(super) patience: Duration,
    /// One of the requests that are carried out at once.
    pub(super) _place: OwnedSemaphorePermit,
}

impl Networks {
    fn of(&self, namespace: &str) -> Api<VirtualNetwork> {
        Api::namespaced(self.client.clone(), namespace)
    }

    pub(super) async fn list(&self, namespace: Option<&str>) -> Result<Answer, Failure> {
        let api: Api<VirtualNetwork> = match namespace {
            Some(namespace) => self.of(namespace),
            None => Api::all(self.client.clone()),
        };
        let mut networks = Vec::new();
        let mut params = ListParams::default().limit(PAGE);
        loop {
            let page = api.list(&params).await?;
            networks.extend(page.items.iter().map(shown));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => return Ok(Answer { code: StatusCode::OK, body: json!({ "networks": networks }) }),
            }
        }
    }

    pub(super) async fn query(&self, name: &NamespacedName) -> Result<Answer, Failure> {
        let network = self.of(&name.namespace).get(&name.name).await?;
        Ok(Answer { code: StatusCode::OK, body: shown(&network) })
    }

    /// `body`: `name`, and `spec` or, as in an onapNetwork, `config`.
    pub(super) async fn create(&self, namespace: &str, body: &Value) -> Result<Answer, Failure> {
        let wrong = |message: String| Failure::new(StatusCode::BAD_REQUEST, message);
        let name =
            body["name"].as_str().ok_or_else(|| wrong("`name` is missing; must be a string".to_owned()))?;
        check_name(name).map_err(|error| wrong(error.to_string()))?;
        let spec = match (&body["spec"], body["config"].as_str()) {
            (Value::Null, Some(config)) => {
                let spec = legacy::convert(name, config).map_err(|error| wrong(error.to_string()))?;
                json!(spec)
            }
            (Value::Null, None) => {
                return Err(wrong(
                    "`spec` is missing; the fields of a VirtualNetwork's spec are needed".to_owned(),
                ));
            }
            (spec, None) => {
                VirtualNetworkSpec::read(spec).map_err(|error| wrong(error.to_string()))?;
                spec.clone()
            }
            (_, Some(_)) => {
                return Err(wrong("`spec` and `config` are both there; one of them is needed".to_owned()));
            }
        };
        let object = json!({
            "apiVersion": API_VERSION, "kind": KIND, "metadata": {"namespace": namespace, "name": name}, "spec": spec,
        });
        let object: DynamicObject =
            serde_json::from_value(object).map_err(|error| wrong(error.to_string()))?;
        let resource = ApiResource::erase::<VirtualNetwork>(&());
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &resource);
        let made = api.create(&PostParams::default(), &object).await?;
        let name = NamespacedName::new(namespace, name);
        let uid = made.metadata.uid.unwrap_or_default();
        match self.judged(&name, &uid).await {
            Ok(network) => Ok(Answer { code: StatusCode::CREATED, body: shown(&network) }),
            Err(Failure { code, message }) => {
                let rest = match self.removed(&name, &uid).await {
                    Ok(None) => "it is removed again".to_owned(),
                    Ok(Some(why)) => format!("and it is not removed yet: {why}"),
                    Err(error) => format!("and it could not be removed again: {}", error.message),
                };
                Err(Failure::new(code, format!("virtual network {name}: {message}; {rest}")))
            }
        }
    }

    /// `body`: `spec` with the fields to change; null takes a field away.
    pub(super) async fn update(&self, name: &NamespacedName, body: &Value) -> Result<Answer, Failure> {
        let spec = body["spec"].as_object().filter(|spec| !spec.is_empty()).ok_or_else(|| {
            Failure::new(
                StatusCode::BAD_REQUEST,
                "`spec` is missing; an object with the fields to change is needed",
            )
        })?;
        let patch = Patch::Merge(json!({ "spec": spec }));
        let changed = self.of(&name.namespace).patch(&name.name, &PatchParams::default(), &patch).await?;
        let uid = changed.metadata.uid.unwrap_or_default();
        let network = self.judged(name, &uid).await.map_err(|Failure { code, message }| {
            Failure::new(code, format!("virtual network {name}: {message}"))
        })?;
        Ok(Answer { code: StatusCode::OK, body: shown(&network) })
    }

    pub(super) async fn delete(&self, name: &NamespacedName) -> Result<Answer, Failure> {
        let uid = self.of(&name.namespace).get(&name.name).await?.metadata.uid.unwrap_or_default();
        Ok(match self.removed(name, &uid).await? {
            None => Answer { code: StatusCode::OK, body: json!({"deleted": true}) },
            Some(message) => {
                Answer { code: StatusCode::ACCEPTED, body: json!({"deleted": false, "message": message}) }
            }
        })
    }

    /// Deletes the network, and waits until it is gone. Says why it is still there where that takes longer.
    async fn removed(&self, name: &NamespacedName, uid: &str) -> Result<Option<String>, Failure> {
        let only = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
        let params = DeleteParams { preconditions: Some(only), ..DeleteParams::default() };
        let api = self.of(&name.namespace);
        api.delete(&name.name, &params).await?;
        let end = Instant::now() + DELETED.min(self.patience);
        loop {
            let left = api.get_opt(&name.name).await?;
            let Some(left) = left.filter(|network| network.metadata.uid.as_deref() == Some(uid)) else {
                return Ok(None);
            };
            let conditions = left.read_status().conditions;
            let in_use =
                conditions.into_iter().find(|one| one.kind == condition::IN_USE && one.status == "True");
            if in_use.is_some() || Instant::now() >= end {
                let why = in_use.map(|condition| condition.message);
                return Ok(Some(why.unwrap_or_else(|| "it is being deleted".to_owned())));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The network, once the controller has judged its present fields.
    async fn judged(&self, name: &NamespacedName, uid: &str) -> Result<VirtualNetwork, Failure> {
        let end = Instant::now() + self.patience;
        let api = self.of(&name.namespace);
        loop {
            let network = api.get(&name.name).await?;
            if network.metadata.uid.as_deref() != Some(uid) {
                return Err(Failure::new(
                    StatusCode::CONFLICT,
                    "somebody else has made another one of the name meanwhile",
                ));
            }
            let status = network.read_status();
            let is_judged = status.observed_generation == network.metadata.generation;
            let ready = status.conditions.iter().find(|one| is_judged && one.kind == condition::READY);
            match ready {
                Some(ready) if ready.status == "True" => return Ok(network),
                Some(ready) => {
                    return Err(Failure::new(StatusCode::UNPROCESSABLE_ENTITY, ready.message.clone()));
                }
                None if Instant::now() >= end => {
                    let message =
                        format!("the controller said nothing of it within {} s", self.patience.as_secs());
                    return Err(Failure::new(StatusCode::GATEWAY_TIMEOUT, message));
                }
                None => tokio::time::sleep(LOOK).await,
            }
        }
    }
}
