//! Errors of the admin socket and their HTTP status codes.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use api::admin::Failure;

use crate::flow_cache::CacheError;

/// A request that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdminError {
    /// Invalid request: 400.
    #[error("{0}")]
    Bad(String),
    /// Unknown resource or endpoint: 404.
    #[error("{0}")]
    NotFound(String),
    /// Not possible in the current state of the node: 409.
    #[error("{0}")]
    Cannot(String),
    /// Internal error: 500.
    #[error("{0}")]
    Failed(String),
}

impl From<CacheError> for AdminError {
    fn from(error: CacheError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl AdminError {
    fn status(&self) -> StatusCode {
        match self {
            Self::Bad(_) => StatusCode::BAD_REQUEST,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Cannot(_) => StatusCode::CONFLICT,
            Self::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl IntoResponse for AdminError {
    fn into_response(self) -> Response {
        if let Self::Failed(error) = &self {
            tracing::warn!(error, "admin socket: request failed");
        }
        (self.status(), Json(Failure { error: self.to_string() })).into_response()
    }
}
