//! Replicas under random transactions equal what the server has, whatever the monitor method, and so does a copy kept
//! from the change stream alone.

#![allow(clippy::unwrap_used, reason = "helpers of tests are test code")]

mod support;

use std::collections::HashMap;

use ovsdb_client::nb::{LogicalSwitch, LogicalSwitchPort};
use ovsdb_client::{
    Change, ChangeKind, ChangeStream, Client, Columns, Condition, Datum, MonitorProtocol, MonitorSpec,
    Mutator, Options, Replica, Row, Status, Transaction, Uuid,
};
use support::{Server, soon};

const NB: &str = "OVN_Northbound";

/// A small generator with a fixed seed: a failure can be repeated.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Row identifiers come from here too: those that the server makes up would differ from run to run.
    fn uuid(&mut self) -> Uuid {
        Uuid::from_u64_pair(self.next(), self.next())
    }

    fn below(&mut self, limit: usize) -> usize {
        let limit = u64::try_from(limit).expect("a small number");
        usize::try_from(self.next() % limit).expect("less than the limit")
    }

    fn text(&mut self) -> String {
        ["", "a", "b\"\\", "ü", "d", "e"][self.below(6)].to_owned()
    }

    fn texts(&mut self) -> Vec<String> {
        (0..self.below(4)).map(|_| self.text()).collect()
    }

    fn map(&mut self) -> Datum {
        Datum::map((0..self.below(4)).map(|_| (self.text(), self.text())).collect::<Vec<_>>())
    }

    fn port_columns(&mut self) -> Vec<(&'static str, Datum)> {
        vec![
            ("addresses", self.texts().into()),
            ("options", self.map()),
            ("up", [None, Some(true), Some(false)][self.below(3)].into()),
            ("tag_request", [None, Some(0), Some(7)][self.below(3)].into()),
            ("type", self.text().into()),
        ]
    }
}

/// One random transaction over a switch and its ports.
fn transaction(random: &mut Random, serial: u64, switches: &[Uuid], ports: &[Uuid]) -> Transaction {
    let mut txn = Transaction::new();
    let pick = |random: &mut Random, from: &[Uuid]| from.get(random.below(from.len().max(1))).copied();
    for step in 0..=random.below(3) {
        let switch = pick(random, switches);
        let port = pick(random, ports);
        match (random.below(8), switch, port) {
            (0 | 1, Some(switch), _) => {
                let mut row = random.port_columns();
                row.push(("name", format!("p{serial}-{step}").into()));
                let port = txn.insert_with_uuid(LogicalSwitchPort::TABLE, random.uuid(), row);
                txn.mutate(
                    LogicalSwitch::TABLE,
                    vec![Condition::uuid(switch)],
                    [("ports", Mutator::Insert, port.into())],
                );
            }
            (2, Some(switch), Some(port)) => {
                // A port that nothing refers to is deleted by the server.
                txn.mutate(
                    LogicalSwitch::TABLE,
                    vec![Condition::uuid(switch)],
                    [("ports", Mutator::Delete, port.into())],
                );
            }
            (3, _, Some(port)) => {
                let mut row = random.port_columns();
                let keep = random.below(row.len());
                txn.update(LogicalSwitchPort::TABLE, vec![Condition::uuid(port)], row.drain(..=keep));
            }
            (4, _, Some(port)) => {
                let changes = [
                    ("options", Mutator::Delete, Datum::from(random.texts())),
                    ("options", Mutator::Insert, random.map()),
                    ("addresses", Mutator::Insert, random.texts().into()),
                    ("addresses", Mutator::Delete, random.texts().into()),
                ];
                txn.mutate(LogicalSwitchPort::TABLE, vec![Condition::uuid(port)], changes);
            }
            (5, Some(switch), _) if switches.len() > 3 => {
                txn.delete(LogicalSwitch::TABLE, vec![Condition::uuid(switch)]);
            }
            (6, Some(switch), _) => {
                txn.update(
                    LogicalSwitch::TABLE,
                    vec![Condition::uuid(switch)],
                    [("external_ids", random.map()), ("other_config", random.map())],
                );
            }
            _ => {
                let row = [("name", random.text().into()), ("external_ids", random.map())];
                txn.insert_with_uuid(LogicalSwitch::TABLE, random.uuid(), row);
            }
        }
    }
    txn
}

fn spec() -> MonitorSpec {
    MonitorSpec::new()
        .table::<LogicalSwitch>(&[])
        .table::<LogicalSwitchPort>(&[])
        .index::<LogicalSwitchPort>("address", |port| port.addresses.iter().cloned().collect())
}

fn columns<R: Row>(row: &R) -> Columns {
    R::COLUMNS
        .iter()
        .map(|&column| (column.to_owned(), row.get(column).expect("a column of the table")))
        .collect()
}

fn contents<R: Row>(replica: &Replica) -> HashMap<Uuid, Columns> {
    replica.read().table::<R>().iter().map(|row| (row.uuid(), columns(&**row))).collect()
}

