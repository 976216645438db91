//! What callers are answered: JSON, and errors with the API server's own code and words.

use api::error::chain;
use api::virtual_network::{VirtualNetwork, condition};
use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// An answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) code: StatusCode,
    pub(super) body: Value,
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        (self.code, Json(self.body)).into_response()
    }
}

/// Why nothing was done, or not what was asked for.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) code: StatusCode,
    pub(super) message: String,
}

impl Failure {
    pub(super) fn new(code: StatusCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

impl From<kube::Error> for Failure {
    /// What the API server says; for what says nothing, that it cannot be reached.
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => {
                let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::BAD_GATEWAY);
                Self::new(code, status.message.clone())
            }
            other => Self::new(StatusCode::BAD_GATEWAY, format!("the API server: {}", chain(&other))),
        }
    }
}

impl From<JsonRejection> for Failure {
    fn from(rejection: JsonRejection) -> Self {
        Self::new(rejection.status(), rejection.body_text())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.code, Json(json!({ "error": self.message }))).into_response()
    }
}

/// A network as callers see it: its name, what was asked for, and what the controller says.
pub(super) fn shown(network: &VirtualNetwork) -> Value {
    let (metadata, status) = (&network.metadata, network.read_status());
    json!({
        "namespace": metadata.namespace,
        "name": metadata.name,
        "spec": network.spec,
        "ready": status.is(condition::READY),
        "inUse": status.is(condition::IN_USE),
        "deleting": metadata.deletion_timestamp.is_some(),
        "addressesUsed": status.addresses_used,
        "addressesFree": status.addresses_free,
        "conditions": status.conditions,
    })
}
