//! Conditions and warnings of the node, shown by `/readyz`, `/status` and the log.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;

/// Conditions that must be met for the node to be ready, and warnings that do not affect readiness. Clones share state.
#[derive(Debug, Clone, Default)]
pub struct Health {
    conditions: Arc<RwLock<BTreeMap<&'static str, Option<String>>>>,
    warnings: Arc<RwLock<BTreeMap<&'static str, String>>>,
}

impl Health {
    /// Marks `condition` as met; logs the transition.
    pub fn met(&self, condition: &'static str) {
        let old = self.conditions.write().insert(condition, None);
        if old != Some(None) {
            tracing::info!(condition, "condition met");
        }
    }

    /// Marks `condition` as not met because of `reason`; logs the transition and each change of the reason.
    pub fn not_met(&self, condition: &'static str, reason: impl Into<String>) {
        let reason = reason.into();
        let old = self.conditions.write().insert(condition, Some(reason.clone()));
        if old.flatten().as_ref() != Some(&reason) {
            tracing::warn!(condition, reason, "condition not met");
        }
    }

    /// Sets the warning `what` to `reason`, or clears it with `None`. Readiness does not change.
    pub fn warning(&self, what: &'static str, reason: Option<String>) {
        let mut warnings = self.warnings.write();
        match reason {
            Some(reason) => {
                if warnings.get(what) != Some(&reason) {
                    tracing::warn!(what, "{reason}");
                    warnings.insert(what, reason);
                }
            }
            None => {
                if warnings.remove(what).is_some() {
                    tracing::info!(what, "warning cleared");
                }
            }
        }
    }

    /// Active warnings, as `WHAT: REASON`.
    pub fn warnings(&self) -> Vec<String> {
        self.warnings.read().iter().map(|(what, reason)| format!("{what}: {reason}")).collect()
    }

    /// All conditions; `None` when met, else the reason.
    pub fn list(&self) -> BTreeMap<&'static str, Option<String>> {
        self.conditions.read().clone()
    }

    /// Conditions that are not met, as `CONDITION: REASON`.
    pub fn problems(&self) -> Vec<String> {
        let conditions = self.conditions.read();
        conditions.iter().filter_map(|(name, reason)| Some(format!("{name}: {}", reason.as_ref()?))).collect()
    }
}
