//! A monitor of the northbound database that misses no transaction: when each pod's port came and went, and whether a
//! pod that is to be closed was ever open.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ovsdb_client::nb::{Acl, LogicalSwitchPort, PortGroup};
use ovsdb_client::{
    Change, ChangeKind, Client, Endpoint, Options, Replica, Row as _, RowChange, Snapshot, Status,
};
use tokio::task::JoinHandle;

use super::contents::{self, Contents};
use super::order::{Order, Row};
use super::world::World;

/// What was seen so far.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) order: Order,
    /// When a pod's port first came, by its name.
    pub(super) came: HashMap<String, Instant>,
    /// When it went.
    pub(super) went: HashMap<String, Instant>,
    /// When the last change came.
    last: Option<Instant>,
    /// Transactions were missed: nothing is proven.
    missed: bool,
}

/// The monitor.
#[derive(Debug)]
pub(super) struct Watch {
    client: Client,
    replica: Replica,
    seen: Arc<Mutex<Seen>>,
    task: JoinHandle<()>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Watch {
    /// Connects to the database's socket. The database must not change until this returns. Pods of `world` must be closed whenever they
    /// exist.
    pub(super) async fn open(socket: &Path, world: &World) -> Result<Self> {
        let client = Client::new(Options {
            endpoints: Endpoint::parse_list(&format!("unix:{}", socket.display()))?,
            database: ovsdb_client::nb::DATABASE.to_owned(),
            // A busy server is no reason to reconnect.
            probe_interval: Duration::ZERO,
            ..Options::default()
        });
        client.connected(Duration::from_secs(30)).await.context("northbound database")?;
        let replica =
            client.monitor(contents::monitored()).await.context("monitor of the northbound database")?;
        let mut changes = replica.changes();
        let mut seen = Seen::default();
        for (port, pod) in &world.pods {
            seen.order.must_close(port.clone(), world.closing(pod));
        }
        seen.order.transaction(everything(&replica.read()));
        let seen = Arc::new(Mutex::new(seen));
        let shared = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            while let Some(change) = changes.next().await {
                let mut seen = lock(&shared);
                match change {
                    Change::Rows(rows) => seen.take(&rows),
                    Change::Resync => seen.missed = true,
                }
            }
        });
        Ok(Self { client, replica, seen, task })
    }

    /// What was seen; hold it for a moment only.
    pub(super) fn seen(&self) -> MutexGuard<'_, Seen> {
        lock(&self.seen)
    }

    /// How many pods have their port.
    pub(super) fn ports(&self) -> usize {
        let snapshot = self.replica.read();
        snapshot.table::<LogicalSwitchPort>().iter().filter(|port| contents::is_pod(port)).count()
    }

    /// What the database holds now.
    pub(super) fn contents(&self) -> Contents {
        Contents::read(&self.replica.read())
    }

    /// When the last change came.
    pub(super) fn last(&self) -> Option<Instant> {
        self.seen().last
    }

    /// Fails if a pod that must be closed was open, or if that is unknown because an update was missed.
    pub(super) fn never_open(&self) -> Result<String> {
        let status = self.client.status().borrow().clone();
        ensure!(
            matches!(status, Status::Connected { session: 1, .. }),
            "the test's own connection to the database was lost ({status:?})"
        );
        let seen = self.seen();
        ensure!(!seen.missed, "the test was too slow to see every transaction");
        let open = seen.order.open();
        if let Some(first) = open.first() {
            bail!("{} times: {first}", open.len());
        }
        Ok(format!("{} transactions", seen.order.transactions()))
    }
}

impl Seen {
    fn take(&mut self, rows: &[RowChange]) {
        let now = Instant::now();
        self.last = Some(now);
        for row in rows.iter().filter(|row| row.table == LogicalSwitchPort::TABLE) {
            match (row.kind, row.old::<LogicalSwitchPort>(), row.new_row::<LogicalSwitchPort>()) {
                (ChangeKind::Inserted, _, Some(new)) => {
                    self.came.entry(new.name.clone()).or_insert(now);
                }
                (ChangeKind::Deleted, Some(old), _) => {
                    self.went.insert(old.name.clone(), now);
                }
                _ => {}
            }
        }
        self.order.transaction(rows.iter().filter_map(changed).collect());
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

fn everything(snapshot: &Snapshot<'_>) -> Vec<Row> {
    let ports = snapshot.table::<LogicalSwitchPort>().iter().filter_map(|row| port(row));
    let groups = snapshot.table::<PortGroup>().iter().map(|row| group(row));
    let rules = snapshot.table::<Acl>().iter().map(|row| rule(row));
    ports.chain(groups).chain(rules).collect()
}

fn changed(row: &RowChange) -> Option<Row> {
    let known = [LogicalSwitchPort::TABLE, PortGroup::TABLE, Acl::TABLE];
    if row.kind == ChangeKind::Deleted {
        return known.contains(&row.table).then_some(Row::Gone(row.uuid));
    }
    None.or_else(|| port(row.new_row()?))
        .or_else(|| Some(group(row.new_row()?)))
        .or_else(|| Some(rule(row.new_row()?)))
}

fn port(row: &LogicalSwitchPort) -> Option<Row> {
    contents::is_pod(row).then(|| Row::Port { uuid: row.uuid, name: row.name.clone() })
}

fn group(row: &PortGroup) -> Row {
    Row::Group {
        uuid: row.uuid,
        name: row.name.clone(),
        ports: (&row.ports).into(),
        rules: (&row.acls).into(),
    }
}

fn rule(row: &Acl) -> Row {
    Row::Rule { uuid: row.uuid, drops: row.action == "drop" }
}
