//! The loop that holds everything together: what the watches report goes into the [state](crate::state), units that
//! became dirty are planned, the difference to the database is sent. While one transaction is under way, what arrives is
//! collected for the next one, so that a single pod costs one round trip and a thousand pods few transactions.

mod initial_sync;
mod leadership;
mod schema;
mod work;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use ovsdb_client::{Change, ChangeStream, Client, Error, Lock, OpResult, Replica, Schema};
use tokio::sync::{mpsc, watch};

pub use initial_sync::Input;
pub use leadership::Leadership;
pub use schema::features;

use crate::config::Config;
use crate::metrics::{ErrorKind, Metrics};
use crate::reconcile::{Desired, Foreign, ReplicaView, monitor_spec, repair};
use crate::state::{Annotated, ClaimReport, Effects, NetworkReport, Notice, Patch, State};
use initial_sync::Seeding;
use work::{Compared, Refusal, Work};

/// Name of the database lock that fences writers.
pub const LOCK: &str = "slipstream_controller";
/// First wait after a failed transaction; doubled up to [`MAX_BACKOFF`].
const MIN_BACKOFF: Duration = Duration::from_millis(100);
/// Longest wait after a failed transaction.
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// After this long, deferred repairs are examined again.
const RETRY: Duration = Duration::from_secs(30);
/// Default interval at which everything is verified.
pub const VERIFY: Duration = Duration::from_secs(300);
/// If this many wanted rows are removed at once, everything is compared.
const MANY_LOST: usize = 1_000;
/// Inputs applied before the next transaction is built, so that a flood of events does not hold back the first ones.
const INPUTS_AT_ONCE: usize = 512;

/// Channels to the tasks that work for the engine.
#[derive(Debug, Clone)]
pub struct Outlets {
    /// Annotations to write. All channels are unbounded: the engine must never wait, and each receiver takes messages
    /// at once and has a bound of its own.
    pub patches: mpsc::UnboundedSender<Patch>,
    /// UIDs of objects that are gone, whose annotations need not be written any more.
    pub forgotten: mpsc::UnboundedSender<String>,
    /// Notices to be published.
    pub notices: mpsc::UnboundedSender<Notice>,
    /// What is to be written into the objects of virtual networks.
    pub networks: mpsc::UnboundedSender<NetworkReport>,
    /// What is to be written into the objects of IPAMClaims.
    pub claims: mpsc::UnboundedSender<ClaimReport>,
}

/// Why the engine is not ready; `None` if it is.
pub type Reason = Option<String>;

type InFlight = BoxFuture<'static, Result<Vec<OpResult>, Error>>;

/// The engine.
pub struct Engine {
    state: State,
    desired: Desired,
    client: Client,
    replica: Replica,
    changes: ChangeStream,
    schema: Arc<Schema>,
    leadership: Leadership,
    /// Requested when the leadership is held.
    lock: Option<Lock>,
    metrics: Metrics,
    outlets: Outlets,
    seeding: Option<Seeding>,
    work: Work,
    backoff: Duration,
    /// No transaction is sent before this time.
    not_before: Option<tokio::time::Instant>,
    /// The interval at which everything is verified.
    verify: Duration,
    reason: watch::Sender<Reason>,
}

/// Result of the attempt to start a transaction.
enum Started {
    InFlight(InFlight),
    /// There is more to compare; other waiting work comes first.
    More,
    Nothing,
}

impl Engine {
    /// Connects the parts. The client must be connected, as the server's schema decides what is planned.
    ///
    /// # Errors
    /// There is no session with the database, or it refuses the monitor or the lock.
    pub async fn new(
        client: Client,
        mut config: Config,
        metrics: Metrics,
        outlets: Outlets,
        leadership: Leadership,
        reason: watch::Sender<Reason>,
    ) -> Result<Self, Error> {
        let schema = client.schema().await?;
        config.features = features(&schema, &metrics);
        let replica = client.monitor(monitor_spec()).await?;
        let changes = replica.changes();
        let lock = match leadership.is_held() {
            true => Some(leadership.clone().lock(client.clone()).await?),
            false => None,
        };
        Ok(Self {
            state: State::new(config),
            desired: Desired::default(),
            client,
            replica,
            changes,
            schema,
            leadership,
            lock,
            metrics,
            outlets,
            seeding: Some(Seeding::default()),
            work: Work::default(),
            backoff: MIN_BACKOFF,
            not_before: None,
            verify: VERIFY,
            reason,
        })
    }

