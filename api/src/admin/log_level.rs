//! The level of the agent's log.

use serde::{Deserialize, Serialize};

/// Request to change the level until the agent ends; without one it is only asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LogLevelRequest {
    /// `error`, `warn`, `info`, `debug`, `trace`, or directives such as `info,node_agent::gateway=debug`.
    #[serde(default)]
    pub level: Option<String>,
}

/// The level in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LogLevel {
    /// Level or directives in force, in the form of [`LogLevelRequest::level`].
    pub level: String,
}
