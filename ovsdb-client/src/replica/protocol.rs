//! The methods that monitor tables.

/// Which monitor method a session may use at most. Servers that lack it make the session fall back by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MonitorProtocol {
    /// `monitor` of RFC 7047.
    Monitor,
    /// `monitor_cond`: conditions, differences.
    MonitorCond,
    /// `monitor_cond_since`: also resumes after a reconnect.
    MonitorCondSince,
}
