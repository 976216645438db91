//! What cloud load balancers and operators ask a node's service proxy: `/healthz` and `/livez` on the port where kube-proxy has
//! them, and `/proxyMode`. Answers have kube-proxy's form.

use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Router, http::HeaderName};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use tokio::net::TcpListener;

use crate::node::Node;

/// How long to wait before a port that could not be opened is tried again.
const RETRY: Duration = Duration::from_secs(30);

/// Content type of the answers.
const JSON: [(HeaderName, &str); 1] = [(header::CONTENT_TYPE, "application/json")];

/// Serves both addresses until it is dropped. A port that something else has, such as a kube-proxy that is still there, is
/// tried again for ever.
///
/// # Errors
/// A server ended.
pub(crate) async fn serve(health: SocketAddr, status: SocketAddr, node: Node) -> std::io::Result<()> {
    let probes = Router::new().route("/healthz", get(healthy)).route("/livez", get(healthy)).with_state(node);
    let mode = Router::new().route("/proxyMode", get(async || "slipstream"));
    tokio::try_join!(keep(health, probes), keep(status, mode)).map(drop)
}

async fn keep(address: SocketAddr, router: Router) -> std::io::Result<()> {
    let listener = loop {
        match TcpListener::bind(address).await {
            Ok(listener) => break listener,
            Err(error) => {
                tracing::warn!(%address, %error, "health of the service proxy is not served; trying again later");
            }
        }
        tokio::time::sleep(RETRY).await;
    };
    axum::serve(listener, router).await?;
    Err(std::io::Error::other(format!("the server at {address} has ended")))
}

/// Good while the gateway is: then services are served as far as this node knows of them.
async fn healthy(State(node): State<Node>) -> impl IntoResponse {
    let problem =
        node.health.list().into_iter().find(|(name, _)| *name == "gateway").and_then(|(_, reason)| reason);
    let code = if problem.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let now = Timestamp::now().to_string();
    (
        code,
        JSON,
        json!({ "lastUpdated": now, "currentTime": now, "nodeEligible": problem.is_none() }).to_string(),
    )
}
