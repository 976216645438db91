//! The necessary part of a Kubernetes API: lists and watches of pods.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use futures::StreamExt;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::broadcast;

#[derive(Clone)]
pub(crate) struct FakeApi {
    pods: Arc<Mutex<(u64, BTreeMap<String, Value>)>>,
    events: broadcast::Sender<(u64, Value)>,
    port: u16,
}

impl FakeApi {
    pub(crate) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let api = Self {
            pods: Arc::new(Mutex::new((1, BTreeMap::new()))),
            events: broadcast::Sender::new(1024),
            port,
        };
        let router = Router::new().route("/api/v1/pods", get(pods)).with_state(api.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        api
    }

    pub(crate) fn write_kubeconfig(&self, dir: &Path) -> PathBuf {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "c", "cluster": { "server": format!("http://127.0.0.1:{}", self.port) } }],
            "users": [{ "name": "c", "user": {} }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "c" } }],
        });
        let path = dir.join("kubeconfig");
        std::fs::write(&path, config.to_string()).unwrap();
        path
    }

    /// Adds or changes a pod of namespace `ns`.
    pub(crate) fn put(&self, name: &str, uid: &str, networks: Option<&str>) {
        let mut annotations = serde_json::Map::new();
        if let Some(networks) = networks {
            annotations.insert("k8s.ovn.org/pod-networks".to_owned(), json!(networks));
        }
        self.change("ADDED", name, json!({ "uid": uid, "annotations": annotations }));
    }

    /// Adds a pod that names NetworkAttachmentDefinitions.
    pub(crate) fn put_naming(&self, name: &str, uid: &str, networks: Option<&str>, selections: &str) {
        let mut annotations = serde_json::Map::new();
        annotations.insert("k8s.v1.cni.cncf.io/networks".to_owned(), json!(selections));
        if let Some(networks) = networks {
            annotations.insert("k8s.ovn.org/pod-networks".to_owned(), json!(networks));
        }
        self.change("ADDED", name, json!({ "uid": uid, "annotations": annotations }));
    }

    pub(crate) fn remove(&self, name: &str) {
        self.change("DELETED", name, json!({}));
    }

    fn change(&self, kind: &str, name: &str, mut metadata: Value) {
        let mut pods = self.pods.lock();
        pods.0 += 1;
        metadata["name"] = json!(name);
        metadata["namespace"] = json!("ns");
        metadata["resourceVersion"] = json!(pods.0.to_string());
        let object = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata });
        if kind == "DELETED" {
            pods.1.remove(name);
        } else {
            pods.1.insert(name.to_owned(), object.clone());
        }
        let _ = self.events.send((pods.0, json!({ "type": kind, "object": object })));
    }
}

async fn pods(State(api): State<FakeApi>, RawQuery(query): RawQuery) -> Response {
    let query = query.unwrap_or_default().replace("%3D", "=");
    let query: BTreeMap<&str, &str> = query.split('&').filter_map(|pair| pair.split_once('=')).collect();
    assert_eq!(query.get("fieldSelector").copied(), Some("spec.nodeName=n1"), "only this node's pods");
    let pods = api.pods.lock();
    if !query.contains_key("watch") {
        assert_eq!(query.get("resourceVersion").copied(), Some("0"), "a list out of the server's memory");
        let list = json!({
            "apiVersion": "v1", "kind": "PodList",
            "metadata": { "resourceVersion": pods.0.to_string() },
            "items": pods.1.values().collect::<Vec<_>>(),
        });
        return Json(list).into_response();
    }
    let since: u64 = query.get("resourceVersion").and_then(|v| v.parse().ok()).unwrap_or(0);
    // Changes between list and watch are sent; deletions in that gap do not happen in these tests.
    let version =
        |object: &Value| object["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
    let missed: Vec<Value> = pods.1.values().filter(|o| version(o) > since).cloned().collect();
    let receiver = api.events.subscribe();
    drop(pods);
    let missed = missed.into_iter().map(|object| json!({ "type": "ADDED", "object": object }));
    let live = futures::stream::unfold(receiver, async |mut receiver| {
        let (_, event) = receiver.recv().await.ok()?;
        Some((event, receiver))
    });
    let lines = futures::stream::iter(missed).chain(live).map(|e| Ok::<_, std::io::Error>(format!("{e}\n")));
    Body::from_stream(lines).into_response()
}
