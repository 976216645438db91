//! State of the flow monitor of a bridge other than br-int: the gateway bridge, or one that leads to a physical network. Pure.

use std::time::{Duration, Instant};

use super::MonitorError;
use crate::flow_cache::cache::HOLD;

/// State of the flow monitor of such a bridge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::flow_cache) enum BridgeMonitor {
    /// Connected.
    Up,
    /// Lost at this time, after it was connected, by this agent or the one before.
    Lost(Instant, MonitorError),
    /// Not connected yet.
    Missing(MonitorError),
}

impl BridgeMonitor {
    /// Not connected yet, by an agent that is starting.
    pub(in crate::flow_cache) fn starting() -> Self {
        Self::Missing(MonitorError::NotYet)
    }

    /// Monitor with the state of the agent before this one, whose cache is adopted. `left`: rest of the grace period if it had lost OVS.
    pub(in crate::flow_cache) fn adopted(now: Instant, left: Option<Duration>) -> Self {
        let passed = HOLD.saturating_sub(left.unwrap_or(HOLD));
        Self::Lost(now.checked_sub(passed).unwrap_or(now), MonitorError::NotYet)
    }

    /// After it was connected, or was not, with the reason.
    pub(in crate::flow_cache) fn next(&self, now: Instant, state: Result<(), MonitorError>) -> Self {
        match (state, self) {
            (Ok(()), _) => Self::Up,
            (Err(why), Self::Up) => Self::Lost(now, why),
            (Err(why), Self::Lost(since, _)) => Self::Lost(*since, why),
            (Err(why), Self::Missing(_)) => Self::Missing(why),
        }
    }

    /// Why the bridge is not monitored; `None` while it is, and for [`HOLD`] after it was: a restart of OVS must not interrupt
    /// traffic.
    pub(in crate::flow_cache) fn unsynced_reason(&self, now: Instant) -> Option<&MonitorError> {
        match self {
            Self::Up => None,
            Self::Lost(..) if self.hold_ends().is_some_and(|end| now < end) => None,
            Self::Lost(_, why) | Self::Missing(why) => Some(why),
        }
    }

    /// End of the grace period.
    pub(in crate::flow_cache) fn hold_ends(&self) -> Option<Instant> {
        match self {
            Self::Lost(since, _) => Some(*since + HOLD),
            Self::Up | Self::Missing(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn lost() -> Result<(), MonitorError> {
        Err(MonitorError::Closed)
    }

    #[test]
    fn the_grace_period_starts_when_the_monitor_is_lost_and_not_with_each_attempt() {
        let now = Instant::now();
        assert!(BridgeMonitor::starting().next(now, lost()).unsynced_reason(now).is_some());
        let up = BridgeMonitor::starting().next(now, Ok(()));
        assert_eq!((up.unsynced_reason(now), up.hold_ends()), (None, None));
        let state = up.next(now, lost()).next(now + SECOND, lost());
        assert_eq!(state.hold_ends(), Some(now + HOLD));
        assert_eq!(state.unsynced_reason(now + HOLD - SECOND), None);
        assert_eq!(state.unsynced_reason(now + HOLD), Some(&MonitorError::Closed));
        assert_eq!(state.next(now + HOLD, Ok(())), BridgeMonitor::Up);
    }

    #[test]
    fn an_adopted_cache_has_a_whole_grace_period_or_the_rest_of_one() {
        let now = Instant::now();
        assert_eq!(BridgeMonitor::adopted(now, None).hold_ends(), Some(now + HOLD));
        let ends = BridgeMonitor::adopted(now, Some(SECOND)).hold_ends().unwrap();
        assert!(ends <= now + SECOND, "{:?}", ends - now);
        assert_eq!(BridgeMonitor::adopted(now, None).unsynced_reason(now), None);
    }
}