    /// Sets the interval of verifications.
    #[must_use]
    pub fn verify_every(self, verify: Duration) -> Self {
        Self { verify, ..self }
    }

    /// The state, for tests and status.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Rows in the database of features that the controller does not have.
    pub fn foreign(&self) -> Foreign {
        Foreign::find(&self.replica.read())
    }

    /// Whether every kind has been listed, everything found has been compared, and leftovers are removed.
    pub fn is_settled(&self) -> bool {
        self.seeding.is_none() && self.work.is_empty()
    }

    /// Takes a report of a watch.
    pub fn apply(&mut self, input: Input) {
        let seen = Instant::now();
        self.state.tick(seen);
        if let Some(seeding) = &mut self.seeding {
            seeding.take(input);
            return;
        }
        let effects = initial_sync::apply(&mut self.state, input);
        self.take(effects, seen);
    }

    /// Moves all objects into the state, once all are known and this process may write to the database.
    fn seed(&mut self) {
        let Some(seeding) = self.seeding.take_if(|seeding| seeding.is_complete()) else { return };
        let seen = Instant::now();
        self.state.tick(seen);
        let snapshot = self.replica.read();
        self.state.found_ports(initial_sync::found_ports(&snapshot));
        self.state.found_attachments(initial_sync::found_attachments(&snapshot));
        self.state.found_nodes(initial_sync::found_nodes(&snapshot, &self.state.config));
        drop(snapshot);
        for input in seeding.into_inputs() {
            let effects = initial_sync::apply(&mut self.state, input);
            self.take(effects, seen);
        }
        let units = self.state.units().len();
        tracing::info!(units, "initial lists complete; full comparison started");
        self.work.start_full(&self.state, &mut self.desired, &self.metrics);
    }

    fn take(&mut self, effects: Effects, seen: Instant) {
        for notice in effects.notices {
            tracing::error!(kind = ?notice.kind, "{}", notice.message);
            self.metrics.error(notice.kind.into());
            // Fails only when the process is about to end.
            let _ = self.outlets.notices.send(notice);
        }
        for patch in effects.patches {
            let _ = self.outlets.patches.send(patch);
        }
        for uid in effects.forgotten {
            let _ = self.outlets.forgotten.send(uid);
        }
        for report in self.state.network_reports() {
            let _ = self.outlets.networks.send(report);
        }
        for report in self.state.claim_reports() {
            let _ = self.outlets.claims.send(report);
        }
        self.work.add(effects.dirty, effects.release, seen);
    }

    /// Handles a change of the database.
    fn changed(&mut self, change: Change) {
        match change {
            // The comparison at the start covers them too.
            Change::Rows(_) if self.seeding.is_some() => {}
            Change::Rows(rows) => {
                let view = ReplicaView::new(self.replica.read(), &self.schema);
                // A database that was emptied is not repaired row by row.
                if repair::lost(&self.desired, &rows).take(MANY_LOST).count() == MANY_LOST {
                    drop(view);
                    if !self.work.is_fresh() {
                        self.start_full("much of the database was removed");
                    }
                    return;
                }
                for row in rows.iter() {
                    for (key, touched) in repair::touched_by(&self.desired, &view, row) {
                        self.work.suspects().add(key, touched);
                    }
                }
            }
            Change::Resync => self.start_full("changes of the database were missed"),
        }
    }

    fn start_full(&mut self, why: &str) {
        if self.seeding.is_none() {
            tracing::info!(why, "comparing everything with the database");
            self.work.start_full(&self.state, &mut self.desired, &self.metrics);
        }
    }

    /// Why nothing can be sent now.
    fn obstacle(&self) -> Reason {
        if !self.replica.is_synced() {
            return Some("no connection to the northbound database".to_owned());
        }
        if !self.leadership.is_held() {
            return Some("another controller leads".to_owned());
        }
        if !self.lock.as_ref().is_some_and(Lock::is_owned) {
            return Some(format!("the northbound database's lock `{LOCK}` belongs to another controller"));
        }
        None
    }

