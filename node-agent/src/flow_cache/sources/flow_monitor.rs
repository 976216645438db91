//! OpenFlow flow monitor on the management socket of a bridge: reports flow changes as they happen.
//!
//! It runs on its own thread that blocks in `read`, so that no other work of the agent delays invalidation. The first ten bytes
//! of a message are enough to report a change.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use thread_priority::{
    RealtimeThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy, set_thread_priority_and_policy,
    thread_native_id,
};

use crate::flow_cache::eligibility::flow_actions::{FlowExclusions, FlowIndex};
use crate::flow_cache::invalidation::{MonitorError, Watched};
use crate::flow_cache::scope::{Impact, Rule};
use crate::flow_cache::sources::tables::Tables;
use crate::ovs::openflow::{self, Message, Update};

/// An event of the flow monitor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The monitor is connected and has received all existing flows.
    Up {
        /// Number of flows in all tables.
        flows: usize,
    },
    /// Changes of flows are being received.
    Reading,
    /// Flows changed: time at which the first byte of the updates arrived, and what they concern.
    Changed(Instant, Impact),
    /// Why every change of the bridge's flows concerns everything, as they are not as expected; `None` where they are again.
    Lint(Option<String>),
    /// OVS paused updates because of congestion (`true`), or resumed them (`false`).
    Paused(bool),
    /// Changed exclusions because of the bridge's flows.
    Exclusions(FlowExclusions),
    /// All updates received so far are parsed. Follows [`Event::Reading`], [`Event::Changed`] and [`Event::Exclusions`].
    Read,
    /// The monitor was lost, with the reason.
    Down(MonitorError),
}

/// Interval of connection attempts. There is no notification when a process listens on a socket file again.
const RETRY: Duration = Duration::from_millis(50);
/// Interval at which the thread checks for a stop request.
const LOOK: Duration = Duration::from_millis(500);

/// Gives this thread the lowest real-time priority (SCHED_FIFO), ahead of all ordinary work: without it, invalidation was up to
/// 38 ms late with all CPUs busy. The thread sleeps nearly always, and its work is bounded by the updates that OVS sends.
///
/// # Errors
/// The process has no CAP_SYS_NICE.
pub fn set_realtime_priority() -> Result<(), thread_priority::Error> {
    let policy = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::Fifo);
    // The lowest real-time priority: ahead of ordinary work, behind all other real-time threads.
    set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, policy)
}

/// Monitors until `stop` is set, reconnecting as needed. `socket`: the bridge's management socket, or why there is none; asked at each
/// attempt; `begin`: a connection of which nothing was read. Calls `report` on this thread.
pub fn watch(
    begin: impl Fn() -> Session,
    socket: impl Fn() -> Result<PathBuf, MonitorError>,
    stop: &AtomicBool,
    mut report: impl FnMut(Event),
) {
    let mut last = None;
    while !stop.load(Ordering::Relaxed) {
        let connected = socket().and_then(|socket| {
            let failed = |error: std::io::Error| error.to_string();
            let connected = UnixStream::connect(&socket).map_err(failed);
            connected.map_err(|problem| MonitorError::Connect { socket, problem })
        });
        let why = match connected {
            Ok(stream) => {
                last = None;
                serve(stream, begin(), stop, &mut report)
            }
            Err(why) => why,
        };
        if stop.load(Ordering::Relaxed) {
            return;
        }
        if last.as_ref() != Some(&why) {
            report(Event::Down(why.clone()));
            last = Some(why);
        }
        std::thread::sleep(RETRY);
    }
}

/// Serves one connection. Returns why it ended.
fn serve(
    mut stream: UnixStream,
    mut session: Session,
    stop: &AtomicBool,
    report: &mut impl FnMut(Event),
) -> MonitorError {
    let begin = |stream: &mut UnixStream| {
        stream.set_read_timeout(Some(LOOK))?;
        let mut greeting = openflow::hello();
        greeting.extend(openflow::monitor_request());
        stream.write_all(&greeting)
    };
    if let Err(error) = begin(&mut stream) {
        return MonitorError::Hello(error.to_string());
    }
    let mut chunk = vec![0; 65_536];
    loop {
        let count = match stream.read(&mut chunk) {
            Ok(0) => return MonitorError::Closed,
            Ok(count) => count,
            Err(e) if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                if stop.load(Ordering::Relaxed) {
                    return MonitorError::Stopped;
                }
                continue;
            }
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return MonitorError::Read(error.to_string()),
        };
        let came = Instant::now();
        match session.read(chunk.get(..count).unwrap_or_default(), came, report) {
            Ok(replies) if replies.is_empty() => {}
            Ok(replies) => {
                if let Err(error) = stream.write_all(&replies) {
                    return MonitorError::Write(error.to_string());
                }
            }
            Err(why) => return why,
        }
    }
}

