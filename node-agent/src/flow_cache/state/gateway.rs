//! State of the gateway bridge: whether its flows are monitored, and what of its traffic the cache carries.

use std::time::Instant;

use api::admin::PathStatus;

use super::Shared;
use crate::flow_cache::cache::GatewayEnd;
use crate::flow_cache::invalidation::{Input, MonitorError};

impl Shared {
    /// Call when the flow monitor of the gateway bridge is connected and synced, or is not, with the reason.
    pub(in crate::flow_cache) fn gateway_monitor(&self, state: Result<(), MonitorError>) {
        let connected = state.is_ok();
        let mut inner = self.inner.lock();
        inner.gateway_hold_over &= !connected;
        inner.gateway_monitor = inner.gateway_monitor.next(Instant::now(), state);
        self.take_locked(&mut inner, Input::GatewayMonitor(connected));
        match connected {
            true => self.decide.notify_one(),
            // The path is evaluated when the grace period is over: OVS may only be starting again.
            false => self.due.notify_one(),
        }
    }

    /// Why the gateway bridge is not monitored; `None` when it is.
    pub(in crate::flow_cache) fn gateway_unsynced(&self) -> Option<String> {
        let inner = self.inner.lock();
        let why = inner.gateway_monitor.unsynced_reason(Instant::now())?;
        Some(format!("flow monitor of the gateway bridge not connected: {why}"))
    }

    /// Path of the gateway bridge as decided last, while its monitor is lost and the grace period lasts.
    pub(in crate::flow_cache) fn gateway_held(&self) -> Option<(PathStatus, Option<GatewayEnd>)> {
        let inner = self.inner.lock();
        inner.gateway_monitor.hold_ends().filter(|end| Instant::now() < *end)?;
        Some((inner.decided.gateway.clone(), inner.decided.gateway_end))
    }

    /// Writes what the fast path needs for traffic of the gateway bridge, unless it is written already. Returns true when it was
    /// changed.
    pub(in crate::flow_cache) fn set_gateway(&self, end: Option<GatewayEnd>) -> bool {
        let Some(cache) = &self.cache else { return false };
        let before = self.inner.lock().gateway_sent;
        // What the agent before wrote stands until the bridge is monitored, or the grace period is over.
        let adopted = before.is_none() && self.gateway_held().is_some();
        if adopted || before == Some(end) {
            return false;
        }
        let done = self.check("set the path of the gateway bridge", cache.set_gateway(end));
        self.inner.lock().gateway_sent = done.map(|()| end);
        before.is_some()
    }
}
