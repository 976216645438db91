//! The client against a private ovsdb-server.

mod support;

use std::collections::BTreeMap;

use ovsdb_client::nb::{LogicalSwitch, LogicalSwitchPort};
use ovsdb_client::{Atom, Change, ChangeKind, Condition, Datum, MonitorSpec, Mutator, Row, Transaction};
use support::{Server, soon};

const NB: &str = "OVN_Northbound";

#[tokio::test]
async fn a_transaction_is_in_the_replica_when_its_reply_is_here() {
    let server = Server::start("ovn-nb.ovsschema");
    let client = server.client(NB).await;
    let spec = MonitorSpec::new()
        .table::<LogicalSwitch>(&[])
        .table::<LogicalSwitchPort>(&["name", "addresses", "options"])
        .index::<LogicalSwitchPort>("name", |port| vec![port.name.clone()]);
    let replica = soon("monitor", client.monitor(spec)).await.unwrap();
    let mut changes = replica.changes();

    let mut txn = Transaction::new();
    let port = txn.insert(
        LogicalSwitchPort::TABLE,
        [
            ("name", "p1".into()),
            ("addresses", ["0a:00:00:00:00:01 10.0.0.1"].into()),
            ("options", BTreeMap::from([("k".to_owned(), "v".to_owned())]).into()),
        ],
    );
    txn.insert(LogicalSwitch::TABLE, [("name", Datum::from("s1")), ("ports", port.into())]);
    let results = soon("transact", client.transact(txn)).await.unwrap();
    let port = results[0].uuid.unwrap();
    {
        let tables = replica.read();
        let row = tables.table::<LogicalSwitchPort>().by_index("name", "p1").next().unwrap();
        assert_eq!(row.uuid, port);
        assert_eq!(row.options["k"], "v");
        assert!(tables.table::<LogicalSwitch>().iter().next().unwrap().ports.contains(&port));
    }
    let Some(Change::Rows(rows)) = soon("change", changes.next()).await else { panic!("no row change") };
    assert_eq!(rows.len(), 2, "one transaction is one change");
    assert!(rows.iter().all(|row| row.kind == ChangeKind::Inserted));

    let mut txn = Transaction::new();
    txn.mutate(
        LogicalSwitchPort::TABLE,
        vec![Condition::uuid(port)],
        [("addresses", Mutator::Insert, "x".into()), ("options", Mutator::Delete, Datum::set(["k"]))],
    );
    soon("transact", client.transact(txn)).await.unwrap();
    let tables = replica.read();
    let row = tables.table::<LogicalSwitchPort>().get(&port).unwrap();
    assert_eq!((row.addresses.len(), row.options.len()), (2, 0));
    assert_eq!(row.get("_uuid"), Some(Atom::Uuid(port).into()));
}
