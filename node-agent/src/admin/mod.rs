//! HTTP interfaces of the agent: metrics, health and status (`http`) on `--metrics-bind-address`; these and the admin API for `slipctl`
//! on a unix socket that only root can access.
//!
//! [`api::admin`] defines the protocol. `serve` listens, `collect` and `naming` convert data of the flow cache, `audit` compares entries
//! with OVS. Requests read maps and OVS; they do not affect the forwarding of packets.

pub mod audit;
mod audit_metrics;
pub mod collect;
mod error;
mod flow_spec;
pub mod http;
mod info_metrics;
mod log_level;
pub mod naming;
pub mod proxy_health;
pub mod serve;
mod service_path;
pub mod services;
mod versions;
pub mod view;
mod xdp_metrics;

use api::admin as wire;
use std::ops::ControlFlow;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::de::DeserializeOwned;

pub use error::AdminError;
pub use view::{NodeView, View};

use crate::flow_cache::FlowCache;
use api::admin::PathStatus;

/// Routes of the admin API.
pub fn router(view: Arc<dyn View>) -> Router {
    Router::new()
        .route(wire::STATUS, get(status))
        .route(wire::FLOWS, get(flows).post(flows))
        .route(wire::COUNTERS, get(counters))
        .route(wire::SERVICES, get(service_traffic))
        .route(wire::SERVICE_TOTALS, post(service_path::totals))
        .route(wire::PATH_NODE, post(path_node))
        .route(wire::PATH_SERVICE, get(service_path::list).post(service_path::path))
        .route(wire::AUDIT, post(audit_flows))
        .route(wire::LOG_LEVEL, post(log_level::level))
        .fallback(nowhere)
        .method_not_allowed_fallback(wrong_method)
        .with_state(view)
}

type Answer<T> = Result<Json<T>, AdminError>;

async fn nowhere(uri: axum::http::Uri) -> AdminError {
    AdminError::NotFound(format!(
        "no resource `{}`; there are {}, {}, {}, {}, {}, {}, {}, {} and {}; are slipctl and the agent of the same version?",
        uri.path(),
        wire::STATUS,
        wire::FLOWS,
        wire::COUNTERS,
        wire::SERVICES,
        wire::SERVICE_TOTALS,
        wire::PATH_NODE,
        wire::PATH_SERVICE,
        wire::AUDIT,
        wire::LOG_LEVEL
    ))
}

async fn wrong_method(method: axum::http::Method, uri: axum::http::Uri) -> AdminError {
    AdminError::Bad(format!("method `{method}` is not allowed for `{}`", uri.path()))
}

async fn status(State(view): State<Arc<dyn View>>) -> Answer<wire::Status> {
    whole_status(view).await
}

/// The one status document.
async fn whole_status(view: Arc<dyn View>) -> Answer<wire::Status> {
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
        return Err(AdminError::Bad("limit `0`: must be at least 1".to_owned()));
    }
    blocking(move || {
        let (cache, naming) = (flow_cache(&*view)?, view.naming());
        let only = request.endpoint.as_deref().map(|name| naming.container(name)).transpose();
        let only = only.map_err(|e| AdminError::NotFound(e.to_string()))?;
        // The list is not sorted by endpoint, so all flows are needed.
        let enough = if only.is_some() { usize::MAX } else { limit };
        let list = cache.flows(enough)?;
        let off = collect::diverged(&cache.endpoints()?, cache.epoch()?);
        Ok(collect::flows(list, &off, only.as_deref(), limit, &naming))
    })
    .await
}

async fn counters(State(view): State<Arc<dyn View>>) -> Answer<wire::Counters> {
    blocking(move || {
        let cache = flow_cache(&*view)?;
        let tunnels = cache.tunnels()?;
        let endpoints = cache.endpoints()?;
        let interfaces = cache.interfaces()?;
        Ok(collect::counters(view.now_ms(), tunnels, endpoints, interfaces, &view.naming()))
    })
    .await
}

async fn service_traffic(State(view): State<Arc<dyn View>>) -> Answer<Vec<wire::ServiceTraffic>> {
    blocking(move || {
        let mut traffic = services::Traffic::new(view.naming());
        flow_cache(&*view)?.each_flow(&mut |flow| {
            traffic.add(flow);
            ControlFlow::Continue(())
        })?;
        Ok(traffic.list())
    })
    .await
}

async fn path_node(State(view): State<Arc<dyn View>>, body: Bytes) -> Answer<PathStatus> {
    let request: wire::PathRequest = read(&body)?;
    blocking(move || {
        let control = view.control().ok_or_else(|| no_cache(&*view))?;
        control.set_node_path(request.path).map_err(|error| AdminError::Cannot(error.to_string()))
    })
    .await
}

async fn audit_flows(State(view): State<Arc<dyn View>>, body: Bytes) -> Answer<wire::AuditReply> {
    audit::audit(&view, read(&body)?).await.map(Json)
}

/// The flow cache; an error with the reason when the node has none.
fn flow_cache(view: &dyn View) -> Result<Arc<dyn FlowCache>, AdminError> {
    view.flow_cache().ok_or_else(|| no_cache(view))
}

fn no_cache(view: &dyn View) -> AdminError {
    AdminError::Cannot(format!(
        "this node has no flow cache, every packet goes through OVS: {}",
        view.path().reason
    ))
}

/// Parses the body as JSON; an empty body selects the defaults.
fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, AdminError> {
    let body = if body.trim_ascii().is_empty() { b"{}" } else { body };
    serde_json::from_slice(body).map_err(|e| AdminError::Bad(format!("request body: {e}")))
}

/// Runs `work`, which may block on reading maps, off the runtime threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, AdminError> + Send + 'static,
) -> Answer<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|e| Err(AdminError::Failed(format!("the request handler failed: {e}")))).map(Json)
}

#[cfg(test)]
mod tests;
