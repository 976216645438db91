//! Protocol between the CNI executable and the node agent: one HTTP request on a unix socket.
//!
//! The executable sends its environment and standard input unchanged; the agent decides everything else. The executable is small
//! and uses only the standard library, so this module is for the agent (and the test bed); the executable writes the
//! same JSON by hand.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Path of the only HTTP resource. The number is the protocol's version.
pub const PATH: &str = "/cni/v1";

/// Default path of the agent's socket.
pub const DEFAULT_SOCKET: &str = "/run/slipstream/cni.sock";

/// One call of the CNI executable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The `CNI_*` variables as the runtime set them.
    pub env: BTreeMap<String, String>,
    /// Standard input as text: the network configuration. Empty for `VERSION` if the runtime passed none.
    pub config: String,
    /// When the executable started, nanoseconds since the epoch; for measuring the duration of steps.
    #[serde(default)]
    pub started_ns: u64,
}

/// The agent's answer: output and exit code of the executable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// Standard output, printed unchanged; empty for success without a result.
    pub stdout: String,
    /// 0 for success.
    pub exit_code: i32,
}

/// Error codes of the CNI specification 1.1, and Slipstream's own from 100 on.
pub mod code {
    /// The configuration's `cniVersion` is not supported.
    pub const INCOMPATIBLE_VERSION: u32 = 1;
    /// A field of the configuration is not supported.
    pub const UNSUPPORTED_FIELD: u32 = 2;
    /// The container is unknown or does not exist.
    pub const UNKNOWN_CONTAINER: u32 = 3;
    /// A required environment variable is missing or invalid.
    pub const INVALID_ENVIRONMENT: u32 = 4;
    /// Standard input could not be read.
    pub const IO_FAILURE: u32 = 5;
    /// Standard input is not JSON.
    pub const DECODING_FAILURE: u32 = 6;
    /// The configuration is JSON but not valid.
    pub const INVALID_CONFIG: u32 = 7;
    /// A transient error: the runtime should try again.
    pub const TRY_AGAIN_LATER: u32 = 11;
    /// STATUS: the plugin cannot serve ADD.
    pub const NOT_AVAILABLE: u32 = 50;
    /// STATUS: the plugin cannot serve ADD, and existing containers may be cut off.
    pub const LIMITED_CONNECTIVITY: u32 = 51;
    /// Slipstream's own: the agent failed.
    pub const AGENT_FAILURE: u32 = 100;
}