    fn report(&self) {
        let leads = self.leadership.is_held();
        let obstacle = match leads || !self.replica.is_synced() {
            true => self.obstacle(),
            // A standby that knows everything is as ready as it can be.
            false => None,
        };
        let reason = obstacle.or_else(|| match &self.seeding {
            Some(seeding) if !seeding.is_complete() => {
                Some(format!("waiting for the first list of {}", seeding.missing()))
            }
            Some(_) if leads => Some("starting".to_owned()),
            Some(_) => None,
            None if self.work.is_full() => Some("comparing everything with the database".to_owned()),
            None => None,
        });
        self.reason.send_if_modified(|old| {
            let changed = *old != reason;
            if changed && let Some(reason) = &reason {
                tracing::info!(reason, "not ready");
            }
            *old = reason;
            changed
        });
        self.metrics.leader.set(i64::from(leads));
        let (with, waiting) = self.state.address_counts();
        self.metrics.pods.set(i64::try_from(with).unwrap_or(i64::MAX));
        self.metrics.pods_waiting.set(i64::try_from(waiting).unwrap_or(i64::MAX));
    }

    /// Sends the next transaction, if there is something to do and no obstacle. Work that needs no transaction is done here.
    fn start(&mut self) -> Started {
        if self.not_before.is_some_and(|at| at > tokio::time::Instant::now()) || self.obstacle().is_some() {
            return Started::Nothing;
        }
        self.seed();
        while self.seeding.is_none() && self.work.has_next() {
            self.work.plan(&self.state, &mut self.desired, &self.metrics);
            let view = ReplicaView::new(self.replica.read(), &self.schema);
            let built = self.work.next(&self.state, &mut self.desired, &view, &self.metrics);
            drop(view);
            match built {
                Some(mut transaction) => {
                    transaction.assert_lock(LOCK);
                    let client = self.client.clone();
                    let seconds = self.metrics.transaction_seconds.clone();
                    return Started::InFlight(Box::pin(async move {
                        let sent = Instant::now();
                        let result = client.transact(transaction).await;
                        Metrics::observe(&seconds, sent.elapsed());
                        result
                    }));
                }
                None => {
                    let in_full = self.work.is_in_full();
                    self.done();
                    if in_full {
                        return Started::More;
                    }
                }
            }
        }
        Started::Nothing
    }

    /// The current portion of work is in the database.
    fn done(&mut self) {
        let now = || Compared::now(&self.state, &self.desired, self.replica.read().version());
        let done = self.work.done(&self.desired, now, &self.metrics);
        let mut free = done.released;
        if done.look_at_held && self.work.has_held() {
            let there = initial_sync::port_uids(&self.replica.read());
            free.extend(self.work.free_held(|uid| there.contains(uid)));
        }
        if !free.is_empty() {
            self.state.tick(Instant::now());
            let effects = self.state.released(&free);
            self.take(effects, Instant::now());
        }
    }

    fn finished(&mut self, result: Result<Vec<OpResult>, Error>) {
        match result {
            Ok(results) => {
                self.backoff = MIN_BACKOFF;
                self.not_before = None;
                self.metrics.transactions.inc();
                self.metrics
                    .operations
                    .inc_by(u64::try_from(results.len().saturating_sub(1)).unwrap_or(u64::MAX));
                self.done();
            }
            Err(error) => self.failed(&error),
        }
    }

    fn failed(&mut self, error: &Error) {
        let not_owner = matches!(error, Error::Operation { error, .. } if error == "not owner");
        let refusal = matches!(error, Error::Operation { .. } | Error::Commit { .. });
        // A server that cannot write to its disk refuses everything; that says nothing about the rows sent.
        if refusal && !not_owner && !error.is_servers_disk() {
            self.metrics.error(ErrorKind::TransactionRefused);
            match self.work.was_refused(&self.desired, Instant::now()) {
                Refusal::Alone(unit) => {
                    let what =
                        unit.as_ref().map_or_else(|| "a repair or removal".to_owned(), ToString::to_string);
                    tracing::error!(%error, what, "row rejected by the database; retrying later");
                    if let Some(unit) = unit {
                        let effects = self.state.refused(&unit, &error.to_string());
                        self.take(effects, Instant::now());
                    }
                }
                Refusal::Divided => {
                    tracing::warn!(%error, "the database refuses a transaction; sending it in halves")
                }
            }
            return;
        }
        let kind = if error.outcome_unknown() {
            ErrorKind::TransactionUnknown
        } else {
            ErrorKind::TransactionNotSent
        };
        self.metrics.error(kind);
        tracing::warn!(%error, "transaction failed");
        self.work.abandon();
        self.start_full("a transaction failed");
        self.not_before = Some(tokio::time::Instant::now() + self.backoff);
        self.backoff = (self.backoff * 2).min(MAX_BACKOFF);
    }

