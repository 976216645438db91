//! The administrative HTTP server: `/metrics`, `/healthz`, `/readyz`.

use std::net::SocketAddr;

use anyhow::Context;
use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::sync::watch;

use crate::engine::Reason;
use crate::metrics::Metrics;

/// Content type of the metrics (OpenMetrics 1.0).
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Binds the address and serves in the background.
pub async fn start(
    address: SocketAddr,
    metrics: Metrics,
    reason: watch::Receiver<Reason>,
) -> anyhow::Result<()> {
    let listener = tokio::net::TcpListener::bind(address)
        .await
        .with_context(|| format!("--metrics-bind-address {address}: cannot listen"))?;
    let router = Router::new()
        .route("/metrics", get(async move || ([(header::CONTENT_TYPE, METRICS_TYPE)], metrics.text())))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(async move || ready(&reason.borrow())));
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "administrative server ended");
        }
    });
    Ok(())
}

fn ready(reason: &Reason) -> impl IntoResponse + use<> {
    match reason {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}
