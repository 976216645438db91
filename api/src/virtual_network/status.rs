//! What the controller says of a network.

use serde::{Deserialize, Serialize};

/// Types of a network's conditions.
pub mod condition {
    /// The network's switch is wanted in the northbound database, and pods may attach to the network.
    pub const READY: &str = "Ready";
    /// Something else has its addresses or its name.
    pub const CONFLICT: &str = "Conflict";
    /// Pods are attached to it; it stays until they are gone.
    pub const IN_USE: &str = "InUse";
    /// The network reaches all of the peers that it lists. Only networks that list peers have the condition.
    pub const PEERS: &str = "Peers";
}

/// A condition, in the usual form of Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    /// One of [`condition`].
    #[serde(rename = "type")]
    pub kind: String,
    /// `True` or `False`.
    pub status: String,
    /// One word for programs.
    pub reason: String,
    /// For people.
    pub message: String,
    /// When `status` became what it is: RFC 3339.
    pub last_transition_time: String,
}

/// `status` of a network.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VirtualNetworkStatus {
    /// Ready, Conflict, InUse, and Peers where it lists any.
    pub conditions: Vec<Condition>,
    /// Interfaces of pods that have addresses of the network.
    pub addresses_used: u64,
    /// Interfaces of pods that could get addresses besides.
    pub addresses_free: u64,
    /// `metadata.generation` of the spec that this is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

impl VirtualNetworkStatus {
    /// Whether both say the same, whenever they began to.
    pub fn says_the_same_as(&self, other: &Self) -> bool {
        let bare = |status: &Self| {
            let mut bare = status.clone();
            bare.conditions.iter_mut().for_each(|condition| condition.last_transition_time.clear());
            bare
        };
        bare(self) == bare(other)
    }

    /// Fills in the times: that of `before` where a condition has not changed, else `now`.
    #[must_use]
    pub fn with_times(mut self, before: &Self, now: &str) -> Self {
        for condition in &mut self.conditions {
            let known = before
                .conditions
                .iter()
                .find(|old| old.kind == condition.kind && old.status == condition.status)
                .map(|old| old.last_transition_time.clone())
                .filter(|time| !time.is_empty());
            condition.last_transition_time = known.unwrap_or_else(|| now.to_owned());
        }
        self
    }

    /// Whether the condition of this type is `True`.
    pub fn is(&self, kind: &str) -> bool {
        self.conditions.iter().any(|condition| condition.kind == kind && condition.status == "True")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(ready: &str, message: &str, time: &str) -> VirtualNetworkStatus {
        let condition = Condition {
            kind: condition::READY.to_owned(),
            status: ready.to_owned(),
            reason: "R".to_owned(),
            message: message.to_owned(),
            last_transition_time: time.to_owned(),
        };
        VirtualNetworkStatus { conditions: vec![condition], ..VirtualNetworkStatus::default() }
    }

    #[test]
    fn a_condition_keeps_its_time_until_it_changes() {
        let before = status("True", "a", "then");
        assert_eq!(status("True", "b", "").with_times(&before, "now"), status("True", "b", "then"));
        assert_eq!(status("False", "a", "").with_times(&before, "now"), status("False", "a", "now"));
        assert!(before.says_the_same_as(&status("True", "a", "")));
        assert!(!before.says_the_same_as(&status("True", "b", "then")));
        assert!(before.is(condition::READY) && !before.is(condition::IN_USE));
    }

    #[test]
    fn a_status_of_another_version_is_read() {
        let read: VirtualNetworkStatus =
            serde_json::from_str(r#"{"conditions":[{"type":"Ready","status":"True"}],"more":1}"#).unwrap();
        assert!(read.is(condition::READY));
    }
}
