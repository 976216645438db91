//! Sees changes of br-int's flows as they happen: an OpenFlow flow monitor on the bridge's management socket.
//!
//! It has a thread of its own that blocks in `read`, so that no other work of the agent is between OVS's word and the
//! stop of the cache. The first bytes of a message are enough to act on.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use thread_priority::{
    RealtimeThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy, set_thread_priority_and_policy,
    thread_native_id,
};

use crate::flow_cache::eligibility::flow_actions::{FlowExclusions, FlowIndex};
use crate::ovs::openflow::{self, Message, Update};

/// What the monitor tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It is there; so many flows are.
    Up {
        /// Flows in all tables.
        flows: usize,
    },
    /// Flows have changed; when the word came.
    Changed(Instant),
    /// OVS stops telling of changes, or goes on.
    Paused(bool),
    /// Whose packets flows of the bridge log, sample or shape, other than before.
    Exclusions(FlowExclusions),
    /// Everything that was told until now has been read. Comes after [`Event::Changed`], and after the exclusions.
    Read,
    /// It is gone, and why.
    Down(String),
}

/// Time between two attempts to connect. A socket file gives no sign when somebody listens on it again.
const RETRY: Duration = Duration::from_millis(50);
/// How often the thread looks whether it is to end.
const LOOK: Duration = Duration::from_millis(500);

/// Lets this thread run as soon as there is something to read, before all ordinary work: with every CPU busy it waited
/// up to 38 ms otherwise, while packets went on by verdicts that OVS had taken back. It is asleep nearly always, and what it
/// does is bounded by what OVS has to tell.
pub fn before_others() -> Result<(), thread_priority::Error> {
    let policy = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::Fifo);
    // The lowest of them: before ordinary work, after everything else of that kind.
    set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, policy)
}

/// Watches until `stop`, over any number of connections. `tell` is called on this thread.
pub fn watch(socket: &Path, stop: &AtomicBool, mut tell: impl FnMut(Event)) {
    let mut last = String::new();
    while !stop.load(Ordering::Relaxed) {
        let why = match UnixStream::connect(socket) {
            Ok(stream) => {
                last.clear();
                session(stream, stop, &mut tell)
            }
            Err(error) => format!("{}: {error}", socket.display()),
        };
        if stop.load(Ordering::Relaxed) {
            return;
        }
        if why != last {
            tell(Event::Down(why.clone()));
            last = why;
        }
        std::thread::sleep(RETRY);
    }
}

/// One connection. Returns why it ended.
fn session(mut stream: UnixStream, stop: &AtomicBool, tell: &mut impl FnMut(Event)) -> String {
    let mut session = Session::default();
    let begin = |stream: &mut UnixStream| {
        stream.set_read_timeout(Some(LOOK))?;
        let mut greeting = openflow::hello();
        greeting.extend(openflow::monitor_request());
        stream.write_all(&greeting)
    };
    if let Err(error) = begin(&mut stream) {
        return format!("greeting: {error}");
    }
    let mut chunk = vec![0; 65_536];
    loop {
        let count = match stream.read(&mut chunk) {
            Ok(0) => return "OVS closed the connection".to_owned(),
            Ok(count) => count,
            Err(e) if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                if stop.load(Ordering::Relaxed) {
                    return "stopped".to_owned();
                }
                continue;
            }
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return format!("read: {error}"),
        };
        let came = Instant::now();
        match session.read(chunk.get(..count).unwrap_or_default(), came, tell) {
            Ok(replies) if replies.is_empty() => {}
            Ok(replies) => {
                if let Err(error) = stream.write_all(&replies) {
                    return format!("write: {error}");
                }
            }
            Err(why) => return why,
        }
    }
}

/// What was read on one connection. No I/O.
#[derive(Debug, Default)]
pub struct Session {
    /// The beginning of a message whose end has not come.
    buffer: Vec<u8>,
    /// Changes were told, [`Event::Read`] was not.
    unread: bool,
    flows: usize,
    up: bool,
    index: FlowIndex,
}

impl Session {
    /// Takes what came, at whatever length. Returns what to answer; an error ends the session.
    pub fn read(
        &mut self,
        bytes: &[u8],
        came: Instant,
        tell: &mut impl FnMut(Event),
    ) -> Result<Vec<u8>, String> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.extend(bytes);
        let (mut at, mut replies) = (0, Vec::new());
        while let Some(rest) = buffer.get(at..) {
            if openflow::begins_change(rest) {
                self.unread = true;
                tell(Event::Changed(came));
            }
            let Some(one) = openflow::length(rest).and_then(|length| rest.get(..length)) else { break };
            replies.extend(self.take(openflow::read(one), tell)?.unwrap_or_default());
            at += one.len();
        }
        buffer.drain(..at);
        self.buffer = buffer;
        if self.buffer.is_empty() {
            self.send_exclusions(tell);
            if std::mem::take(&mut self.unread) {
                tell(Event::Read);
            }
        }
        Ok(replies)
    }

    /// Bytes of a message whose end has not come.
    pub fn waiting(&self) -> usize {
        self.buffer.len()
    }

    /// Takes one message; returns what to answer. An error ends the session.
    fn take(
        &mut self,
        message: Message<'_>,
        tell: &mut impl FnMut(Event),
    ) -> Result<Option<Vec<u8>>, String> {
        match message {
            Message::Echo { xid, body } => return Ok(Some(openflow::echo_reply(xid, body))),
            Message::Hello(true) | Message::Other => {}
            Message::Hello(false) => {
                return Err("br-int does not speak OpenFlow 1.5; add it to the bridge's column `protocols`"
                    .to_owned());
            }
            Message::Error(kind, code) => {
                return Err(format!("OVS refuses the flow monitor: OpenFlow error type {kind}, code {code}"));
            }
            Message::Initial { updates, more } => {
                for update in openflow::updates(updates) {
                    self.flows += 1;
                    self.index.take(update);
                }
                if !more && !self.up {
                    self.up = true;
                    self.send_exclusions(tell);
                    tell(Event::Up { flows: self.flows });
                }
            }
            Message::Changed(updates) => {
                for update in openflow::updates(updates) {
                    if let Update::Paused(paused) = update {
                        tell(Event::Paused(paused));
                    }
                    self.index.take(update);
                }
            }
        }
        Ok(None)
    }

    /// Once the first list is complete; before, half of it would say too much.
    fn send_exclusions(&mut self, tell: &mut impl FnMut(Event)) {
        if self.up
            && let Some(exclusions) = self.index.changes()
        {
            tell(Event::Exclusions(exclusions));
        }
    }
}