    /// Runs until the inputs end, or until there is no database session any more.
    ///
    /// # Errors
    /// The lock of the database cannot be requested.
    pub async fn run(
        mut self,
        mut inputs: mpsc::Receiver<Input>,
        mut annotated: mpsc::UnboundedReceiver<Annotated>,
    ) -> Result<(), Error> {
        let mut in_flight: Option<InFlight> = None;
        let mut synced = self.replica.synced();
        let mut leadership = self.leadership.clone();
        let mut locking = Box::pin(leadership.clone().lock(self.client.clone()));
        let mut owned = self.lock.as_ref().map(|lock| lock.owned.clone());
        let mut deferred = tokio::time::interval(RETRY);
        let mut verify = tokio::time::interval_at(tokio::time::Instant::now() + self.verify, self.verify);
        verify.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let mut more = false;
            if in_flight.is_none() {
                match self.start() {
                    Started::InFlight(transaction) => in_flight = Some(transaction),
                    Started::More => more = true,
                    Started::Nothing => {}
                }
            }
            self.report();
            let retry_at = self.work.retry_at().map(tokio::time::Instant::from_std);
            let wake =
                [self.not_before.filter(|_| in_flight.is_none()), retry_at].into_iter().flatten().min();
            tokio::select! {
                biased;
                result = async { in_flight.as_mut().expect("checked by the condition").await }, if in_flight.is_some() => {
                    in_flight = None;
                    self.finished(result);
                }
                Some(change) = self.changes.next() => self.changed(change),
                Some(annotated) = annotated.recv() => {
                    let effects = self.state.annotated(&annotated);
                    self.take(effects, Instant::now());
                }
                input = inputs.recv() => {
                    let Some(input) = input else { return Ok(()) };
                    self.apply(input);
                    for _ in 0..INPUTS_AT_ONCE {
                        match inputs.try_recv() {
                            Ok(input) => self.apply(input),
                            Err(_) => break,
                        }
                    }
                }
                // A lost sender means that the session is gone, which `obstacle` shows as well.
                Ok(()) = synced.changed() => {}
                Ok(()) = async { owned.as_mut().expect("checked by the condition").changed().await }, if owned.is_some() => {
                    // Another client may have written meanwhile.
                    if owned.as_mut().is_some_and(|owned| *owned.borrow_and_update()) {
                        self.start_full("the database's lock is ours again");
                    }
                }
                lock = &mut locking, if self.lock.is_none() => {
                    let lock = lock?;
                    owned = Some(lock.owned.clone());
                    self.lock = Some(lock);
                }
                () = leadership.changed() => {}
                () = async { tokio::time::sleep_until(wake.expect("checked by the condition")).await }, if wake.is_some() => {
                    if self.not_before.is_some_and(|at| at <= tokio::time::Instant::now()) {
                        self.not_before = None;
                    }
                    self.work.retry(Instant::now(), &self.desired);
                }
                _ = deferred.tick() => self.work.suspects().add_deferred(&self.desired),
                _ = verify.tick() => self.start_verification(),
                () = std::future::ready(()), if more => {}
            }
        }
    }

    /// Starts a verification, unless there is other work.
    fn start_verification(&mut self) {
        if self.seeding.is_none() && !self.work.is_busy() && self.obstacle().is_none() {
            let compared = Compared::now(&self.state, &self.desired, self.replica.read().version());
            self.work.start_verification(&self.state, &self.desired, compared);
        }
    }

    /// Verifies everything, for tests. Returns the number of operations that were missing.
    ///
    /// # Errors
    /// Fails as [`Self::settle`].
    pub async fn verify(&mut self) -> Result<u64, Error> {
        let (before, _) = self.metrics.found_by_verification();
        self.start_verification();
        self.settle().await?;
        Ok(self.metrics.found_by_verification().0 - before)
    }

    /// Drops the pending changes that the database has reported, for tests of what is found without them.
    pub fn forget_changes(&mut self) {
        self.changes = self.replica.changes();
    }

    /// Works until nothing is left to do, for tests. Applies no input and waits for none.
    ///
    /// # Errors
    /// A transaction failed.
    pub async fn settle(&mut self) -> Result<(), Error> {
        loop {
            while let Ok(Some(change)) = tokio::time::timeout(Duration::ZERO, self.changes.next()).await {
                self.changed(change);
            }
            let result = match self.start() {
                Started::InFlight(in_flight) => in_flight.await,
                Started::More => continue,
                Started::Nothing => break,
            };
            let error = result.as_ref().err().cloned();
            self.finished(result);
            if let Some(error) = error {
                return Err(error);
            }
        }
        self.report();
        Ok(())
    }
}
