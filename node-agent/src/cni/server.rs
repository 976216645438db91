//! CNI server: HTTP on a unix socket that only root can access.

use std::io;

use api::cni::{PATH, Reply, Request, code};
use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use serde_json::json;
use tokio::net::UnixListener;

use super::request::{Call, Command, VERSIONS, version_of};
use super::{CniError, add, check, del};
use crate::node::Node;
use crate::node::timing::{Finished, Steps, ms};

/// Serves calls until `stop` completes, then finishes calls in progress.
///
/// # Errors
/// The server failed.
pub async fn serve(
    listener: UnixListener,
    node: Node,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let router = Router::new().route(PATH, post(call)).with_state(node);
    axum::serve(listener, router).with_graceful_shutdown(stop).await
}

async fn call(State(node): State<Node>, Json(request): Json<Request>) -> Json<Reply> {
    Json(answer(&node, request).await)
}

/// Handles one call.
pub async fn answer(node: &Node, request: Request) -> Reply {
    let mut steps = Steps::new(request.started_ns);
    let version = version_of(&request.config);
    let command = request.env.get("CNI_COMMAND").cloned().unwrap_or_default();
    let parsed = Call::parse(&request);
    let done = match &parsed {
        Ok(call) => run(node, call, &mut steps).await,
        Err(error) => Err(error.clone()),
    };
    let label = parsed.as_ref().map_or("invalid", |call| call.command.word());
    record(node, label, &parsed, &done, &steps);
    match done {
        Ok(stdout) => Reply { stdout, exit_code: 0 },
        Err(error) => {
            tracing::warn!(command, code = error.code, details = error.details, "{}", error.msg);
            Reply { stdout: error.to_json(&version), exit_code: 1 }
        }
    }
}

async fn run(node: &Node, call: &Call, steps: &mut Steps) -> Result<String, CniError> {
    match call.command {
        Command::Version => {
            Ok(json!({ "cniVersion": call.conf.version, "supportedVersions": VERSIONS }).to_string())
        }
        Command::Status => check::status(node).map(|()| String::new()),
        Command::Gc => del::gc(node, call).await.map(|()| String::new()),
        Command::Check => check::check(node, call).await.map(|()| String::new()),
        Command::Del => {
            node.calls.cancel_add(&call.container_id, "DEL of the same container was received");
            let (node, call) = (node.clone(), call.clone());
            let work = async move {
                let _turn = node.calls.turn(&call.container_id).await;
                let mut steps = Steps::new(0);
                let done = del::del(&node, &call, &mut steps).await;
                (done, steps)
            };
            // Runs on its own task, so that it completes even if the plugin process is killed.
            let (done, inner) = tokio::spawn(work).await.map_err(panicked)?;
            inner.list().iter().for_each(|(step, took)| steps.add(step, *took));
            done.map(|()| String::new())
        }
        Command::Add => run_add(node, call, steps).await,
    }
}

async fn run_add(node: &Node, call: &Call, steps: &mut Steps) -> Result<String, CniError> {
    let problems = node.problems();
    if !node.ovs.replica().is_synced() {
        return Err(CniError::again(problems.join("; ")));
    }
    let pod = call.pod().ok_or_else(|| {
        CniError::new(code::INVALID_ENVIRONMENT, "CNI_ARGS: K8S_POD_NAMESPACE and K8S_POD_NAME are missing")
    })?;
    let cancel = node.calls.start_add(&call.container_id, &pod);
    let hung_up = HungUp { node: node.clone(), container: call.container_id.clone() };
    let (node, call) = (node.clone(), call.clone());
    let work = async move {
        let _turn = node.calls.turn(&call.container_id).await;
        let mut steps = Steps::new(0);
        let done = Box::pin(add::add(&node, &call, &cancel, &mut steps)).await;
        node.calls.end_add(&call.container_id);
        (done.map(|result| result.to_json(&call.conf.version).to_string()), steps)
    };
    // Runs on its own task: if the plugin process is killed, the ADD is cancelled and undoes its steps.
    let (done, inner) = tokio::spawn(work).await.map_err(panicked)?;
    drop(hung_up);
    inner.list().iter().for_each(|(step, took)| steps.add(step, *took));
    done
}

fn panicked(error: tokio::task::JoinError) -> CniError {
    CniError::failure(format!("the call failed without a result: {error}"))
}

/// Cancels the ADD when dropped, which happens when the connection closes.
struct HungUp {
    node: Node,
    container: String,
}

impl Drop for HungUp {
    fn drop(&mut self) {
        self.node.calls.cancel_add(&self.container, "the container runtime closed the connection");
    }
}

fn record(
    node: &Node,
    label: &'static str,
    parsed: &Result<Call, CniError>,
    done: &Result<String, CniError>,
    steps: &Steps,
) {
    let code = done.as_ref().err().map_or(0, |e| e.code);
    node.metrics.cni_call(label, code, steps.total(), steps.list().iter().copied());
    if !matches!(label, "ADD" | "DEL") {
        return;
    }
    let call = parsed.as_ref().ok();
    let finished = Finished {
        command: label,
        container: call.map(|c| c.container_id.clone()).unwrap_or_default(),
        pod: call.and_then(Call::pod).map(|p| p.to_string()).unwrap_or_default(),
        code,
        total_ms: ms(steps.total()),
        steps: steps.list().iter().map(|(step, took)| (*step, ms(*took))).collect(),
    };
    let split: Vec<String> = finished.steps.iter().map(|(step, took)| format!("{step}={took:.2}")).collect();
    let (pod, total) = (finished.pod.as_str(), format!("{:.2}", finished.total_ms));
    tracing::info!(
        command = label,
        pod,
        container = finished.container,
        code,
        ms = total,
        steps = split.join(" "),
        "cni"
    );
    node.journal.push(finished);
}
