//! The admin socket: what `slipctl` asks the agent, HTTP/1.1 with JSON on a unix socket that only root reaches.
//!
//! `wire` is the language, shared with `slipctl`. `collect` and `naming` turn the flow cache's figures into what is shown;
//! `audit` asks OVS. Reading costs nothing but the reading: nothing here is on a packet's way.

pub mod audit;
mod audit_metrics;
pub mod collect;
mod error;
pub mod http;
pub mod naming;
pub mod proxy_health;
mod versions;
pub mod view;

use api::admin as wire;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::de::DeserializeOwned;
use tokio::net::UnixListener;

pub use error::AdminError;
pub use view::{NodeView, View};

use crate::flow_cache::FlowCache;
use api::admin::PathStatus;

/// Serves the socket until `stop` is done.
pub async fn serve(
    socket: UnixListener,
    view: Arc<dyn View>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    axum::serve(socket, router(view)).with_graceful_shutdown(stop).await
}

/// The resources.
pub fn router(view: Arc<dyn View>) -> Router {
    Router::new()
        .route(wire::STATUS, get(status))
        .route(wire::FLOWS, get(flows).post(flows))
        .route(wire::COUNTERS, get(counters))
        .route(wire::PATH_NODE, post(path_node))
        .route(wire::AUDIT, post(audit_flows))
        .fallback(nowhere)
        .method_not_allowed_fallback(wrong_method)
        .with_state(view)
}

type Answer<T> = Result<Json<T>, AdminError>;

async fn nowhere(uri: axum::http::Uri) -> AdminError {
    AdminError::NotFound(format!(
        "`{}` is not here: {}, {}, {}, {} and {} are; are slipctl and the agent of one version?",
        uri.path(),
        wire::STATUS,
        wire::FLOWS,
        wire::COUNTERS,
        wire::PATH_NODE,
        wire::AUDIT
    ))
}

async fn wrong_method(method: axum::http::Method, uri: axum::http::Uri) -> AdminError {
    AdminError::Bad(format!("`{method}` is not a method of `{}`", uri.path()))
}

async fn status(State(view): State<Arc<dyn View>>) -> Answer<wire::Status> {
    let unixctl = view.unixctl();
    let Json(mut status) = blocking(move || view.status()).await?;
    if let (None, Some(unixctl)) = (&status.versions.ovs, unixctl) {
        status.versions.ovs = versions::ovs(&unixctl).await;
    }
    Ok(Json(status))
}

async fn flows(State(view): State<Arc<dyn View>>, body: Bytes) -> Answer<Vec<wire::Flow>> {
    let request: wire::FlowsRequest = read(&body)?;
    let limit = request.limit.unwrap_or(wire::DEFAULT_FLOWS);
    if limit == 0 {
        return Err(AdminError::Bad("limit `0`: at least 1 is needed".to_owned()));
    }
    blocking(move || {
        let (cache, naming) = (flow_cache(&*view)?, view.naming());
        let only = request.endpoint.as_deref().map(|name| naming.container(name)).transpose();
        let only = only.map_err(|e| AdminError::NotFound(e.to_string()))?;
        // Flows of one endpoint may be anywhere among all.
        let enough = if only.is_some() { usize::MAX } else { limit };
        let list = cache.flows(enough)?;
        let epoch = cache.epoch()?;
        let off = collect::diverged(&cache.endpoints()?, epoch);
        Ok(collect::flows(list, epoch, &off, only.as_deref(), limit, &naming))
    })
    .await
}

async fn counters(State(view): State<Arc<dyn View>>) -> Answer<wire::Counters> {
    blocking(move || {
        let cache = flow_cache(&*view)?;
        let tunnels = cache.tunnels()?;
        let endpoints = cache.endpoints()?;
        Ok(collect::counters(view.now_ms(), tunnels, endpoints, &view.naming()))
    })
    .await
}

async fn path_node(State(view): State<Arc<dyn View>>, body: Bytes) -> Answer<PathStatus> {
    let request: wire::PathRequest = read(&body)?;
    blocking(move || {
        let steering = view.steering().ok_or_else(|| no_cache(&*view))?;
        steering.set_node_path(request.path).map_err(AdminError::Cannot)
    })
    .await
}

async fn audit_flows(State(view): State<Arc<dyn View>>, body: Bytes) -> Answer<wire::AuditReply> {
    audit::audit(&view, read(&body)?).await.map(Json)
}

/// The flow cache, or why there is none.
fn flow_cache(view: &dyn View) -> Result<Arc<dyn FlowCache>, AdminError> {
    view.flow_cache().ok_or_else(|| no_cache(view))
}

fn no_cache(view: &dyn View) -> AdminError {
    AdminError::Cannot(format!(
        "this node has no flow cache, every packet goes through OVS: {}",
        view.path().reason
    ))
}

/// The body as JSON; an empty one stands for the request's defaults.
fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, AdminError> {
    let body = if body.trim_ascii().is_empty() { b"{}" } else { body };
    serde_json::from_slice(body).map_err(|e| AdminError::Bad(format!("request body: {e}")))
}

/// Reading maps may block.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, AdminError> + Send + 'static,
) -> Answer<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|e| Err(AdminError::Failed(format!("the request ended without an answer: {e}"))))
        .map(Json)
}

#[cfg(test)]
mod tests;
