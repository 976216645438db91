//! How to reach a database, and how far that has come.

use std::time::Duration;

use crate::backoff::Backoff;
use crate::replica::MonitorProtocol;
use crate::{Endpoint, TlsOptions};

/// How to reach a database. `..Options::default()` fills in what does not matter.
#[derive(Debug, Clone)]
pub struct Options {
    /// Servers of the same database, tried in turn.
    pub endpoints: Vec<Endpoint>,
    /// Name of the database, as in `OVN_Northbound`.
    pub database: String,
    /// Files for `ssl:` endpoints.
    pub tls: Option<TlsOptions>,
    /// Stay only with the leader of a Raft cluster.
    pub leader_only: bool,
    /// After this long without a byte from the server an echo request is sent; after twice as long the connection is
    /// given up. Zero turns probing off.
    pub probe_interval: Duration,
    /// Waits between rounds of connection attempts.
    pub backoff: Backoff,
    /// For one attempt: connecting, TLS, and the first exchange.
    pub connect_timeout: Duration,
    /// For the reply to a call, on top of what its `wait` operations may take; `None` waits without limit.
    pub call_timeout: Option<Duration>,
    /// Newest monitor method to use; older ones are for servers that lack it, and for tests.
    pub monitor_protocol: MonitorProtocol,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            endpoints: Vec::new(),
            database: String::new(),
            tls: None,
            leader_only: false,
            probe_interval: Duration::from_secs(5),
            backoff: Backoff::default(),
            connect_timeout: Duration::from_secs(10),
            call_timeout: Some(Duration::from_secs(60)),
            monitor_protocol: MonitorProtocol::MonitorCondSince,
        }
    }
}

/// State of the session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    /// No usable server yet, or no more.
    Connecting {
        /// Why there is no session: the last failure of every endpoint tried since there was one.
        last_error: Option<String>,
    },
    /// Calls are answered and replicas are current.
    Connected {
        /// The server.
        endpoint: Endpoint,
        /// Counts the sessions of this client, from 1.
        session: u64,
    },
}
