//! Objects of the API server, as the administrator: applied, read and deleted in this process. A `kubectl` costs a tenth of a second of
//! a processor, and many times that in an emulated machine, so it is left to what people type.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use api::virtual_network::VirtualNetwork;
use api::{multi_policy, network_attachment};
use k8s_openapi::api::core::v1::{Event, Node, NodeCondition, Pod, Service};
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::params::ValidationDirective;
use kube::core::{GroupVersionKind, NamespaceResourceScope, TypeMeta};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Bed;
use super::field::field;

/// Whose fields the applied ones are.
const MANAGER: &str = "testbed";
/// Kinds without a namespace, of those that the cluster and its tests make.
const CLUSTER_WIDE: [&str; 10] = [
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "IngressClass",
    "Namespace",
    "Node",
    "PriorityClass",
    "RuntimeClass",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
];

impl Bed {
    /// Creates or changes objects, given as YAML or JSON, several documents or a `List`: `kubectl apply --server-side`. Fields that an
    /// object does not have are refused. Returns the objects as the server has them then.
    pub fn apply(&self, text: &str) -> Result<Vec<DynamicObject>> {
        let objects = documents(text)?;
        self.api(async || {
            let client = self.client(None).await?;
            let params = PatchParams {
                field_manager: Some(MANAGER.to_owned()),
                force: true,
                field_validation: Some(ValidationDirective::Strict),
                ..PatchParams::default()
            };
            let mut applied = Vec::new();
            for object in &objects {
                let name = object.metadata.name.as_deref().context("an object without a name")?;
                let made = endpoint(&client, object)?.patch(name, &params, &Patch::Apply(object)).await;
                applied.push(made.with_context(|| format!("cannot apply {}", title(object)))?);
            }
            Ok(applied)
        })
    }

    /// Creates objects, given as for [`Self::apply`]; one that is there is an error.
    pub fn create(&self, text: &str) -> Result<()> {
        let objects = documents(text)?;
        self.api(async || {
            let client = self.client(None).await?;
            for object in &objects {
                let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
                let made = endpoint(&client, object)?.create(&params, object).await;
                made.with_context(|| format!("cannot create {}", title(object)))?;
            }
            Ok(())
        })
    }

