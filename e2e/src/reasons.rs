//! What a node's programs counted: packets by the reason why they went through OVS, and what was learned.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::Value;

/// Counts of a node since its programs were loaded, by reason.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reasons(BTreeMap<String, u64>);

impl Reasons {
    /// Those of the agent's status.
    pub(crate) fn of(status: &Value) -> Result<Self> {
        Ok(Self(serde_json::from_value(status["packetReasons"].clone())?))
    }

    /// Reasons that were counted more than `few` times since `before`, with how often.
    pub(crate) fn since(&self, before: &Self, few: u64) -> String {
        let since = |(name, count): (&String, &u64)| {
            let since = count.saturating_sub(before.0.get(name).copied().unwrap_or_default());
            (since > few).then(|| format!("{name} {since}"))
        };
        self.0.iter().filter_map(since).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_grew_is_told_and_what_is_new() {
        let of = |counts: Value| Reasons::of(&json!({ "packetReasons": counts })).unwrap();
        let before = of(json!({"miss": 5, "learned": 7}));
        let after = of(json!({"miss": 30, "learned": 8, "probe": 2}));
        assert_eq!(after.since(&before, 0), "learned 1, miss 25, probe 2");
        assert_eq!(after.since(&before, 20), "miss 25");
    }
}
