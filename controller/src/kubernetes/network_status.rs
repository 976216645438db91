//! Writes status and finalizer of virtual networks.

use api::virtual_network::{FINALIZER, VirtualNetwork};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use super::reports::Report;
use crate::metrics::ErrorKind;
use crate::state::{NetworkReport, ObjectRef};

impl Report for NetworkReport {
    const KIND: ErrorKind = ErrorKind::NetworkStatus;

    fn object(&self) -> &ObjectRef {
        &self.object
    }

    fn key(&self) -> String {
        self.object.uid.clone()
    }

    async fn write(&self, client: &Client) -> kube::Result<()> {
        send(client, self).await
    }
}

fn now() -> String {
    let time = serde_json::to_value(Time(Timestamp::now()));
    time.ok().and_then(|time| time.as_str().map(str::to_owned)).unwrap_or_default()
}

async fn send(client: &Client, report: &NetworkReport) -> kube::Result<()> {
    let object = &report.object;
    let space = object.namespace.as_deref().unwrap_or_default();
    let api: Api<VirtualNetwork> = Api::namespaced(client.clone(), space);
    let params = PatchParams::default();
    let mut found = api.get(&object.name).await?;
    if found.metadata.uid.as_deref() != Some(object.uid.as_str()) {
        return Ok(());
    }
    let before = found.read_status();
    if !report.status.says_the_same_as(&before) {
        let status = report.status.clone().with_times(&before, &now());
        let patch = json!({"metadata": {"uid": object.uid}, "status": status});
        found = api.patch_status(&object.name, &params, &Patch::Merge(patch)).await?;
    }
    let mut finalizers = found.metadata.finalizers.unwrap_or_default();
    let has = finalizers.iter().any(|finalizer| finalizer == FINALIZER);
    if has == report.finalizer || (report.finalizer && found.metadata.deletion_timestamp.is_some()) {
        return Ok(());
    }
    if report.finalizer {
        finalizers.push(FINALIZER.to_owned());
    } else {
        finalizers.retain(|finalizer| finalizer != FINALIZER);
    }
    // The list is written as a whole: not over a change by somebody else.
    let metadata = json!({"uid": object.uid, "resourceVersion": found.metadata.resource_version, "finalizers": finalizers});
    api.patch_metadata(&object.name, &params, &Patch::Merge(json!({ "metadata": metadata }))).await.map(drop)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use api::NamespacedName;
    use api::virtual_network::{Condition, KIND, VirtualNetworkStatus};
    use axum::Router;
    use axum::http::Method;
    use serde_json::Value;

    use tokio::sync::mpsc;

    use super::*;
    use crate::kubernetes::fake;
    use crate::kubernetes::reports::{COLLECT, run, write};
    use crate::metrics::Metrics;

    fn report(used: u64, finalizer: bool) -> NetworkReport {
        let object = ObjectRef {
            uid: "u1".to_owned(),
            ..ObjectRef::named(KIND, &NamespacedName::new("shop", "blue"))
        };
        let ready = Condition { kind: "Ready".to_owned(), status: "True".to_owned(), ..Condition::default() };
        let status = VirtualNetworkStatus {
            conditions: vec![ready],
            addresses_used: used,
            ..VirtualNetworkStatus::default()
        };
        NetworkReport { object, status, finalizer }
    }

    /// An API server with one object, and the paths that were written.
    async fn server(object: Value) -> (Client, Arc<Mutex<(Value, Vec<String>)>>) {
        let state = Arc::new(Mutex::new((object, Vec::new())));
        let kept = Arc::clone(&state);
        let pages =
            Router::new().fallback(async move |method: Method, uri: axum::http::Uri, body: String| {
                let mut state = kept.lock().unwrap();
                if method == Method::PATCH {
                    state.1.push(uri.path().rsplit('/').next().unwrap().to_owned());
                    let patch: Value = serde_json::from_str(&body).unwrap();
                    if !patch["status"].is_null() {
                        state.0["status"] = patch["status"].clone();
                    }
                    if !patch["metadata"]["finalizers"].is_null() {
                        assert_eq!(patch["metadata"]["resourceVersion"], "7");
                        state.0["metadata"]["finalizers"] = patch["metadata"]["finalizers"].clone();
                    }
                }
                fake::object(state.0.clone())
            });
        (fake::serve(pages).await, state)
    }

    fn object(uid: &str) -> Value {
        json!({"apiVersion": "slipstream.dev/v1alpha1", "kind": "VirtualNetwork",
            "metadata": {"name": "blue", "namespace": "shop", "uid": uid, "resourceVersion": "7", "finalizers": ["other"]},
            "spec": {"subnets": ["172.16.24.0/24"]}})
    }

    #[tokio::test]
    async fn the_last_state_is_written_once_and_what_is_there_is_not_written_again() {
        let (client, state) = server(object("u1")).await;
        let (reports, queue) = mpsc::unbounded_channel();
        let task = tokio::spawn(run(client, queue, mpsc::unbounded_channel().0, Metrics::default()));
        for used in 0..50 {
            reports.send(report(used, true)).unwrap();
        }
        let written = async |count: usize| {
            for _ in 0..500 {
                if state.lock().unwrap().1.len() >= count {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            panic!("nothing is written: {:?}", state.lock().unwrap());
        };
        written(2).await;
        reports.send(report(49, true)).unwrap();
        tokio::time::sleep(COLLECT * 2).await;
        {
            let (object, paths) = &*state.lock().unwrap();
            assert_eq!(*paths, ["status", "blue"]);
            assert_eq!(object["status"]["addressesUsed"], 49);
            assert!(object["status"]["conditions"][0]["lastTransitionTime"].as_str().unwrap().ends_with('Z'));
            assert_eq!(object["metadata"]["finalizers"], json!(["other", FINALIZER]));
        }
        reports.send(report(49, false)).unwrap();
        written(3).await;
        assert_eq!(state.lock().unwrap().0["metadata"]["finalizers"], json!(["other"]));
        task.abort();
    }

    #[tokio::test]
    async fn another_object_of_the_name_is_left_alone() {
        let (client, state) = server(object("u2")).await;
        let (_, _, result) = write(client, report(1, true), false).await;
        assert_eq!(result, Ok(()));
        assert!(state.lock().unwrap().1.is_empty());
    }
}