    /// Deletes objects, given as for [`Self::apply`], and waits until they are gone.
    pub fn remove(&self, text: &str, limit: Duration) -> Result<()> {
        let objects = documents(text)?;
        self.api(async || {
            let client = self.client(None).await?;
            let end = Instant::now() + limit;
            for object in &objects {
                let name = object.metadata.name.as_deref().context("an object without a name")?;
                let api = endpoint(&client, object)?;
                let gone = api.delete(name, &DeleteParams::default()).await;
                gone.map(drop).with_context(|| format!("cannot delete {}", title(object)))?;
                while api.get_metadata_opt(name).await?.is_some() {
                    ensure!(Instant::now() < end, "{} is still there after {limit:?}", title(object));
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
            Ok(())
        })
    }

    /// Changes an object of a namespace by a JSON merge patch (RFC 7396).
    pub fn patch<K: Namespaced>(&self, namespace: &str, name: &str, patch: &Value) -> Result<()> {
        self.api(async || {
            let api = Api::<K>::namespaced(self.client(None).await?, namespace);
            let done = api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
            done.map(drop).with_context(|| format!("cannot change {} {namespace}/{name}", K::kind(&())))
        })
    }

    /// One object of a namespace.
    pub fn read<K: Namespaced>(&self, namespace: &str, name: &str) -> Result<K> {
        self.api(async || {
            let api = Api::<K>::namespaced(self.client(None).await?, namespace);
            api.get(name).await.with_context(|| format!("{} {namespace}/{name}", K::kind(&())))
        })
    }

    /// A field of an object, `pod/NAME`, `node/NAME`, `service/NAME` or `virtualnetwork/NAME`, by JSON path ([`field`]).
    pub fn field(&self, object: &str, namespace: &str, path: &str) -> Result<String> {
        let (kind, name) = object.split_once('/').with_context(|| format!("{object:?} is no KIND/NAME"))?;
        let resource = match kind {
            "pod" => ApiResource::erase::<Pod>(&()),
            "node" => ApiResource::erase::<Node>(&()),
            "service" => ApiResource::erase::<Service>(&()),
            "virtualnetwork" => ApiResource::erase::<VirtualNetwork>(&()),
            other => bail!("{other:?} is not a kind that is known here"),
        };
        let found = self.api(async || {
            let client = self.client(None).await?;
            let api: Api<DynamicObject> = match kind {
                "node" => Api::all_with(client, &resource),
                _ => Api::namespaced_with(client, namespace, &resource),
            };
            api.get(name).await.with_context(|| format!("{object} of {namespace}"))
        })?;
        field(&serde_json::to_value(found).context("an object as JSON")?, path)
    }

    /// Messages of the events about an object of this name, each with its reason; of one namespace, or of all.
    pub fn events(&self, namespace: Option<&str>, about: &str) -> Result<Vec<(String, String)>> {
        self.api(async || {
            let client = self.client(None).await?;
            let api: Api<Event> = match namespace {
                Some(namespace) => Api::namespaced(client, namespace),
                None => Api::all(client),
            };
            let which = ListParams::default().fields(&format!("involvedObject.name={about}"));
            let found = api.list(&which).await.with_context(|| format!("events about {about}"))?;
            let told = |event: Event| (event.reason.unwrap_or_default(), event.message.unwrap_or_default());
            Ok(found.items.into_iter().map(told).collect())
        })
    }

    /// Deletes objects of a namespace, if they are there, and waits until they are gone.
    pub fn delete_all<K: Namespaced>(&self, namespace: &str, names: &[&str], limit: Duration) -> Result<()> {
        self.api(async || {
            let api = Api::<K>::namespaced(self.client(None).await?, namespace);
            for name in names {
                match api.delete(name, &DeleteParams::default()).await {
                    Err(kube::Error::Api(status)) if status.code == 404 => {}
                    other => {
                        let what = || format!("cannot delete {} {namespace}/{name}", K::kind(&()));
                        other.map(drop).with_context(what)?;
                    }
                }
            }
            let end = Instant::now() + limit;
            loop {
                let all = api.list_metadata(&ListParams::default()).await?;
                let left: Vec<_> = all.items.iter().filter_map(|one| one.metadata.name.as_deref()).collect();
                let left: Vec<_> = names.iter().filter(|name| left.contains(name)).collect();
                if left.is_empty() {
                    return Ok(());
                }
                ensure!(Instant::now() < end, "{left:?} of {namespace} are still there after {limit:?}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        })
    }

    /// Waits until pods of a namespace are Ready: all that there are, or those of these names.
    pub fn pods_ready(&self, namespace: &str, names: Option<&[&str]>, limit: Duration) -> Result<()> {
        self.api(async || {
            let api = Api::<Pod>::namespaced(self.client(None).await?, namespace);
            let end = Instant::now() + limit;
            loop {
                let all = api.list(&ListParams::default()).await?.items;
                let ready: Vec<String> =
                    all.iter().filter(|pod| is_ready(pod)).map(ResourceExt::name_any).collect();
                let wanted: Vec<String> = match names {
                    Some(names) => names.iter().map(|name| (*name).to_owned()).collect(),
                    None => all.iter().map(ResourceExt::name_any).collect(),
                };
                let waiting: Vec<&String> = wanted.iter().filter(|name| !ready.contains(name)).collect();
                if waiting.is_empty() && !wanted.is_empty() {
                    return Ok(());
                }
                ensure!(Instant::now() < end, "not Ready after {limit:?}, of {}: {waiting:?}", wanted.len());
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        })
    }

    /// The objects of a namespace with these labels (`key=value,…`; all if empty).
    pub fn list<K: Namespaced>(&self, namespace: &str, labels: &str) -> Result<Vec<K>> {
        self.api(async || {
            let api = Api::<K>::namespaced(self.client(None).await?, namespace);
            let found = api.list(&ListParams::default().labels(labels)).await;
            Ok(found.with_context(|| format!("{} of {namespace}", K::plural(&())))?.items)
        })
    }

    /// A condition of a node, if it has been written.
    pub fn node_condition(&self, node: &str, name: &str) -> Result<Option<NodeCondition>> {
        self.api(async || {
            let found = Api::<Node>::all(self.client(None).await?).get(node).await;
            let status = found.with_context(|| format!("node {node}"))?.status.unwrap_or_default();
            Ok(status.conditions.into_iter().flatten().find(|condition| condition.type_ == name))
        })
    }

    /// The addresses of a pod; none until it has some.
    pub fn pod_addresses(&self, namespace: &str, name: &str) -> Result<Vec<IpAddr>> {
        addresses(&self.read(namespace, name)?)
    }

    /// The addresses of a pod that runs; an error as long as it does not.
    pub fn running_pod(&self, namespace: &str, name: &str) -> Result<Vec<IpAddr>> {
        let pod: Pod = self.read(namespace, name)?;
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        ensure!(phase == Some("Running"), "pod {namespace}/{name} has the phase {phase:?}");
        addresses(&pod)
    }

    /// The cluster IPs of a service; none if it is headless.
    pub fn cluster_ips(&self, namespace: &str, name: &str) -> Result<Vec<IpAddr>> {
        cluster_ips(&self.read(namespace, name)?)
    }

    /// Changes the status of an object, by a JSON merge patch (RFC 7396).
    pub fn patch_status<K: Namespaced>(&self, namespace: &str, patches: &[(String, Value)]) -> Result<()> {
        self.api(async || {
            let api = Api::<K>::namespaced(self.client(None).await?, namespace);
            for (name, patch) in patches {
                let done = api.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await;
                done.with_context(|| format!("status of {} {namespace}/{name}", K::kind(&())))?;
            }
            Ok(())
        })
    }

    /// Deletes an object of a namespace; it may take its time to go.
    pub fn delete<K: Namespaced>(&self, namespace: &str, name: &str) -> Result<()> {
        self.api(async || {
            let api = Api::<K>::namespaced(self.client(None).await?, namespace);
            let gone = api.delete(name, &DeleteParams::default()).await;
            gone.map(drop).with_context(|| format!("cannot delete {} {namespace}/{name}", K::kind(&())))
        })
    }

    /// Deletes the objects of a namespace with these labels; they may take their time to go.
    pub fn delete_labelled<K: Namespaced>(&self, namespace: &str, labels: &str) -> Result<()> {
        self.api(async || {
            let api = Api::<K>::namespaced(self.client(None).await?, namespace);
            let which = ListParams::default().labels(labels);
            let gone = api.delete_collection(&DeleteParams::default(), &which).await;
            gone.map(drop).with_context(|| format!("cannot delete {} of {namespace}", K::plural(&())))
        })
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// The addresses of a pod; none until it has some.
pub fn addresses(pod: &Pod) -> Result<Vec<IpAddr>> {
    let ips = pod.status.iter().flat_map(|status| status.pod_ips.iter().flatten());
    ips.map(|ip| ip.ip.parse().with_context(|| format!("address {:?} of a pod", ip.ip))).collect()
}

/// The cluster IPs of a service; none if it is headless.
pub fn cluster_ips(service: &Service) -> Result<Vec<IpAddr>> {
    let ips = service.spec.iter().flat_map(|spec| spec.cluster_ips.iter().flatten());
    let ips = ips.filter(|ip| *ip != "None");
    ips.map(|ip| ip.parse().with_context(|| format!("cluster IP {ip:?} of a service"))).collect()
}

/// A kind of the API whose objects are in namespaces.
pub trait Namespaced:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Clone + std::fmt::Debug + Send
{
}

impl<K> Namespaced for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + DeserializeOwned
        + Clone
        + std::fmt::Debug
        + Send
{
}

/// The objects of a text; a `List` is taken apart.
fn documents(text: &str) -> Result<Vec<DynamicObject>> {
    // JSON is YAML; but the reader of JSON is the faster one.
    let values: Vec<Value> = match serde_json::from_str(text) {
        Ok(value) => vec![value],
        Err(_) => serde_saphyr::from_multiple(text).context("neither JSON nor YAML")?,
    };
    let mut objects = Vec::new();
    for value in values {
        match value {
            Value::Null => {}
            Value::Object(mut fields) if fields.get("kind").and_then(Value::as_str) == Some("List") => {
                let items = fields.remove("items").unwrap_or_default();
                objects
                    .extend(serde_json::from_value::<Vec<DynamicObject>>(items).context("items of a List")?);
            }
            object => objects.push(serde_json::from_value(object).context("an object")?),
        }
    }
    if objects.is_empty() { bail!("no object in {text:?}") } else { Ok(objects) }
}

/// Where objects of this kind and namespace are.
fn endpoint(client: &Client, object: &DynamicObject) -> Result<Api<DynamicObject>> {
    let TypeMeta { api_version, kind } = object.types.as_ref().context("an object without a kind")?;
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let kind_of_group = GroupVersionKind::gvk(group, version, kind);
    // The names of some resources are not the kinds' with an `s`.
    let resource = match kind.as_str() {
        network_attachment::KIND => {
            ApiResource::from_gvk_with_plural(&kind_of_group, network_attachment::PLURAL)
        }
        multi_policy::KIND => ApiResource::from_gvk_with_plural(&kind_of_group, multi_policy::PLURAL),
        _ => ApiResource::from_gvk(&kind_of_group),
    };
    Ok(if CLUSTER_WIDE.contains(&kind.as_str()) {
        Api::all_with(client.clone(), &resource)
    } else {
        let namespace = object.metadata.namespace.as_deref().unwrap_or("default");
        Api::namespaced_with(client.clone(), namespace, &resource)
    })
}

/// Kind and name, as kubectl prints them.
#[must_use]
pub fn title(object: &DynamicObject) -> String {
    let kind = object.types.as_ref().map_or_else(String::new, |types| types.kind.to_lowercase());
    format!("{kind}/{}", object.metadata.name.as_deref().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn titles(text: &str) -> Vec<String> {
        documents(text).unwrap().iter().map(title).collect()
    }

    #[test]
    fn documents_of_yaml_and_the_items_of_a_list_are_objects() {
        let text = "# first\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n---\n\
                    apiVersion: v1\nkind: Service\nmetadata:\n  name: b\n  namespace: a\nspec:\n  ports: [{port: 80}]\n";
        assert_eq!(titles(text), ["namespace/a", "service/b"]);
        let list = r#"{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "c"}}]}"#;
        assert_eq!(titles(list), ["pod/c"]);
    }

    #[test]
    fn what_is_no_object_is_told() {
        assert!(documents("").unwrap_err().to_string().contains("no object"));
        assert!(documents("a: [").unwrap_err().to_string().contains("neither JSON nor YAML"));
    }

    #[test]
    fn names_in_yaml_stay_text() {
        let text =
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {number: \"1\", switch: \"yes\"}\n";
        let object = &documents(text).unwrap()[0];
        assert_eq!(object.data["data"], serde_json::json!({"number": "1", "switch": "yes"}));
    }
}