/// Parser state of one connection. No I/O.
#[derive(Debug)]
pub struct Session {
    /// Start of an incomplete message.
    buffer: Vec<u8>,
    /// [`Event::Reading`] was reported, [`Event::Read`] was not: when it was.
    unread: Option<Instant>,
    flows: usize,
    up: bool,
    index: FlowIndex,
    tables: Tables,
    /// Lint as last reported.
    lint: Option<String>,
}

impl Session {
    /// A connection to `bridge` of which nothing was read.
    pub fn new(bridge: Watched) -> Self {
        let (buffer, index) = (Vec::new(), FlowIndex::default());
        Self { buffer, unread: None, flows: 0, up: false, index, tables: Tables::new(bridge), lint: None }
    }

    /// A session of br-int whose classifier lacks a rule, for tests that show what the rule is for.
    pub fn without(rule: Rule) -> Self {
        Self { tables: Tables::without(rule), ..Self::new(Watched::Integration) }
    }

    /// Parses received bytes, which may end anywhere in a message; `came` is their time of arrival. Returns bytes to send.
    ///
    /// # Errors
    /// OVS does not speak OpenFlow 1.5 or rejects the monitor; the caller must close the connection.
    pub fn read(
        &mut self,
        bytes: &[u8],
        came: Instant,
        report: &mut impl FnMut(Event),
    ) -> Result<Vec<u8>, MonitorError> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.extend(bytes);
        let (mut at, mut replies) = (0, Vec::new());
        while let Some(rest) = buffer.get(at..) {
            if openflow::begins_change(rest) && self.unread.is_none() {
                self.unread = Some(came);
                report(Event::Reading);
            }
            let Some(one) = openflow::length(rest).and_then(|length| rest.get(..length)) else { break };
            replies.extend(self.take(openflow::read(one), came, report)?.unwrap_or_default());
            at += one.len();
        }
        buffer.drain(..at);
        self.buffer = buffer;
        if let Some(since) = self.unread {
            // What is complete does not wait for the rest of a message.
            let impact = self.tables.impact();
            self.send_lint(report);
            if impact.updates > 0 {
                report(Event::Changed(since, impact));
            }
        }
        if self.buffer.is_empty() {
            self.send_exclusions(report);
            if self.unread.take().is_some() {
                report(Event::Read);
            }
        }
        Ok(replies)
    }

    /// Number of buffered bytes of an incomplete message.
    pub fn waiting(&self) -> usize {
        self.buffer.len()
    }

    /// Processes one message; returns the reply.
    fn take(
        &mut self,
        message: Message<'_>,
        came: Instant,
        report: &mut impl FnMut(Event),
    ) -> Result<Option<Vec<u8>>, MonitorError> {
        match message {
            Message::Echo { xid, body } => return Ok(Some(openflow::echo_reply(xid, body))),
            Message::Hello(true) | Message::Other => {}
            Message::Hello(false) => return Err(MonitorError::Version),
            Message::Error(kind, code) => return Err(MonitorError::Rejected { kind, code }),
            Message::Initial { updates, more } => {
                for update in openflow::updates(updates) {
                    self.flows += 1;
                    self.tables.take(&update, came);
                    self.index.take(update);
                }
                if !more && !self.up {
                    self.up = true;
                    // What was there before concerns nothing that is cached: the cache is invalidated when the monitor is up.
                    drop(self.tables.impact());
                    self.send_lint(report);
                    self.send_exclusions(report);
                    report(Event::Up { flows: self.flows });
                }
            }
            Message::Changed(updates) => {
                for update in openflow::updates(updates) {
                    if let Update::Paused(paused) = update {
                        report(Event::Paused(paused));
                    }
                    self.tables.take(&update, came);
                    self.index.take(update);
                }
            }
        }
        Ok(None)
    }

    /// Reports whether the flows are as expected, if that has changed.
    fn send_lint(&mut self, report: &mut impl FnMut(Event)) {
        if self.tables.lint() != self.lint.as_deref() {
            self.lint = self.tables.lint().map(str::to_owned);
            report(Event::Lint(self.lint.clone()));
        }
    }

    /// Reports changed exclusions, once all existing flows are known; a partial list would exclude too much.
    fn send_exclusions(&mut self, report: &mut impl FnMut(Event)) {
        if self.up
            && let Some(exclusions) = self.index.changes()
        {
            report(Event::Exclusions(exclusions));
        }
    }
}
