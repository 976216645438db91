//! What fuzzing needs of the inside: framing, messages and a replica, without a connection.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tokio::sync::broadcast;
use uuid::Uuid;

use crate::framing::Framer;
use crate::replica::{ChangeKind, Core, Load, MonitorProtocol, MonitorSpec, RowChange, Table};
use crate::rpc::{self, Message};
use crate::{Row, nb};

/// The messages of a stream that comes in pieces, and why it cannot be read further.
pub fn cut<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Vec<u8>>, Option<String>) {
    let (mut framer, mut messages) = (Framer::default(), Vec::new());
    for piece in pieces {
        framer.space().extend_from_slice(piece);
        loop {
            match framer.next() {
                Ok(Some(message)) => messages.push(message.to_vec()),
                Ok(None) => break,
                Err(error) => return (messages, Some(error.to_string())),
            }
        }
    }
    (messages, None)
}

/// A replica of some tables that is fed with messages of a server.
#[derive(Debug)]
pub struct Follower {
    core: Core,
    changes: broadcast::Receiver<Arc<Vec<RowChange>>>,
    /// Every row that the changes so far leave.
    seen: HashSet<(&'static str, Uuid)>,
}

impl Default for Follower {
    fn default() -> Self {
        let spec = MonitorSpec::new()
            .table::<nb::LogicalSwitch>(&[])
            .index::<nb::LogicalSwitch>("name", |switch| vec![switch.name.clone()])
            .table::<nb::LogicalSwitchPort>(&[])
            .index::<nb::LogicalSwitchPort>("type", |port| vec![port.r#type.clone()])
            .table::<nb::Acl>(&[])
            .table::<nb::LoadBalancer>(&[]);
        let core = Core::new(1, spec);
        let changes = core.subscribe();
        Self { core, changes, seen: HashSet::new() }
    }
}

impl Follower {
    /// Takes one message. `Ok`: it was applied, or is none for a replica.
    pub fn take(&mut self, message: &[u8]) -> Result<(), String> {
        let text = std::str::from_utf8(message).map_err(|error| error.to_string())?;
        let result = match Message::parse(text)? {
            Message::Request { id, params, .. } => {
                rpc::reply(id, Ok(params)).map(drop).map_err(|error| error.to_string())
            }
            Message::Reply { outcome, .. } => outcome
                .map_err(|error| error.get().to_owned())
                .and_then(|result| self.apply(result, Load::Full, MonitorProtocol::MonitorCond)),
            Message::Notification { method, params } => self.notification(&method, params),
            Message::Stray => Ok(()),
        };
        // A part of a failed update may have been applied; then it was reported, too.
        self.follow();
        result
    }

    fn notification(&self, method: &str, params: &RawValue) -> Result<(), String> {
        let bad = |error: serde_json::Error| error.to_string();
        let (updates, protocol): (&RawValue, _) = match method {
            "update" | "update2" => {
                let (_, updates): (u64, _) = serde_json::from_str(params.get()).map_err(bad)?;
                let cond = method == "update2";
                (updates, if cond { MonitorProtocol::MonitorCond } else { MonitorProtocol::Monitor })
            }
            "update3" => {
                let (_, _, updates): (u64, String, _) = serde_json::from_str(params.get()).map_err(bad)?;
                (updates, MonitorProtocol::MonitorCondSince)
            }
            _ => return Ok(()),
        };
        self.apply(updates, Load::Update, protocol)
    }

    fn apply(&self, updates: &RawValue, load: Load, protocol: MonitorProtocol) -> Result<(), String> {
        self.core.apply(updates, load, protocol).map_err(|error| error.to_string())
    }

    /// Checks that the reported changes lead from the previous contents to the current ones.
    fn follow(&mut self) {
        while let Ok(changes) = self.changes.try_recv() {
            for change in changes.iter() {
                let row = (change.table, change.uuid);
                match change.kind {
                    ChangeKind::Inserted => assert!(self.seen.insert(row), "inserted twice"),
                    ChangeKind::Modified => assert!(self.seen.contains(&row), "modified before it was there"),
                    ChangeKind::Deleted => assert!(self.seen.remove(&row), "deleted before it was there"),
                }
            }
        }
    }

    /// Panics when the tables are not what the changes said, an index does not find a row, or what is there, written as
    /// a server would and loaded again, is not the same.
    pub fn check(&mut self) {
        let mut all = Map::new();
        {
            let tables = self.core.snapshot();
            let switches = tables.table::<nb::LogicalSwitch>();
            for row in switches.iter() {
                assert!(switches.by_index("name", &row.name).any(|found| found.uuid == row.uuid));
            }
            let ports = tables.table::<nb::LogicalSwitchPort>();
            for row in ports.iter() {
                assert!(ports.by_index("type", &row.r#type).any(|found| found.uuid == row.uuid));
            }
            write(switches, &mut all);
            write(ports, &mut all);
            write(tables.table::<nb::Acl>(), &mut all);
            write(tables.table::<nb::LoadBalancer>(), &mut all);
        }
        let rows = all.values().filter_map(Value::as_object).map(Map::len).sum::<usize>();
        assert_eq!(self.seen.len(), rows, "rows that were told of, and that are there");
        let text = Value::Object(all).to_string();
        let raw: &RawValue = serde_json::from_str(&text).unwrap_or(RawValue::NULL);
        assert_eq!(self.apply(raw, Load::Full, MonitorProtocol::Monitor), Ok(()), "{text}");
        assert!(self.changes.try_recv().is_err(), "the same contents are a change: {text}");
    }
}

/// A table as the reply to `monitor` has it.
fn write<R: Row>(table: &Table<R>, all: &mut Map<String, Value>) {
    let mut rows = Map::new();
    for row in table.iter() {
        let columns: Map<String, Value> = R::COLUMNS
            .iter()
            .filter_map(|column| Some(((*column).to_owned(), json!(row.get(column)?))))
            .collect();
        rows.insert(row.uuid().to_string(), json!({ "initial": columns }));
    }
    all.insert(R::TABLE.to_owned(), Value::Object(rows));
}
