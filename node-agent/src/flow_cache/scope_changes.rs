//! Changes that concern only some scopes, on their way to the state machine.

use std::collections::{BTreeMap, BTreeSet};

use ebpf::layout::scope;

use super::invalidation::{Cause, Input};
use super::local_ports::LocalPorts;
use super::manager::Shared;
use super::scope::Scope;

/// Why a change concerns everything, in metrics: the agent has not read yet which interface is which port of br-int.
const PORTS_NOT_READ: &str = "ports_not_read";

impl Shared {
    /// Feeds a change that concerns only these scopes. Returns true when entries were invalidated.
    pub(super) fn take_scopes(&self, cause: Cause, scopes: &BTreeSet<Scope>) -> bool {
        let buckets = self.ports.lock().as_ref().map(|ports| ports.buckets(scopes));
        match buckets {
            Some(buckets) => self.take_buckets(cause, buckets),
            None => {
                self.metrics.unscoped(PORTS_NOT_READ);
                self.take(Input::Changed(cause))
            }
        }
    }

    /// The same with the buckets of the scopes. Without any it concerns what any change concerns.
    pub(super) fn take_buckets(&self, cause: Cause, mut buckets: Vec<u32>) -> bool {
        self.metrics.scoped(cause);
        buckets.push(scope::ANY);
        self.take(Input::Scopes(cause, buckets))
    }

    /// Buckets of those ports of pods, and of the management port, that have these names.
    pub(super) fn named_ports(&self, names: &BTreeSet<String>) -> BTreeMap<String, u32> {
        let ports = self.ports.lock();
        let named = |name: &String| Some((name.clone(), ports.as_ref()?.named(name)?));
        names.iter().filter_map(named).collect()
    }

    /// Replaces the ports of br-int.
    pub(super) fn set_ports(&self, ports: LocalPorts) {
        *self.ports.lock() = Some(ports);
    }
}
