//! Read-only routes: metrics, health and status.

use std::sync::Arc;

use api::admin::Status;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};

use super::{AdminError, View};
use crate::node::Node;
use crate::node::timing::Finished;

/// Routes of the server.
pub fn router(node: Node, view: Arc<dyn View>) -> Router {
    let router = Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .route("/debug/adds", get(adds))
        .route("/debug/entries", get(entries));
    #[cfg(feature = "test-hooks")]
    let router = router.merge(hooks::router());
    router.with_state(node).merge(Router::new().route("/status", get(status)).with_state(view))
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

async fn status(State(view): State<Arc<dyn View>>) -> Result<Json<Status>, AdminError> {
    super::whole_status(view).await
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
