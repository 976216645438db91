//! The agent's log level, asked for and changed while it runs.

use api::admin::{LogLevel, LogLevelRequest};
use axum::Json;
use axum::body::Bytes;
use supervision::log;

use super::{AdminError, Answer, read};

pub(super) async fn level(body: Bytes) -> Answer<LogLevel> {
    let request: LogLevelRequest = read(&body)?;
    if let Some(level) = request.level {
        log::set_level(&level).map_err(|error| AdminError::Bad(error.to_string()))?;
    }
    match log::level() {
        Some(level) => Ok(Json(LogLevel { level })),
        None => Err(AdminError::Cannot(log::LogError::None.to_string())),
    }
}
