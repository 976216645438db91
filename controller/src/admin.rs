//! The administrative HTTP server: `/metrics`, `/healthz`, `/readyz`.

use std::net::SocketAddr;

use anyhow::Context;
use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::engine::{Leadership, Reason};
use crate::metrics::Metrics;

/// Content type of the metrics (OpenMetrics 1.0).
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Binds the address.
///
/// # Errors
/// The address cannot be listened on.
pub async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("--metrics-bind-address {address}: cannot listen"))
}

/// The router with all pages.
pub fn pages(metrics: Metrics, reason: watch::Receiver<Reason>, leadership: Leadership) -> Router {
    Router::new()
        .route("/metrics", get(async move || ([(header::CONTENT_TYPE, METRICS_TYPE)], metrics.text())))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(async move || ready(&reason.borrow(), leadership.is_held())))
}

/// Serves the pages.
///
/// # Errors
/// The listener fails.
pub async fn serve(listener: TcpListener, pages: Router) -> std::io::Result<()> {
    axum::serve(listener, pages).await
}

fn ready(reason: &Reason, leads: bool) -> impl IntoResponse + use<> {
    match reason {
        None if leads => (StatusCode::OK, "ok\n".to_owned()),
        None => (StatusCode::OK, "standby\n".to_owned()),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

/// Pages that only tests need: the list of tasks, and a way to end one of them.
#[cfg(feature = "test-hooks")]
pub fn test_hooks(tasks: supervision::Tasks) -> Router {
    use axum::http::Uri;
    use axum::routing::post;

    let ended = tasks.clone();
    let end = async move |uri: Uri| match uri.query().and_then(|query| query.strip_prefix("task=")) {
        Some(task) if ended.end(task) => (StatusCode::OK, "ended\n"),
        _ => (StatusCode::NOT_FOUND, "no such task; task=NAME is needed, /test/tasks has the names\n"),
    };
    Router::new()
        .route("/test/tasks", get(async move || axum::Json(tasks.names())))
        .route("/test/end", post(end))
}
