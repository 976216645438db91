//! Client of the Kubernetes API: server address, timeouts and watch parameters.

use std::time::Duration;

use anyhow::Context;
use kube::client::ClientBuilder;
use kube::runtime::watcher;
use tower::util::MapFutureLayer;

use crate::config::Config;

/// Timeout of a write request, response included.
pub const CALL: Duration = Duration::from_secs(10);
/// Timeout until a response starts; for a long list the server reads all of it first.
const ANSWER: Duration = Duration::from_secs(30);
/// Duration of a watch in seconds, after which it is renewed. A watch that is silent for slightly longer counts as dead, as the
/// server may have disappeared without closing the connection.
const WATCH_SECONDS: u32 = 60;
/// Read timeout of all connections: duration of a watch plus a margin.
const SILENCE: Duration = Duration::from_secs(90);

/// Creates a client of the Kubernetes API.
///
/// # Errors
/// The kubeconfig or the service account is invalid; the error names the flag.
pub async fn client(config: &Config) -> anyhow::Result<kube::Client> {
    // Fails if it is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut kube_config = match &config.kubeconfig {
        None if let Some(made) = config.api_access.kubeconfig(config.api_server.as_deref())? => {
            let made = serde_json::from_value(made).context("--api-token, --api-ca")?;
            kube::Config::from_custom_kubeconfig(made, &Default::default())
                .await
                .context("--api-server with --api-token, --api-token-file or --api-ca")?
        }
        Some(path) => {
            let file = kube::config::Kubeconfig::read_from(path);
            let file = file.with_context(|| format!("kubeconfig {} (--kubeconfig)", path.display()))?;
            kube::Config::from_custom_kubeconfig(file, &Default::default())
                .await
                .with_context(|| format!("kubeconfig {} (--kubeconfig)", path.display()))?
        }
        None => kube::Config::incluster()
            .context("--kubeconfig is not set, and the agent does not run in a pod with a service account")?,
    };
    if let Some(url) = &config.api_server {
        kube_config.cluster_url = url.parse().with_context(|| {
            format!("--api-server `{url}`: must be a URL such as https://172.18.0.10:6443")
        })?;
    }
    kube_config.read_timeout = Some(SILENCE);
    tracing::info!(server = %kube_config.cluster_url, "Kubernetes API server");
    let builder = ClientBuilder::try_from(kube_config).context("create the client of the Kubernetes API")?;
    let in_time = MapFutureLayer::new(|answer| async move {
        let late = |_elapsed| format!("no response from the Kubernetes API within {ANSWER:?}").into();
        tokio::time::timeout(ANSWER, answer).await.unwrap_or_else(|elapsed| Err(late(elapsed)))
    });
    Ok(builder.with_layer(&in_time).build())
}

/// Parameters of all watches: the initial list is served from the API server's watch cache instead of etcd, which many agents that
/// start at once would overload, and dead watches are detected.
pub fn watching() -> watcher::Config {
    // With a page size the client would omit `resourceVersion=0`, and the server would read etcd.
    watcher::Config { page_size: None, ..watcher::Config::default().any_semantic().timeout(WATCH_SECONDS) }
}

/// Awaits a request with timeout [`CALL`].
///
/// # Errors
/// Error of the request, or timeout.
pub async fn in_time<T>(call: impl Future<Output = kube::Result<T>>) -> anyhow::Result<T> {
    match tokio::time::timeout(CALL, call).await {
        Ok(done) => Ok(done?),
        Err(_elapsed) => anyhow::bail!("no response from the Kubernetes API within {CALL:?}"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use axum::extract::{Request, State};
    use axum::{Json, Router};
    use clap::Parser;
    use k8s_openapi::api::core::v1::Node;
    use kube::Api;
    use kube::api::ListParams;
    use parking_lot::Mutex;
    use serde_json::{Value, json};
    use tokio::net::TcpListener;

    use super::*;

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        config: Config,
    }

    /// A client as the agent creates it, with a kubeconfig that has no credentials.
    async fn client_of(port: u16) -> kube::Client {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "c", "cluster": { "server": "http://127.0.0.1:1" } }],
            "users": [{ "name": "c", "user": {} }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "c" } }],
        });
        std::fs::write(&path, kubeconfig.to_string()).unwrap();
        let flags =
            [format!("--kubeconfig={}", path.display()), format!("--api-server=http://127.0.0.1:{port}")];
        let all = ["agent", "--node-name=n1"].into_iter().chain(flags.iter().map(String::as_str));
        client(&Arguments::parse_from(all).config).await.unwrap()
    }

    /// Requests for lists: path to query. Watches never end.
    pub(crate) type Lists = Arc<Mutex<BTreeMap<String, String>>>;

    /// An API whose lists are empty, and the requests for lists that it received.
    pub(crate) async fn empty_api() -> (kube::Client, Lists) {
        async fn answer(State(lists): State<Lists>, request: Request) -> Json<Value> {
            let query = request.uri().query().unwrap_or_default().to_owned();
            if query.contains("watch=") {
                return std::future::pending().await;
            }
            let selector =
                query.split('&').find(|part| part.starts_with("fieldSelector")).unwrap_or_default();
            lists.lock().insert(format!("{} {selector}", request.uri().path()), query.clone());
            let kind = match request.uri().path() {
                "/api/v1/pods" => "PodList",
                "/api/v1/services" => "ServiceList",
                "/apis/discovery.k8s.io/v1/endpointslices" => "EndpointSliceList",
                _ if query.contains("metadata.name%21%3D") => "PartialObjectMetadataList",
                _ => "NodeList",
            };
            let version = match kind {
                "EndpointSliceList" => "discovery.k8s.io/v1",
                "PartialObjectMetadataList" => "meta.k8s.io/v1",
                _ => "v1",
            };
            Json(
                json!({ "apiVersion": version, "kind": kind, "metadata": { "resourceVersion": "7" }, "items": [] }),
            )
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = client_of(listener.local_addr().unwrap().port()).await;
        let lists = Lists::default();
        let router = Router::new().fallback(answer).with_state(Arc::clone(&lists));
        tokio::spawn(async move { axum::serve(listener, router).await });
        (client, lists)
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_takes_connections_and_answers_nothing_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let nodes: Api<Node> = Api::all(client_of(listener.local_addr().unwrap().port()).await);
        let start = tokio::time::Instant::now();
        let error = in_time(nodes.get("n1")).await.unwrap_err().to_string();
        assert!(error.contains("within 10s"), "{error}");
        assert!(start.elapsed() < CALL * 2);
        // A list request, which has no wrapper with a timeout.
        let error = nodes.list(&ListParams::default()).await.unwrap_err();
        let error = api::error::chain(&error);
        assert!(error.contains("within 30s"), "{error}");
        assert!(start.elapsed() < (CALL + ANSWER) * 2);
    }
}
