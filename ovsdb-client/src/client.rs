//! The handle that programs hold: connection state, calls, monitors, locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::{mpsc, oneshot, watch};

use crate::command::{Command, Request};
use crate::lock::Lock;
use crate::monitor::Replica;
use crate::options::{Options, Status};
use crate::replica::Core;
use crate::session;
use crate::{Endpoint, Error, MonitorSpec, OpResult, Schema, Transaction};

/// A client of one database. Clones share the session; it ends when the last clone, replica and lock are gone.
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    options: Arc<Options>,
    commands: mpsc::UnboundedSender<Command>,
    status: watch::Receiver<Status>,
    schema: watch::Receiver<Option<Arc<Schema>>>,
    next_id: AtomicU64,
}

impl Client {
    /// Starts the session. Never fails: it connects and reconnects without end. Must be called within a tokio runtime.
    pub fn new(options: Options) -> Self {
        let options = Arc::new(options);
        let (commands, queue) = mpsc::unbounded_channel();
        let (status_sender, status) = watch::channel(Status::Connecting { last_error: None });
        let (schema_sender, schema) = watch::channel(None);
        tokio::spawn(session::run(Arc::clone(&options), queue, status_sender, schema_sender));
        Self { shared: Arc::new(Shared { options, commands, status, schema, next_id: AtomicU64::new(1) }) }
    }

    /// Name of the database.
    pub fn database(&self) -> &str {
        &self.shared.options.database
    }

