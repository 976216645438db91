//! One session in use: requests in flight, updates into replicas, locks, and the watch on the server's state.

mod incoming;

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot, watch};

use super::State;
use super::server::{Server, answer};
use crate::command::Command;
use crate::connection::{Connection, Event};
use crate::options::{Options, Status};
use crate::replica::MonitorProtocol;
use crate::rpc::{self, Message};
use crate::{Error, Schema};

/// No more commands are taken while more than this is waiting to be sent.
const MAX_BACKLOG: usize = 1 << 20;

/// `monitor_cond_since` with this identifier asks for everything.
const NO_TRANSACTION: &str = "00000000-0000-0000-0000-000000000000";

/// What a reply is for.
enum Pending {
    Call {
        ticket: u64,
        method: String,
        done: oneshot::Sender<Result<Box<RawValue>, Error>>,
    },
    Monitor {
        id: u64,
        protocol: MonitorProtocol,
    },
    Lock {
        id: u64,
        name: String,
    },
    /// Echo, monitor_cancel, unlock.
    Ignored,
}

/// A connection that passed the handshake.
pub(super) struct Live {
    connection: Connection,
    next_id: u64,
    server: Server,
    schema: Arc<Schema>,
    options: Arc<Options>,
    pending: HashMap<u64, Pending>,
    protocol: MonitorProtocol,
    /// Monitors and locks of earlier sessions whose replies are still out.
    unsettled: usize,
    ready: bool,
}

impl Live {
    pub(super) fn new(
        connection: Connection,
        next_id: u64,
        server: Server,
        schema: Arc<Schema>,
        options: Arc<Options>,
    ) -> Self {
        let protocol = options.monitor_protocol;
        Self {
            connection,
            next_id,
            server,
            schema,
            options,
            pending: HashMap::new(),
            protocol,
            unsettled: 0,
            ready: false,
        }
    }

    /// Whether everything was brought up to date once.
    pub(super) fn was_ready(&self) -> bool {
        self.ready
    }

    /// Serves until the connection ends (the reason) or every handle is gone (`None`).
    pub(super) async fn serve(
        &mut self,
        state: &mut State,
        queue: &mut mpsc::UnboundedReceiver<Command>,
        status: &watch::Sender<Status>,
        connected: Status,
        schema: &watch::Sender<Option<Arc<Schema>>>,
    ) -> Option<String> {
        if let Err(reason) = self.resume(state) {
            return Some(reason);
        }
        loop {
            if self.unsettled == 0 && !self.ready {
                self.ready = true;
                tracing::info!(database = self.options.database, status = ?connected, "OVSDB session is up");
                schema.send_replace(Some(Arc::clone(&self.schema)));
                status.send_replace(connected.clone());
            }
            let taking = self.ready && self.connection.backlog() < MAX_BACKLOG;
            let step = tokio::select! {
                event = self.connection.event() => match event {
                    Ok(Event::Message(bytes)) => self.message(&bytes, state),
                    Ok(Event::Idle) => self.send("echo", &json!([]), Pending::Ignored),
                    Err(reason) => Err(reason),
                },
                command = queue.recv(), if taking => match command {
                    Some(command) => self.command(command, state),
                    None => return None,
                },
            };
            if let Err(reason) = step {
                return Some(reason);
            }
        }
    }

    /// Tells every caller that its request may or may not have been carried out.
    pub(super) fn fail_pending(&mut self, reason: &str) {
        for (_, pending) in self.pending.drain() {
            if let Pending::Call { method, done, .. } = pending {
                // Fails when the caller is gone, which is fine.
                let _ = done.send(Err(Error::OutcomeUnknown { method, reason: reason.to_owned() }));
            }
        }
    }

    /// Requests again what earlier sessions had.
    fn resume(&mut self, state: &mut State) -> Result<(), String> {
        self.server.check(&self.options, &mut state.newest)?;
        let locks: Vec<_> =
            state.locks.iter().map(|(name, lock)| (lock.id, name.clone(), lock.steal)).collect();
        for (id, name, steal) in locks {
            self.request_lock(id, name, steal)?;
        }
        let monitors: Vec<u64> = state.monitors.keys().copied().collect();
        for id in monitors {
            self.request_monitor(id, self.protocol, state)?;
        }
        self.unsettled = self.pending.len();
        Ok(())
    }

