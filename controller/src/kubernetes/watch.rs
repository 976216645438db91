//! Watches: one task per kind. Objects are reduced to the index's structs as soon as they are read; what is not needed is
//! never kept.

use std::fmt::Debug;

use api::Lenient;
use api::ipam_claim::IpamClaim;
use api::multi_policy::MultiNetworkPolicy;
use api::network_attachment::NetworkAttachmentDefinition;
use api::virtual_network::VirtualNetwork;
use futures::StreamExt;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1 as discovery;
use k8s_openapi::api::networking::v1 as networking;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use supervision::Tasks;
use tokio::sync::mpsc;

use crate::engine::Input;
use crate::index::policy::{Policy, SeenMultiPolicy};
use crate::index::{convert, network};
use crate::metrics::{ErrorKind, Metrics};
use crate::state::Watched;
use api::NamespacedName;
use api::error::chain;
use api::service::{EndpointSlice, Service};

/// Objects fetched at once in a list. This bounds memory, as objects are much larger than what is kept of them.
const PAGE: u32 = 500;

/// A watch is requested again after this time, seconds. Less than the longest silence on a connection, so that a silent
/// connection is dead.
pub(super) const WATCH: u32 = 40;

/// One kind: how to read it and how to name it.
struct Kind<K, T, N> {
    name: &'static str,
    /// `None` for objects of no interest (yet).
    read: fn(K) -> Option<T>,
    key: fn(&K) -> N,
    input: fn(Watched<T, N>) -> Input,
    /// The report that the API server does not know the kind, where that is no error.
    unknown: Option<fn() -> Input>,
}

/// What is of interest; objects of other kinds count as not there.
#[derive(Debug, Clone, Copy)]
pub struct Interest {
    /// What the cluster's network serves and is held to: services and network policies.
    pub default_network: bool,
    /// Policies of any network.
    pub network_policy: bool,
}

/// Starts all watches, each a task of the set.
pub fn start(
    tasks: &Tasks,
    client: &Client,
    inputs: &mpsc::Sender<Input>,
    metrics: &Metrics,
    Interest { default_network, network_policy }: Interest,
) {
    let plain = |kind: &'static str| tracing::info_span!("watch", kind);
    macro_rules! watch {
        ($kind:expr) => {{
            let kind = $kind;
            let span = plain(kind.name);
            let name = kind.name.replace(' ', "-");
            let api = Api::all(client.clone());
            let task = follow(api, kind, inputs.clone(), metrics.clone());
            tasks.spawn(&format!("watch-{name}"), tracing::Instrument::instrument(task, span));
        }};
    }
    watch!(Kind {
        name: "nodes",
        read: convert::node,
        key: |node: &core::Node| node.name_any(),
        input: Input::Nodes,
        unknown: None,
    });
    watch!(Kind {
        name: "pods",
        read: convert::pod,
        key: namespaced::<core::Pod>,
        input: Input::Pods,
        unknown: None,
    });
    watch!(Kind {
        name: "namespaces",
        read: convert::namespace,
        key: |namespace: &core::Namespace| namespace.name_any(),
        input: Input::Namespaces,
        unknown: None,
    });
    watch!(Kind {
        name: "services",
        read: if default_network {
            |Lenient(object): Lenient<core::Service>| Some(Service::from_object(&object))
        } else {
            |_| None
        },
        key: namespaced::<Lenient<core::Service>>,
        input: Input::Services,
        unknown: None,
    });
    watch!(Kind {
        name: "endpoint slices",
        read: if default_network {
            |object: discovery::EndpointSlice| Some(EndpointSlice::from_object(&object))
        } else {
            |_| None
        },
        key: namespaced::<discovery::EndpointSlice>,
        input: Input::EndpointSlices,
        unknown: None,
    });
    watch!(Kind {
        name: "network policies",
        read: if default_network && network_policy {
            |object: networking::NetworkPolicy| Some(Policy::from_object(&object))
        } else {
            |_| None
        },
        key: namespaced::<networking::NetworkPolicy>,
        input: Input::Policies,
        unknown: None,
    });
    watch!(Kind {
        name: "multi-network policies",
        read: if network_policy {
            |object: MultiNetworkPolicy| Some(SeenMultiPolicy::from_object(&object))
        } else {
            |_| None
        },
        key: namespaced::<MultiNetworkPolicy>,
        input: Input::MultiPolicies,
        unknown: Some(|| Input::MultiPolicies(Watched::Reset(Vec::new()))),
    });
    watch!(Kind {
        name: "virtual networks",
        read: |object: VirtualNetwork| Some(network::read(&object)),
        key: namespaced::<VirtualNetwork>,
        input: Input::Networks,
        unknown: Some(|| Input::Networks(Watched::Reset(Vec::new()))),
    });
    watch!(Kind {
        name: "network attachment definitions",
        read: |object: NetworkAttachmentDefinition| Some(network::read_definition(&object)),
        key: namespaced::<NetworkAttachmentDefinition>,
        input: |change| Input::Definitions(Some(change)),
        unknown: Some(|| Input::Definitions(None)),
    });
    watch!(Kind {
        name: "IPAM claims",
        read: |object: IpamClaim| Some(network::read_claim(&object)),
        key: namespaced::<IpamClaim>,
        input: |change| Input::Claims(Some(change)),
        unknown: Some(|| Input::Claims(None)),
    });
}

fn namespaced<K: Resource>(object: &K) -> NamespacedName {
    NamespacedName::from(object.meta())
}