    /// Waits until the session is up. The error names the endpoints and how each failed last.
    ///
    /// # Errors
    /// [`Error::NotConnected`] after `timeout`; [`Error::Closed`] if the client was closed.
    pub async fn connected(&self, timeout: Duration) -> Result<(), Error> {
        let mut status = self.status();
        let wait = status.wait_for(|status| matches!(status, Status::Connected { .. }));
        match tokio::time::timeout(timeout, wait).await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(_)) => return Err(Error::Closed),
            Err(_) => {}
        }
        Err(self.not_connected())
    }

    fn not_connected(&self) -> Error {
        let reason = match &*self.shared.status.borrow() {
            Status::Connecting { last_error: Some(error) } => error.clone(),
            _ => "no attempt has finished yet".to_owned(),
        };
        Error::NotConnected { endpoints: Endpoint::format_list(&self.shared.options.endpoints), reason }
    }

    /// Follows the state of the session.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.shared.status.clone()
    }

    /// The schema as the server has it now. Waits for a connection for at most the connect timeout.
    ///
    /// # Errors
    /// [`Error::NotConnected`] after the connect timeout; [`Error::Closed`] if the client was closed.
    pub async fn schema(&self) -> Result<Arc<Schema>, Error> {
        let mut schema = self.shared.schema.clone();
        let wait = schema.wait_for(Option::is_some);
        match tokio::time::timeout(self.shared.options.connect_timeout, wait).await {
            Ok(Ok(schema)) => schema.clone().ok_or(Error::Closed),
            Ok(Err(_)) => Err(Error::Closed),
            Err(_) => Err(self.not_connected()),
        }
    }

    /// Carries out a transaction, all of it or nothing.
    ///
    /// When this returns `Ok`, every replica of this client already shows the effect. Without a session it fails at once
    /// with [`Error::NotConnected`]. Dropping the future after the request was sent asks the server to cancel it (only a
    /// waiting transaction can still be cancelled).
    ///
    /// # Errors
    /// The session is missing or ended, the server did not answer in time, or an operation or the commit was refused. If the request was sent
    /// and no answer came, the transaction may have been carried out.
    pub async fn transact(&self, transaction: Transaction) -> Result<Vec<OpResult>, Error> {
        if transaction.is_empty() {
            return Ok(Vec::new());
        }
        let limit = match (self.shared.options.call_timeout, transaction.longest_wait()) {
            (Some(call), Some(wait)) => Some(call.saturating_add(wait)),
            _ => None,
        };
        let reply = self.request("transact", &transaction.params(self.database()), limit, true).await?;
        transaction.results(&reply)
    }

    /// Monitors tables. Returns when the first full contents are in; waits for a connection without limit.
    ///
    /// # Errors
    /// The server refuses the monitor, or the client was closed.
    pub async fn monitor(&self, spec: MonitorSpec) -> Result<Replica, Error> {
        let core = Arc::new(Core::new(self.shared.next_id.fetch_add(1, Ordering::Relaxed), spec));
        // Made first, so that dropping this future ends the monitor.
        let replica = Replica::new(Arc::clone(&core), self.shared.commands.clone());
        let (done, result) = oneshot::channel();
        self.command(Command::Monitor { core, done })?;
        result.await.map_err(|_gone| Error::Closed)??;
        Ok(replica)
    }

    /// Requests a lock (RFC 7047 section 4.1.8). Returns when the server has answered; [`Lock::owned`] tells whether and
    /// when it is ours. Requested again after every reconnect, released on drop.
    ///
    /// # Errors
    /// [`Error::LockInUse`] if this client has the lock already; otherwise the request failed or the client was closed.
    pub async fn lock(&self, name: &str) -> Result<Lock, Error> {
        self.request_lock(name, false).await
    }

    /// Like [`Client::lock`], but takes the lock from its owner. After a reconnect it is requested without stealing, so
    /// that a client that was cut off does not rob its successor.
    ///
    /// # Errors
    /// Fails as [`Client::lock`].
    pub async fn steal_lock(&self, name: &str) -> Result<Lock, Error> {
        self.request_lock(name, true).await
    }

    async fn request_lock(&self, name: &str, steal: bool) -> Result<Lock, Error> {
        let (done, result) = oneshot::channel();
        let (owned_sender, owned) = watch::channel(false);
        let id = self.shared.next_id.fetch_add(1, Ordering::Relaxed);
        self.command(Command::Lock { id, name: name.to_owned(), steal, owned: owned_sender, done })?;
        let lock = Lock::new(id, name.to_owned(), owned, self.shared.commands.clone());
        result.await.map_err(|_gone| Error::Closed)??;
        Ok(lock)
    }

    /// Asks the server for an echo; the time it took.
    ///
    /// # Errors
    /// Fails as [`Client::call`].
    pub async fn echo(&self) -> Result<Duration, Error> {
        let start = std::time::Instant::now();
        self.call("echo", &json!([])).await?;
        Ok(start.elapsed())
    }

    /// Names of the databases the server has.
    ///
    /// # Errors
    /// Fails as [`Client::call`], or the reply is no list of names.
    pub async fn list_dbs(&self) -> Result<Vec<String>, Error> {
        let reply = self.call("list_dbs", &json!([])).await?;
        serde_json::from_str(reply.get())
            .map_err(|error| Error::Protocol(format!("reply to list_dbs: {error}")))
    }

    /// Any method, with its result as text.
    ///
    /// # Errors
    /// The session is missing or ended, the server did not answer in time, or answers with an error.
    pub async fn call(&self, method: &str, params: &impl Serialize) -> Result<Box<RawValue>, Error> {
        self.request(method, params, self.shared.options.call_timeout, false).await
    }

    async fn request(
        &self,
        method: &str,
        params: &impl Serialize,
        limit: Option<Duration>,
        cancel: bool,
    ) -> Result<Box<RawValue>, Error> {
        let params = to_raw_value(params)
            .map_err(|error| Error::Invalid(format!("parameters of {method}: {error}")))?;
        let (done, result) = oneshot::channel();
        let ticket = self.shared.next_id.fetch_add(1, Ordering::Relaxed);
        self.command(Command::Call(Request { ticket, method: method.to_owned(), params, done }))?;
        let mut abandon = Abandon { ticket: cancel.then_some(ticket), commands: &self.shared.commands };
        let outcome = match limit {
            None => result.await,
            Some(limit) => match tokio::time::timeout(limit, result).await {
                Ok(outcome) => outcome,
                Err(_) => return Err(Error::Timeout { method: method.to_owned(), after: limit }),
            },
        };
        abandon.ticket = None;
        outcome.map_err(|_gone| Error::Closed)?
    }

    fn command(&self, command: Command) -> Result<(), Error> {
        self.shared.commands.send(command).map_err(|_gone| Error::Closed)
    }
}

/// Cancels a request whose future is dropped or has timed out.
struct Abandon<'a> {
    ticket: Option<u64>,
    commands: &'a mpsc::UnboundedSender<Command>,
}

impl Drop for Abandon<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            // A session that is gone has nothing to cancel.
            let _ = self.commands.send(Command::Abandon(ticket));
        }
    }
}
