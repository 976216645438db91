//! Errors in the format of the CNI specification.

use api::cni::code;
use serde_json::json;

use crate::kernel::link::LinkError;
use crate::kernel::netns::NetnsError;
use crate::kube::pods::PodError;
use crate::ovs::ports::PortError;
use crate::pod::AttachError;

/// Error object of the CNI specification, without `cniVersion`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{msg}")]
pub struct CniError {
    /// Error code; see [`code`].
    pub code: u32,
    /// Message: the object, the error, and what would be right.
    pub msg: String,
    /// Details, such as steps that could not be undone.
    pub details: String,
}

impl CniError {
    /// An error without details.
    pub fn new(code: u32, msg: impl Into<String>) -> Self {
        Self { code, msg: msg.into(), details: String::new() }
    }

    /// A transient error; the runtime should retry.
    pub fn again(msg: impl Into<String>) -> Self {
        Self::new(code::TRY_AGAIN_LATER, msg)
    }

    /// A permanent error of the agent.
    pub fn failure(msg: impl Into<String>) -> Self {
        Self::new(code::AGENT_FAILURE, msg)
    }

    /// Appends to the details.
    #[must_use]
    pub fn and(mut self, more: &str) -> Self {
        if !more.is_empty() {
            let gap = if self.details.is_empty() { "" } else { "; " };
            self.details = format!("{}{gap}{more}", self.details);
        }
        self
    }

    /// Joins errors into one with the code of the first; `None` for an empty list.
    pub fn join(errors: Vec<Self>) -> Option<Self> {
        let code = errors.first()?.code;
        let list = |part: fn(&Self) -> &str| {
            errors.iter().map(part).filter(|t| !t.is_empty()).collect::<Vec<_>>().join("; ")
        };
        Some(Self { code, msg: list(|e| &e.msg), details: list(|e| &e.details) })
    }

    /// Formats the error as JSON object for `version`.
    pub fn to_json(&self, version: &str) -> String {
        json!({ "cniVersion": version, "code": self.code, "msg": self.msg, "details": self.details })
            .to_string()
    }
}

impl From<LinkError> for CniError {
    fn from(e: LinkError) -> Self {
        Self::failure(e.to_string())
    }
}

impl From<NetnsError> for CniError {
    fn from(e: NetnsError) -> Self {
        let code = match e {
            NetnsError::Missing { .. } => code::UNKNOWN_CONTAINER,
            NetnsError::NotANamespace { .. } => code::INVALID_ENVIRONMENT,
            // libcni's skel package has a separate code for the plugin's own namespace.
            NetnsError::Own { .. } => 8,
            NetnsError::System { .. } => code::AGENT_FAILURE,
        };
        Self::new(code, format!("CNI_NETNS: {e}"))
    }
}

impl From<PodError> for CniError {
    fn from(e: PodError) -> Self {
        if e.is_transient() { Self::again(e.to_string()) } else { Self::failure(e.to_string()) }
    }
}

impl From<PortError> for CniError {
    fn from(e: PortError) -> Self {
        if e.is_transient() { Self::again(e.to_string()) } else { Self::failure(e.to_string()) }
    }
}

impl From<AttachError> for CniError {
    fn from(e: AttachError) -> Self {
        match e {
            AttachError::Link(e) => e.into(),
            AttachError::Netns(e) => e.into(),
            AttachError::NotUndone { cause, left } => {
                Self::from(*cause).and(&format!("and undoing it failed: {left}"))
            }
            other => Self::failure(other.to_string()),
        }
    }
}