async fn follow<K, T, N>(api: Api<K>, kind: Kind<K, T, N>, inputs: mpsc::Sender<Input>, metrics: Metrics)
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let config = watcher::Config::default().page_size(PAGE).timeout(WATCH);
    let mut events = watcher::watcher(api, config).default_backoff().boxed();
    let mut listed = Vec::new();
    let mut is_unknown = false;
    while let Some(event) = events.next().await {
        let input = match event {
            Ok(Event::Init) => {
                listed.clear();
                continue;
            }
            Ok(Event::InitApply(object)) => {
                listed.extend((kind.read)(object));
                continue;
            }
            Ok(Event::InitDone) => {
                tracing::info!(objects = listed.len(), "listed");
                is_unknown = false;
                (kind.input)(Watched::Reset(std::mem::take(&mut listed)))
            }
            Ok(Event::Apply(object)) => match (kind.read)(object) {
                Some(object) => (kind.input)(Watched::Apply(object)),
                None => continue,
            },
            Ok(Event::Delete(object)) => (kind.input)(Watched::Delete((kind.key)(&object))),
            Err(error) => {
                if let Some(unknown) = kind.unknown.filter(|_| is_unknown_kind(&error)) {
                    if std::mem::replace(&mut is_unknown, true) {
                        continue;
                    }
                    tracing::info!(
                        "kind is not served by the API server (CRD missing); retrying periodically"
                    );
                    unknown()
                } else {
                    metrics.error(ErrorKind::Watch);
                    tracing::warn!(error = chain(&error), "watch failed; retrying");
                    continue;
                }
            }
        };
        if inputs.send(input).await.is_err() {
            // The engine has ended, and that is the end to be reported.
            return std::future::pending().await;
        }
    }
}

/// Whether the API server does not have the kind. Before it knows all that it has, it answers with another code.
pub(super) fn is_unknown_kind(error: &watcher::Error) -> bool {
    let (watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error)) = error else {
        return false;
    };
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use axum::Router;
    use axum::body::Body;
    use axum::response::IntoResponse;
    use serde_json::json;

    use super::*;
    use crate::kubernetes::fake;

    #[tokio::test]
    async fn a_watch_that_dies_without_a_word_is_noticed_and_started_again() {
        let watches = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&watches);
        let pages = Router::new().fallback(async move |uri: axum::http::Uri| {
            let meta = json!({ "resourceVersion": "1" });
            if !uri.query().unwrap_or_default().contains("watch=true") {
                return fake::object(json!({ "kind": "NamespaceList", "apiVersion": "v1", "metadata": meta, "items": [] }));
            }
            if counted.fetch_add(1, Ordering::Relaxed) == 0 {
                // The server sends nothing, not even an end.
                return Body::from_stream(futures::stream::pending::<Result<&[u8], std::io::Error>>()).into_response();
            }
            let object = json!({ "kind": "Namespace", "apiVersion": "v1", "metadata": { "name": "a", "resourceVersion": "2" } });
            (json!({ "type": "ADDED", "object": object }).to_string() + "\n").into_response()
        });
        let client = fake::serve(pages).await;
        let (inputs, mut queue) = mpsc::channel(16);
        let metrics = Metrics::default();
        let kind = Kind {
            name: "namespaces",
            read: convert::namespace,
            key: |namespace: &core::Namespace| namespace.name_any(),
            input: Input::Namespaces,
            unknown: None,
        };
        let task = tokio::spawn(follow(Api::all(client), kind, inputs, metrics.clone()));
        let mut next = async || tokio::time::timeout(Duration::from_secs(20), queue.recv()).await.unwrap();
        assert!(matches!(next().await, Some(Input::Namespaces(Watched::Reset(all))) if all.is_empty()));
        assert!(matches!(next().await, Some(Input::Namespaces(Watched::Apply((a, _)))) if a.name == "a"));
        assert!(metrics.errors(ErrorKind::Watch) >= 1, "it is counted");
        task.abort();
    }

    #[tokio::test]
    async fn a_kind_that_the_server_does_not_know_has_no_objects_until_it_does() {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        let pages = Router::new().fallback(async move |uri: axum::http::Uri| {
            if counted.fetch_add(1, Ordering::Relaxed) < 2 {
                return fake::refusal(404, "the server could not find the requested resource");
            }
            if uri.query().unwrap_or_default().contains("watch=true") {
                return Body::from_stream(futures::stream::pending::<Result<&[u8], std::io::Error>>())
                    .into_response();
            }
            let object = json!({ "metadata": { "name": "blue", "namespace": "shop", "resourceVersion": "1" },
                "spec": { "subnets": 7 } });
            fake::object(json!({ "kind": "VirtualNetworkList", "apiVersion": "slipstream.dev/v1alpha1",
                "metadata": { "resourceVersion": "1" }, "items": [object] }))
        });
        let client = fake::serve(pages).await;
        let (inputs, mut queue) = mpsc::channel(16);
        let metrics = Metrics::default();
        let kind = Kind {
            name: "virtual networks",
            read: |object: VirtualNetwork| Some(network::read(&object)),
            key: namespaced::<VirtualNetwork>,
            input: Input::Networks,
            unknown: Some(|| Input::Networks(Watched::Reset(Vec::new()))),
        };
        let task = tokio::spawn(follow(Api::all(client), kind, inputs, metrics.clone()));
        let mut next = async || tokio::time::timeout(Duration::from_secs(20), queue.recv()).await.unwrap();
        assert!(matches!(next().await, Some(Input::Networks(Watched::Reset(all))) if all.is_empty()));
        assert!(matches!(next().await, Some(Input::Networks(Watched::Reset(all))) if all[0].spec.is_err()));
        assert_eq!(metrics.errors(ErrorKind::Watch), 0);
        task.abort();
    }
}
