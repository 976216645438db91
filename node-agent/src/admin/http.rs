//! HTTP server on `--metrics-bind-address`: metrics, health and status.

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use crate::node::Node;
use crate::node::timing::Finished;

/// Routes of the server.
pub fn router(node: Node) -> Router {
    let router = Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/status", get(status))
        .route("/metrics", get(metrics))
        .route("/debug/adds", get(adds))
        .route("/debug/entries", get(entries));
    #[cfg(feature = "test-hooks")]
    let router = router.merge(hooks::router());
    router.with_state(node)
}

/// Routes for tests.
#[cfg(feature = "test-hooks")]
mod hooks {
    use axum::extract::{RawQuery, State};
    use axum::http::StatusCode;
    use axum::routing::{get, post};
    use axum::{Json, Router};

    use crate::node::Node;

    pub(super) fn router() -> Router<Node> {
        Router::new().route("/test/tasks", get(tasks)).route("/test/end", post(end))
    }

    async fn tasks(State(node): State<Node>) -> Json<Vec<String>> {
        Json(node.tasks.names())
    }

    async fn end(State(node): State<Node>, RawQuery(query): RawQuery) -> StatusCode {
        // Names of tasks need no escapes.
        let task = query.as_deref().and_then(|query| query.strip_prefix("task=")).unwrap_or_default();
        if node.tasks.end(task) { StatusCode::OK } else { StatusCode::NOT_FOUND }
    }
}

async fn ready(State(node): State<Node>) -> (StatusCode, String) {
    let problems = node.problems();
    if problems.is_empty() {
        (StatusCode::OK, "ok\n".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", problems.join("\n")))
    }
}

async fn status(State(node): State<Node>) -> Json<Value> {
    let datapath = &node.datapath;
    let conditions: serde_json::Map<String, Value> = node
        .health
        .list()
        .into_iter()
        .map(|(name, reason)| (name.to_owned(), reason.map_or_else(|| json!("met"), |r| json!(r))))
        .collect();
    Json(json!({
        "path": datapath.path(),
        "reason": datapath.reason,
        "attach": datapath.attach.as_str(),
        "ovsDatapath": datapath.ovs_type(),
        "mtu": node.mtu,
        "ready": node.problems().is_empty(),
        "problems": node.problems(),
        "warnings": node.health.warnings(),
        "conditions": conditions,
        "endpoints": node.ovs.pod_ports().len(),
        "fastPath": node.flow_cache.status(),
    }))
}

async fn metrics(State(node): State<Node>) -> (StatusCode, String) {
    // Reading the eBPF maps may block; keep it off the runtime threads.
    let text = tokio::task::spawn_blocking(move || node.metrics.encode().map_err(|e| e.to_string())).await;
    match text.unwrap_or_else(|e| Err(e.to_string())) {
        Ok(text) => (StatusCode::OK, text),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

async fn adds(State(node): State<Node>) -> Json<Vec<Finished>> {
    Json(node.journal.list())
}

/// Number of interfaces with an entry in the eBPF maps; 0 without eBPF.
async fn entries(State(node): State<Node>) -> (StatusCode, String) {
    let entries = node.datapath.programs.as_ref().map_or(Ok(0), |p| p.lock().port_entries().map(|e| e.len()));
    match entries {
        Ok(count) => (StatusCode::OK, format!("{count}\n")),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}
