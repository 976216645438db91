//! Health of the service proxy for cloud load balancers: `/healthz`, `/livez` and `/proxyMode`, on kube-proxy's ports and in its
//! format.

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

/// Retry interval for listening on an address.
const RETRY: Duration = Duration::from_secs(30);

/// Content type of the responses.
const JSON: [(HeaderName, &str); 1] = [(header::CONTENT_TYPE, "application/json")];

/// Serves both addresses. Retries while an address is in use, for example by a kube-proxy that still runs.
///
/// # Errors
/// A server has ended.
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
                tracing::warn!(%address, %error, "cannot listen for health of the service proxy; retrying later");
            }
        }
        tokio::time::sleep(RETRY).await;
    };
    axum::serve(listener, router).await?;
    Err(std::io::Error::other(format!("the server at {address} has ended")))
}

/// Healthy while the condition `gateway` is met: then this node serves services.
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
