//! State of bridges that lead to physical networks: whether their flows are monitored, and what the cache was told of their interfaces.

use std::collections::BTreeMap;
use std::time::Instant;

use super::Shared;
use crate::flow_cache::cache::PhysicalPort;
use crate::flow_cache::invalidation::bridge_monitor::BridgeMonitor;
use crate::flow_cache::invalidation::{Cause, Input, MonitorError};

/// The bridges, by name.
#[derive(Debug, Default)]
pub(in crate::flow_cache) struct PhysicalBridges {
    bridges: BTreeMap<String, Bridge>,
    /// Numbers up to this one were used.
    last: u32,
}

#[derive(Debug)]
struct Bridge {
    number: u32,
    monitor: BridgeMonitor,
    /// The end of the grace period was told.
    hold_over: bool,
}

impl Bridge {
    fn hold_ends(&self) -> Option<Instant> {
        self.monitor.hold_ends().filter(|_| !self.hold_over)
    }
}

impl PhysicalBridges {
    /// Whether a bridge has this number.
    pub(super) fn has(&self, number: u32) -> bool {
        self.bridges.values().any(|bridge| bridge.number == number)
    }

    /// The earliest end of a grace period that was not told yet.
    pub(super) fn hold_ends(&self) -> Option<Instant> {
        self.bridges.values().filter_map(Bridge::hold_ends).min()
    }

    /// Whether a grace period has ended that was not told yet; it is from now on.
    pub(super) fn take_ended(&mut self, now: Instant) -> bool {
        let over = |bridge: &&mut Bridge| bridge.hold_ends().is_some_and(|end| end <= now);
        self.bridges.values_mut().filter(over).map(|bridge| bridge.hold_over = true).count() > 0
    }
}

impl Shared {
    /// Adds a bridge that is to be monitored from now on. Returns its number.
    pub(in crate::flow_cache) fn physical_added(&self, bridge: &str) -> u32 {
        let mut inner = self.inner.lock();
        inner.physical.last += 1;
        let number = inner.physical.last;
        let added = Bridge { number, monitor: BridgeMonitor::starting(), hold_over: false };
        inner.physical.bridges.insert(bridge.to_owned(), added);
        number
    }

    /// Drops a bridge that is no longer monitored.
    pub(in crate::flow_cache) fn physical_removed(&self, bridge: &str) {
        let mut inner = self.inner.lock();
        let Some(Bridge { number, .. }) = inner.physical.bridges.remove(bridge) else { return };
        inner.exclusions.0.physical.remove(&number);
        self.take_locked(&mut inner, Input::PhysicalMonitor(number, false));
        self.decide.notify_one();
    }

    /// Call when the flow monitor of the bridge with this number is connected and synced, or is not, with the reason.
    pub(in crate::flow_cache) fn physical_monitor(&self, number: u32, state: Result<(), MonitorError>) {
        let connected = state.is_ok();
        let mut inner = self.inner.lock();
        let Some(bridge) = inner.physical.bridges.values_mut().find(|bridge| bridge.number == number) else {
            return;
        };
        bridge.hold_over &= !connected;
        bridge.monitor = bridge.monitor.next(Instant::now(), state);
        self.take_locked(&mut inner, Input::PhysicalMonitor(number, connected));
        match connected {
            true => self.decide.notify_one(),
            // As for the gateway bridge: OVS may only be starting again.
            false => self.due.notify_one(),
        }
    }

    /// Number of a bridge whose flows are monitored.
    ///
    /// # Errors
    /// Why they are not.
    pub(in crate::flow_cache) fn physical_number(&self, bridge: &str) -> Result<u32, String> {
        let inner = self.inner.lock();
        let known = inner.physical.bridges.get(bridge);
        let known = known.ok_or_else(|| format!("bridge {bridge} is not monitored yet"))?;
        match known.monitor.unsynced_reason(Instant::now()) {
            Some(why) => Err(format!("flow monitor of bridge {bridge} not connected: {why}")),
            None => Ok(known.number),
        }
    }

    /// Tells the cache of all interfaces that lead to physical networks, unless it knows. `again`: what is attached is looked at again.
    /// False: it could not be told.
    pub(in crate::flow_cache) fn set_physical(
        &self,
        wanted: &BTreeMap<u32, PhysicalPort>,
        again: bool,
    ) -> bool {
        let Some(cache) = &self.cache else { return true };
        let mut sent = self.physical_sent.lock();
        let changed = sent.as_ref() != Some(wanted);
        if !changed && (!again || wanted.is_empty()) {
            return true;
        }
        let before = sent.take();
        let done = self.check("set the interfaces of physical networks", cache.set_physical(wanted));
        *sent = done.map(|()| wanted.clone());
        drop(sent);
        if changed && before.is_some_and(|before| !before.is_empty()) {
            self.take(Input::Changed(Cause::Path));
        }
        done.is_some()
    }

    /// The interfaces that the cache was told of.
    pub(in crate::flow_cache) fn physical_sent(&self) -> BTreeMap<u32, PhysicalPort> {
        self.physical_sent.lock().clone().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_end_of_a_grace_period_is_told_once() {
        let now = Instant::now();
        let ends = now + Duration::from_secs(10);
        let monitor = BridgeMonitor::Lost(now, MonitorError::Closed);
        let mut all = PhysicalBridges::default();
        all.bridges.insert("br-dc".into(), Bridge { number: 1, monitor, hold_over: false });
        assert_eq!(all.hold_ends(), Some(ends));
        assert!(!all.take_ended(now));
        assert!(all.take_ended(ends) && !all.take_ended(ends));
        assert_eq!(all.hold_ends(), None);
    }
}
