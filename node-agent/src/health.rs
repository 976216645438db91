//! Conditions of the node and warnings, as `/readyz`, `/status` and the log show them.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;

/// Named conditions that must hold for the node to be ready, and warnings that somebody should look at. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Health {
    conditions: Arc<RwLock<BTreeMap<&'static str, Option<String>>>>,
    warnings: Arc<RwLock<BTreeMap<&'static str, String>>>,
}

impl Health {
    /// The condition holds.
    pub fn good(&self, condition: &'static str) {
        let old = self.conditions.write().insert(condition, None);
        if old != Some(None) {
            tracing::info!(condition, "good");
        }
    }

    /// The condition does not hold, and why.
    pub fn bad(&self, condition: &'static str, reason: impl Into<String>) {
        let reason = reason.into();
        let old = self.conditions.write().insert(condition, Some(reason.clone()));
        if old.flatten().as_ref() != Some(&reason) {
            tracing::warn!(condition, reason, "not good");
        }
    }

    /// Something is wrong that does not keep the node from being ready; `None`: it is right.
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
                    tracing::info!(what, "right again");
                }
            }
        }
    }

    /// `WHAT: REASON` of everything that somebody should look at.
    pub fn warnings(&self) -> Vec<String> {
        self.warnings.read().iter().map(|(what, reason)| format!("{what}: {reason}")).collect()
    }

    /// Every condition with the reason why it does not hold.
    pub fn list(&self) -> BTreeMap<&'static str, Option<String>> {
        self.conditions.read().clone()
    }

    /// `CONDITION: REASON` of all that do not hold.
    pub fn problems(&self) -> Vec<String> {
        let conditions = self.conditions.read();
        conditions.iter().filter_map(|(name, reason)| Some(format!("{name}: {}", reason.as_ref()?))).collect()
    }
}