async fn dump<R: Row>(client: &Client) -> HashMap<Uuid, Columns> {
    let mut txn = Transaction::new();
    txn.select(R::TABLE, vec![], &[]);
    let mut results = soon("dump", client.transact(txn)).await.unwrap();
    let take = |mut row: Columns| {
        row.remove("_version");
        (row.remove("_uuid").and_then(|uuid| uuid.as_uuid()).expect("a row has an identifier"), row)
    };
    results.remove(0).rows.into_iter().map(take).collect()
}

/// Copies of two tables, built only from the change stream.
#[derive(Default)]
struct Shadow {
    switches: HashMap<Uuid, Columns>,
    ports: HashMap<Uuid, Columns>,
    told: usize,
}

impl Shadow {
    /// Takes changes until the copy equals the replica.
    async fn follow(&mut self, changes: &mut ChangeStream, replica: &Replica) {
        while self.switches != contents::<LogicalSwitch>(replica)
            || self.ports != contents::<LogicalSwitchPort>(replica)
        {
            let Some(Change::Rows(rows)) = soon("change", changes.next()).await else {
                panic!("the reader was not slow")
            };
            for row in rows {
                let (copy, old, new) = match row.table {
                    "Logical_Switch" => (
                        &mut self.switches,
                        row.old::<LogicalSwitch>().map(columns),
                        row.new_row::<LogicalSwitch>().map(columns),
                    ),
                    _ => (
                        &mut self.ports,
                        row.old::<LogicalSwitchPort>().map(columns),
                        row.new_row::<LogicalSwitchPort>().map(columns),
                    ),
                };
                self.told += 1;
                assert_eq!(copy.remove(&row.uuid), old, "the old row is what was there");
                assert_eq!(row.kind == ChangeKind::Deleted, new.is_none());
                copy.extend(new.map(|new| (row.uuid, new)));
            }
        }
    }
}

async fn converges(protocol: MonitorProtocol, seed: u64) {
    let server = Server::start("ovn-nb.ovsschema");
    let writer = server.client(NB).await;
    // What to change is chosen from a replica that has every change of the writer: the run depends on the seed only.
    let source = soon("monitor", writer.monitor(spec())).await.unwrap();
    let reader = Client::new(Options { monitor_protocol: protocol, ..server.options(NB) });
    let replica = soon("monitor", reader.monitor(spec())).await.unwrap();
    let mut changes = replica.changes();
    let mut shadow = Shadow::default();
    let mut random = Random(seed);
    for serial in 0..400 {
        let switches: Vec<_> = sorted(&contents::<LogicalSwitch>(&source));
        let ports: Vec<_> = sorted(&contents::<LogicalSwitchPort>(&source));
        let txn = transaction(&mut random, serial, &switches, &ports);
        soon("transact", writer.transact(txn)).await.unwrap();
        if serial % 100 == 50 {
            let mut sessions = [writer.status(), reader.status()];
            let before = sessions.each_ref().map(|status| session(&status.borrow()));
            server.appctl(&["ovsdb-server/reconnect"]);
            for (status, before) in sessions.iter_mut().zip(before) {
                soon("session", status.wait_for(|status| session(status) > before)).await.unwrap();
            }
        }
        if serial % 20 == 0 {
            let wanted = (dump::<LogicalSwitch>(&reader).await, dump::<LogicalSwitchPort>(&reader).await);
            assert_eq!(
                (contents::<LogicalSwitch>(&replica), contents::<LogicalSwitchPort>(&replica)),
                wanted,
                "after {serial}"
            );
            shadow.follow(&mut changes, &replica).await;
            check_index(&replica);
        }
    }
    assert!(shadow.told > 400, "the test changed {} rows only", shadow.told);
}

/// Number of the session, 0 while there is none.
fn session(status: &Status) -> u64 {
    match status {
        Status::Connected { session, .. } => *session,
        Status::Connecting { .. } => 0,
    }
}

fn sorted(rows: &HashMap<Uuid, Columns>) -> Vec<Uuid> {
    let mut uuids: Vec<_> = rows.keys().copied().collect();
    uuids.sort_unstable();
    uuids
}

fn check_index(replica: &Replica) {
    let tables = replica.read();
    let ports = tables.table::<LogicalSwitchPort>();
    for address in ["", "a", "b\"\\", "ü", "d", "e", "absent"] {
        let mut indexed: Vec<_> = ports.by_index("address", address).map(|port| port.uuid).collect();
        let mut scanned: Vec<_> =
            ports.iter().filter(|port| port.addresses.contains(address)).map(|port| port.uuid).collect();
        indexed.sort_unstable();
        scanned.sort_unstable();
        assert_eq!(indexed, scanned, "index of {address:?}");
    }
}

#[tokio::test]
async fn with_monitor_cond_since() {
    converges(MonitorProtocol::MonitorCondSince, 0x5eed_0001).await;
}

#[tokio::test]
async fn with_monitor_cond() {
    converges(MonitorProtocol::MonitorCond, 0x5eed_0002).await;
}

#[tokio::test]
async fn with_monitor() {
    converges(MonitorProtocol::Monitor, 0x5eed_0003).await;
}
