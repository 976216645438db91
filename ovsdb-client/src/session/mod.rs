//! The session task: it owns the connection, goes from endpoint to endpoint, and outlives every connection.
//!
//! What must survive a connection (monitors, requested locks, the newest cluster index seen) is in [`State`]; what
//! belongs to one connection (requests in flight) in [`live::Live`].

mod handshake;
mod live;
mod server;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use uuid::Uuid;

use crate::command::Command;
use crate::options::{Options, Status};
use crate::replica::Core;
use crate::{Endpoint, Error, Schema};
use live::Live;

/// A replica and who waits for its first contents.
struct Monitored {
    core: Arc<Core>,
    done: Option<oneshot::Sender<Result<(), Error>>>,
}

/// A requested lock and who waits for the first answer.
struct Locked {
    id: u64,
    steal: bool,
    owned: watch::Sender<bool>,
    done: Option<oneshot::Sender<Result<(), Error>>>,
}

/// What outlives a connection.
#[derive(Default)]
struct State {
    monitors: HashMap<u64, Monitored>,
    locks: BTreeMap<String, Locked>,
    /// Newest Raft log index seen, by cluster.
    newest: HashMap<Uuid, i64>,
}

impl State {
    /// Handles a command while there is no connection.
    fn offline(&mut self, command: Command, options: &Options, reason: &str) {
        match command {
            Command::Call(request) => {
                let endpoints = Endpoint::format_list(&options.endpoints);
                // Fails when the caller is gone, which is fine.
                let _ = request.done.send(Err(Error::NotConnected { endpoints, reason: reason.to_owned() }));
            }
            Command::Abandon(_) => {}
            Command::Monitor { core, done } => self.add_monitor(core, done),
            Command::CancelMonitor(id) => drop(self.monitors.remove(&id)),
            Command::Lock { id, name, steal, owned, done } => {
                self.add_lock(id, name, steal, owned, done);
            }
            Command::Unlock { id, name } => {
                self.remove_lock(id, &name);
            }
        }
    }

    fn add_monitor(&mut self, core: Arc<Core>, done: oneshot::Sender<Result<(), Error>>) {
        self.monitors.insert(core.id, Monitored { core, done: Some(done) });
    }

    /// Registers a lock; false when it is taken by another handle of this client.
    fn add_lock(
        &mut self,
        id: u64,
        name: String,
        steal: bool,
        owned: watch::Sender<bool>,
        done: oneshot::Sender<Result<(), Error>>,
    ) -> bool {
        if self.locks.contains_key(&name) {
            let _ = done.send(Err(Error::LockInUse(name)));
            return false;
        }
        self.locks.insert(name, Locked { id, steal, owned, done: Some(done) });
        true
    }

    /// Forgets a lock; false when the handle was not the one that has it.
    fn remove_lock(&mut self, id: u64, name: &str) -> bool {
        let ours = self.locks.get(name).is_some_and(|lock| lock.id == id);
        if ours {
            self.locks.remove(name);
        }
        ours
    }

    /// After the end of a connection: nothing is current, nothing is owned.
    fn disconnected(&self) {
        for monitor in self.monitors.values() {
            monitor.core.set_synced(false);
        }
        for lock in self.locks.values() {
            lock.owned.send_if_modified(std::mem::take);
        }
    }
}

/// Why there is no session: the last failure of every endpoint tried since there was one.
struct Failures(Vec<(Endpoint, String)>);

impl Failures {
    fn add(&mut self, endpoint: &Endpoint, reason: String) {
        self.0.retain(|(of, _)| of != endpoint);
        self.0.push((endpoint.clone(), reason));
    }

    fn text(&self) -> String {
        if self.0.is_empty() {
            return "no attempt has finished yet".to_owned();
        }
        self.0.iter().map(|(endpoint, reason)| format!("{endpoint}: {reason}")).collect::<Vec<_>>().join("; ")
    }
}

/// Runs until every handle is gone.
pub(crate) async fn run(
    options: Arc<Options>,
    mut queue: mpsc::UnboundedReceiver<Command>,
    status: watch::Sender<Status>,
    schema: watch::Sender<Option<Arc<Schema>>>,
) {
    let mut state = State::default();
    let mut sessions = 0;
    // Rounds over all endpoints without a session that lasted; decides the wait.
    let mut rounds: u32 = 0;
    let mut tried = 0;
    let mut failures = Failures(Vec::new());
    let mut warned = String::new();
    let mut endpoints = options.endpoints.iter().cycle();
    loop {
        let Some(endpoint) = endpoints.next() else {
            let reason = "the endpoint list is empty";
            status.send_replace(Status::Connecting { last_error: Some(reason.to_owned()) });
            while let Some(command) = queue.recv().await {
                state.offline(command, &options, reason);
            }
            return;
        };
        let attempt = attempt(&options, endpoint);
        let mut pause = false;
        match offline(&mut state, &options, &failures.text(), &mut queue, attempt).await {
            None => return,
            Some(Err(reason)) => {
                tracing::debug!(database = options.database, %endpoint, reason, "endpoint passed over");
                failures.add(endpoint, reason);
                tried += 1;
            }
            Some(Ok(mut live)) => {
                sessions += 1;
                let connected = Status::Connected { endpoint: endpoint.clone(), session: sessions };
                let started = Instant::now();
                let end = live.serve(&mut state, &mut queue, &status, connected, &schema).await;
                state.disconnected();
                schema.send_replace(None);
                let Some(reason) = end else { return };
                live.fail_pending(&reason);
                if live.was_ready() {
                    tracing::warn!(database = options.database, %endpoint, reason, "OVSDB session ended");
                    failures = Failures(Vec::new());
                    tried = 0;
                    // A server that keeps ending sessions at once must not be hammered.
                    pause = started.elapsed() < Duration::from_secs(1);
                    rounds = if pause { rounds } else { 0 };
                } else {
                    tried += 1;
                }
                failures.add(endpoint, reason);
            }
        }
        let reason = failures.text();
        status.send_replace(Status::Connecting { last_error: Some(reason.clone()) });
        if pause || tried >= options.endpoints.len() {
            if !pause && reason != warned {
                tracing::warn!(database = options.database, reason, "no usable OVSDB server; retrying");
                warned.clone_from(&reason);
            }
            rounds = rounds.saturating_add(1);
            tried = 0;
            let wait = tokio::time::sleep(options.backoff.wait(rounds));
            if offline(&mut state, &options, &reason, &mut queue, wait).await.is_none() {
                return;
            }
        }
    }
}

/// Connects and shakes hands, within the connect timeout.
async fn attempt(options: &Arc<Options>, endpoint: &Endpoint) -> Result<Live, String> {
    let limit = options.connect_timeout;
    match tokio::time::timeout(limit, handshake::open(options, endpoint)).await {
        Ok(outcome) => outcome,
        Err(_) => Err(format!("no session within {limit:?}")),
    }
}

/// Waits for something while handling commands; `None` when every handle is gone.
async fn offline<F: Future>(
    state: &mut State,
    options: &Options,
    reason: &str,
    queue: &mut mpsc::UnboundedReceiver<Command>,
    work: F,
) -> Option<F::Output> {
    tokio::pin!(work);
    loop {
        tokio::select! {
            output = &mut work => return Some(output),
            command = queue.recv() => state.offline(command?, options, reason),
        }
    }
}
