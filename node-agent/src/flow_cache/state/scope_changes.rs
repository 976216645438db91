//! Changes that concern only some scopes, on their way to the state machine.

use std::collections::{BTreeMap, BTreeSet};

use ebpf::layout::scope;

use super::Shared;
use super::ports::Found;
use crate::flow_cache::invalidation::{Cause, Input};
use crate::flow_cache::scope::Scope;
use crate::ovs::Ovs;

/// Why a change concerns everything, in metrics: the agent has not read yet which interface is which port of br-int.
const PORTS_NOT_READ: &str = "ports_not_read";

impl Shared {
    /// Feeds a change that concerns only these scopes. Returns true when entries were invalidated.
    pub(in crate::flow_cache) fn take_scopes(&self, cause: Cause, scopes: &BTreeSet<Scope>) -> bool {
        let buckets = self.ports.lock().as_ref().map(|ports| ports.buckets(scopes));
        match buckets {
            Some(buckets) => self.take_buckets(cause, buckets),
            None => {
                self.metrics.unscoped(PORTS_NOT_READ);
                self.take(Input::Changed(cause))
            }
        }
    }

    /// Takes a change with the buckets of its scopes. Without any it concerns what any change concerns.
    pub(in crate::flow_cache) fn take_buckets(&self, cause: Cause, mut buckets: Vec<u32>) -> bool {
        self.metrics.scoped(cause);
        buckets.push(scope::ANY);
        self.take(Input::Scopes(cause, buckets))
    }

    /// Buckets of those ports of pods, and of the management port, that have these names.
    pub(in crate::flow_cache) fn named_ports(&self, names: &BTreeSet<String>) -> BTreeMap<String, u32> {
        let ports = self.ports.lock();
        let named = |name: &String| Some((name.clone(), ports.as_ref()?.named(name)?));
        names.iter().filter_map(named).collect()
    }

    /// Takes over all ports of br-int.
    pub(in crate::flow_cache) fn read_ports(&self, ovs: &Ovs) {
        let _turn = self.ports_turn.lock();
        let all = Found::all(ovs);
        self.ports.lock().get_or_insert_default().replace(all);
    }

    /// Takes over those ports of br-int that have these names.
    pub(in crate::flow_cache) fn update_ports(&self, ovs: &Ovs, names: &BTreeSet<String>) {
        let _turn = self.ports_turn.lock();
        let known = self.ports.lock().is_some();
        let found = if known { Found::named(ovs, names) } else { Found::all(ovs) };
        let mut ports = self.ports.lock();
        let ports = ports.get_or_insert_default();
        if known {
            ports.update(names, found);
        } else {
            ports.replace(found);
        }
    }

    /// The interface of a pod with this id goes. `ifindex`: of its host veth, if that is there. Otherwise the port may be known from before; if it is not, either
    /// nothing could be learned of it, or it went before and was ended then, as with a repeated DEL.
    pub(in crate::flow_cache) fn endpoint_gone(&self, id: &str, ifindex: Option<u32>) {
        let bucket = match (ifindex, &*self.ports.lock()) {
            (Some(ifindex), _) => Some(scope::port(ifindex)),
            (None, Some(ports)) => match ports.of_interface(id) {
                Some(bucket) => Some(bucket),
                None => return,
            },
            (None, None) => None,
        };
        match bucket {
            Some(bucket) => self.take_buckets(Cause::Removal, vec![bucket]),
            None => self.take(Input::Changed(Cause::Removal)),
        };
    }
}
