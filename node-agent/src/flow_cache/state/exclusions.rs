//! What the flows of the bridges exclude from the fast path, on its way to the endpoints.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Shared;
use crate::flow_cache::eligibility::flow_actions::FlowExclusions;
use crate::flow_cache::invalidation::{Input, Watched};

/// What the flows of the bridges exclude from the fast path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::flow_cache) struct Exclusions {
    pub(in crate::flow_cache) integration: Arc<FlowExclusions>,
    pub(in crate::flow_cache) gateway: Arc<FlowExclusions>,
    /// What those of bridges that lead to physical networks exclude, by their numbers.
    pub(in crate::flow_cache) physical: BTreeMap<u32, Arc<FlowExclusions>>,
}

impl Shared {
    /// Sets the exclusions because of the flows of `bridge`; learning stops until [`Shared::exclusions_applied`].
    pub(in crate::flow_cache) fn set_exclusions(&self, bridge: Watched, exclusions: FlowExclusions) {
        let mut inner = self.inner.lock();
        if matches!(bridge, Watched::Physical(number) if !inner.physical.has(number)) {
            // The thread of a bridge that is no longer monitored has not ended yet.
            return;
        }
        let (all, version) = &mut inner.exclusions;
        let of_bridge = match bridge {
            Watched::Integration => &mut all.integration,
            Watched::Gateway => &mut all.gateway,
            Watched::Physical(number) => all.physical.entry(number).or_default(),
        };
        if **of_bridge != exclusions {
            *of_bridge = Arc::new(exclusions);
            *version += 1;
            self.take_locked(&mut inner, Input::Deciding(true));
            self.decide.notify_one();
        }
    }

    /// Current exclusions and their version.
    pub(in crate::flow_cache) fn exclusions(&self) -> (Exclusions, u64) {
        self.inner.lock().exclusions.clone()
    }

    /// Call after the exclusions of this version were applied to all endpoints; learning resumes if they are current.
    pub(in crate::flow_cache) fn exclusions_applied(&self, version: u64) {
        let mut inner = self.inner.lock();
        if inner.exclusions.1 == version {
            self.take_locked(&mut inner, Input::Deciding(false));
        }
    }
}
