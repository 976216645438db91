//! When a pod's port row appeared in NB, seen through a monitor of our own.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ovsdb_client::model::nb;
use ovsdb_client::{Change, ChangeKind, ChangeStream, Client, Endpoint, MonitorSpec, Options, Replica, Row};

/// A monitor of the switch ports.
pub(crate) struct PortRows {
    replica: Replica,
    changes: ChangeStream,
    seen: HashMap<String, Instant>,
    _client: Client,
}

impl PortRows {
    /// Connects to NB, such as `tcp:172.18.0.10:6641`.
    pub(crate) async fn open(nb: &str) -> Result<Self> {
        let client = Client::new(Options {
            endpoints: Endpoint::parse_list(nb)?,
            database: "OVN_Northbound".to_owned(),
            ..Options::default()
        });
        client.connected(Duration::from_secs(10)).await?;
        let replica = client.monitor(MonitorSpec::new().table::<nb::LogicalSwitchPort>(&["name"])).await?;
        let changes = replica.changes();
        Ok(Self { replica, changes, seen: HashMap::new(), _client: client })
    }

    /// Waits until all `names` have rows; answers with the moment each was first seen.
    pub(crate) async fn wait(
        &mut self,
        names: &HashSet<String>,
        limit: Duration,
    ) -> Result<HashMap<String, Instant>> {
        let end = Instant::now() + limit;
        loop {
            let missing = names.iter().filter(|n| !self.seen.contains_key(*n)).count();
            if missing == 0 {
                return Ok(names.iter().map(|n| (n.clone(), self.seen[n])).collect());
            }
            let left = end.saturating_duration_since(Instant::now());
            let Ok(change) = tokio::time::timeout(left, self.changes.next()).await else {
                bail!("{missing} of {} port rows did not appear within {limit:?}", names.len());
            };
            self.take(change.context("the monitor of NB ended")?);
        }
    }

    fn take(&mut self, change: Change) {
        let now = Instant::now();
        let guard = self.replica.read();
        let table = guard.table::<nb::LogicalSwitchPort>();
        match change {
            Change::Rows(rows) => {
                for row in rows {
                    if row.table != nb::LogicalSwitchPort::TABLE || row.kind != ChangeKind::Inserted {
                        continue;
                    }
                    if let Some(port) = table.get(&row.uuid) {
                        self.seen.entry(port.name.clone()).or_insert(now);
                    }
                }
            }
            Change::Resync => {
                for port in table.iter() {
                    self.seen.entry(port.name.clone()).or_insert(now);
                }
            }
        }
    }
}