    fn send(&mut self, method: &str, params: &impl Serialize, pending: Pending) -> Result<(), String> {
        self.next_id += 1;
        let text = rpc::request(self.next_id, method, params)
            .map_err(|error| format!("cannot write {method}: {error}"))?;
        self.connection.send(&text);
        self.pending.insert(self.next_id, pending);
        Ok(())
    }

    fn command(&mut self, command: Command, state: &mut State) -> Result<(), String> {
        match command {
            // The caller may have given up while the command was queued; then it counts on nothing being sent.
            Command::Call(request) if request.done.is_closed() => Ok(()),
            Command::Call(request) => {
                let pending = Pending::Call {
                    ticket: request.ticket,
                    method: request.method.clone(),
                    done: request.done,
                };
                self.send(&request.method, &request.params, pending)
            }
            Command::Abandon(ticket) => self.abandon(ticket),
            Command::Monitor { core, done } => {
                let id = core.id;
                state.add_monitor(core, done);
                self.request_monitor(id, self.protocol, state)
            }
            Command::CancelMonitor(id) => {
                if state.monitors.remove(&id).is_some() {
                    self.send("monitor_cancel", &json!([id]), Pending::Ignored)?;
                }
                Ok(())
            }
            Command::Lock { id, name, steal, owned, done } => {
                if state.add_lock(id, name.clone(), steal, owned, done) {
                    self.request_lock(id, name, steal)?;
                }
                Ok(())
            }
            Command::Unlock { id, name } => {
                if state.remove_lock(id, &name) {
                    self.send("unlock", &json!([name]), Pending::Ignored)?;
                }
                Ok(())
            }
        }
    }

    /// Asks the server to drop a request whose caller is gone. A reply that still comes is ignored.
    fn abandon(&mut self, ticket: u64) -> Result<(), String> {
        let request = self
            .pending
            .iter()
            .find(|(_, pending)| matches!(pending, Pending::Call { ticket: of, .. } if *of == ticket));
        if let Some((id, _)) = request {
            let text = rpc::notification("cancel", &json!([id])).map_err(|error| error.to_string())?;
            self.connection.send(&text);
        }
        Ok(())
    }

    fn request_lock(&mut self, id: u64, name: String, steal: bool) -> Result<(), String> {
        self.send(if steal { "steal" } else { "lock" }, &json!([name]), Pending::Lock { id, name })
    }

    fn request_monitor(&mut self, id: u64, protocol: MonitorProtocol, state: &State) -> Result<(), String> {
        let Some(monitored) = state.monitors.get(&id) else { return Ok(()) };
        let requests = monitored.core.requests(&self.schema, protocol);
        let database = &self.options.database;
        let (method, params) = match protocol {
            MonitorProtocol::Monitor => ("monitor", json!([database, id, requests])),
            MonitorProtocol::MonitorCond => ("monitor_cond", json!([database, id, requests])),
            MonitorProtocol::MonitorCondSince => {
                let since = monitored.core.last_transaction().unwrap_or_else(|| NO_TRANSACTION.to_owned());
                ("monitor_cond_since", json!([database, id, requests, since]))
            }
        };
        self.send(method, &params, Pending::Monitor { id, protocol })
    }

    fn message(&mut self, bytes: &Bytes, state: &mut State) -> Result<(), String> {
        let text = std::str::from_utf8(bytes).map_err(|error| format!("message is not UTF-8: {error}"))?;
        match Message::parse(text)? {
            Message::Reply { id, outcome } => self.reply(id, outcome, state),
            Message::Request { id, method, params } => answer(&mut self.connection, id, &method, params),
            Message::Notification { method, params } => self.notification(&method, params, state),
            Message::Stray => {
                tracing::debug!(database = self.options.database, "reply without a usable id");
                Ok(())
            }
        }
    }
}
