//! The client against a private ovsdb-server: every operation, every way to fail, locks, reconnection.

#![allow(clippy::unwrap_used, reason = "helpers of tests are test code")]

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use ovsdb_client::nb::{AddressSet, LogicalSwitch, LogicalSwitchPort, NbGlobal};
use ovsdb_client::vswitch::{Bridge, OpenVSwitch};
use ovsdb_client::{
    Atom, Change, ChangeKind, Client, Condition, Datum, Error, Function, MonitorSpec, Mutator, OpResult,
    Options, Replica, Row, Status, Transaction, Until, Uuid,
};
use support::{PATIENCE, Server, soon};

const NB: &str = "OVN_Northbound";
const NB_SCHEMA: &str = "ovn-nb.ovsschema";

async fn run(client: &Client, txn: Transaction) -> Result<Vec<OpResult>, Error> {
    soon("transact", client.transact(txn)).await
}

/// Runs a transaction of one operation.
async fn one(client: &Client, build: impl FnOnce(&mut Transaction)) -> Result<OpResult, Error> {
    let mut txn = Transaction::new();
    build(&mut txn);
    run(client, txn).await.map(|mut results| results.remove(0))
}

async fn add_switch(client: &Client, name: &str) -> Uuid {
    one(client, |txn| {
        txn.insert(LogicalSwitch::TABLE, [("name", Datum::from(name))]);
    })
    .await
    .unwrap()
    .uuid
    .unwrap()
}

async fn switches(client: &Client) -> Replica {
    soon("monitor", client.monitor(MonitorSpec::new().table::<LogicalSwitch>(&[]))).await.unwrap()
}

fn strings(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
}

#[tokio::test]
async fn a_transaction_is_in_the_replica_when_its_reply_is_here() {
    let server = Server::start(NB_SCHEMA);
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
            ("options", strings(&[("k", "v")]).into()),
        ],
    );
    txn.insert(LogicalSwitch::TABLE, [("name", Datum::from("s1")), ("ports", port.into())]);
    let port = run(&client, txn).await.unwrap()[0].uuid.unwrap();
    {
        let tables = replica.read();
        let row = tables.table::<LogicalSwitchPort>().by_index("name", "p1").next().unwrap();
        assert_eq!((row.uuid, row.options["k"].as_str()), (port, "v"));
        assert!(tables.table::<LogicalSwitch>().iter().next().unwrap().ports.contains(&port));
    }
    let Some(Change::Rows(rows)) = soon("change", changes.next()).await else { panic!("no row change") };
    assert_eq!(rows.len(), 2, "one transaction is one change");
    assert!(rows.iter().all(|row| row.kind == ChangeKind::Inserted));

    for n in 0..200 {
        let name = format!("p{}", n + 2);
        one(&client, |txn| {
            txn.update(LogicalSwitchPort::TABLE, vec![Condition::uuid(port)], [("name", Datum::from(&name))])
        })
        .await
        .unwrap();
        let tables = replica.read();
        let table = tables.table::<LogicalSwitchPort>();
        assert_eq!(table.get(&port).unwrap().name, name);
        assert_eq!(table.by_index("name", &name).count(), 1);
        assert_eq!(
            table.by_index("name", &format!("p{}", n + 1)).count(),
            0,
            "the old key is gone from the index"
        );
    }
}

#[tokio::test]
async fn every_operation_does_what_it_says() {
    let server = Server::start(NB_SCHEMA);
    let client = server.client(NB).await;
    let table = AddressSet::TABLE;
    let by_name = |name: &str| vec![Condition::equal("name", name)];

    let mut txn = Transaction::new();
    txn.comment("two address sets");
    txn.insert(table, [("name", Datum::from("a")), ("addresses", ["1.1.1.1", "2.2.2.2"].into())]);
    txn.insert(
        table,
        [("name", Datum::from("b")), ("external_ids", strings(&[("k", "v"), ("l", "w")]).into())],
    );
    let results = run(&client, txn).await.unwrap();
    assert_eq!(results.len(), 3);
    let a = results[1].uuid.unwrap();

    let read = one(&client, |txn| txn.select(table, by_name("a"), &["_uuid", "addresses", "external_ids"]))
        .await
        .unwrap();
    assert_eq!(read.rows.len(), 1);
    assert_eq!(read.rows[0]["_uuid"].as_uuid(), Some(a));
    assert_eq!(read.rows[0]["addresses"], Datum::set(["2.2.2.2", "1.1.1.1"]));
    assert_eq!(read.rows[0]["external_ids"], BTreeMap::<String, String>::new().into());

    let updated =
        one(&client, |txn| txn.update(table, vec![], [("external_ids", strings(&[("k", "v")]).into())]))
            .await
            .unwrap();
    assert_eq!(updated.count, Some(2));

    let mutations = [
        ("addresses", Mutator::Delete, Datum::from("1.1.1.1")),
        ("addresses", Mutator::Insert, ["3.3.3.3", "4.4.4.4"].into()),
        ("external_ids", Mutator::Insert, strings(&[("k", "ignored"), ("n", "new")]).into()),
        ("external_ids", Mutator::Delete, Datum::set(["absent"])),
    ];
    let mutated = one(&client, |txn| txn.mutate(table, vec![Condition::uuid(a)], mutations)).await.unwrap();
    assert_eq!(mutated.count, Some(1));
    let read = one(&client, |txn| txn.select(table, vec![Condition::uuid(a)], &[])).await.unwrap();
    assert_eq!(read.rows[0]["addresses"], Datum::set(["2.2.2.2", "3.3.3.3", "4.4.4.4"]));
    assert_eq!(read.rows[0]["external_ids"], strings(&[("k", "v"), ("n", "new")]).into());

    let conditions = vec![
        Condition::new("addresses", Function::Includes, "3.3.3.3"),
        Condition::new("name", Function::NotEqual, "b"),
    ];
    assert_eq!(one(&client, |txn| txn.delete(table, conditions)).await.unwrap().count, Some(1));
    let read = one(&client, |txn| txn.select(table, vec![], &["name"])).await.unwrap();
    assert_eq!(read.rows.iter().map(|row| row["name"].as_str()).collect::<Vec<_>>(), [Some("b")]);

    let mut txn = Transaction::new();
    txn.insert(NbGlobal::TABLE, [("nb_cfg", Datum::from(5))]);
    txn.mutate(
        NbGlobal::TABLE,
        vec![],
        [("nb_cfg", Mutator::Add, Datum::from(7)), ("nb_cfg", Mutator::Mul, 3.into())],
    );
    txn.mutate(
        NbGlobal::TABLE,
        vec![],
        [
            ("nb_cfg", Mutator::Sub, Datum::from(1)),
            ("nb_cfg", Mutator::Div, 2.into()),
            ("nb_cfg", Mutator::Mod, 10.into()),
        ],
    );
    txn.select(NbGlobal::TABLE, vec![], &["nb_cfg"]);
    assert_eq!(run(&client, txn).await.unwrap()[3].rows[0]["nb_cfg"], Datum::from(7));

    let chosen = Uuid::from_u128(0x1234_5678_9abc_4def_8000_0000_0000_0001);
    let mut txn = Transaction::new();
    txn.insert_with_uuid(table, chosen, [("name", Datum::from("c"))]);
    assert_eq!(run(&client, txn).await.unwrap()[0].uuid, Some(chosen));
}

#[tokio::test]
async fn named_uuids_tie_rows_of_one_transaction_together() {
    let server = Server::start("vswitch.ovsschema");
    let client = server.client("Open_vSwitch").await;
    let mut txn = Transaction::new();
    let bridges = ["br0", "br1"].map(|name| txn.insert(Bridge::TABLE, [("name", Datum::from(name))]));
    txn.insert(OpenVSwitch::TABLE, [("bridges", bridges.into())]);
    let results = run(&client, txn).await.unwrap();
    let replica = client
        .monitor(MonitorSpec::new().table::<OpenVSwitch>(&[]).table::<Bridge>(&["name"]))
        .await
        .unwrap();
    let tables = replica.read();
    let root = tables.table::<OpenVSwitch>().iter().next().unwrap();
    let expected: std::collections::BTreeSet<Uuid> =
        results[..2].iter().map(|result| result.uuid.unwrap()).collect();
    assert_eq!(root.bridges, expected);
    assert_eq!(tables.table::<Bridge>().get(&results[1].uuid.unwrap()).unwrap().name, "br1");
}

#[tokio::test]
async fn a_failing_operation_is_named_and_nothing_is_done() {
    let server = Server::start(NB_SCHEMA);
    let client = server.client(NB).await;
    let replica = switches(&client).await;
    let mut txn = Transaction::new();
    txn.insert(LogicalSwitch::TABLE, [("name", Datum::from("s"))]);
    txn.insert(LogicalSwitch::TABLE, [("no_such_column", Datum::from("x"))]);
    txn.insert(LogicalSwitch::TABLE, [("name", Datum::from("t"))]);
    let error = run(&client, txn).await.unwrap_err();
    let Error::Operation { index: 1, op, .. } = &error else { panic!("{error:?}") };
    assert_eq!(op, "insert Logical_Switch");
    assert!(error.to_string().contains("no_such_column"), "{error}");
    assert!(!error.outcome_unknown() && !error.not_sent());
    assert!(replica.read().table::<LogicalSwitch>().is_empty());

    let error = one(&client, |txn| txn.abort()).await.unwrap_err();
    assert!(matches!(&error, Error::Operation { error, .. } if error == "aborted"), "{error:?}");
}

#[tokio::test]
async fn a_refused_commit_is_told_apart_from_a_refused_operation() {
    let server = Server::start(NB_SCHEMA);
    let client = server.client(NB).await;
    let replica = switches(&client).await;

    let mut txn = Transaction::new();
    txn.insert(AddressSet::TABLE, [("name", Datum::from("same"))]);
    txn.insert(AddressSet::TABLE, [("name", Datum::from("same"))]);
    let error = run(&client, txn).await.unwrap_err();
    assert!(
        matches!(&error, Error::Commit { error, details } if error == "constraint violation" && details.contains("same")),
        "{error:?}"
    );

    let mut txn = Transaction::new();
    txn.insert(LogicalSwitch::TABLE, [("name", Datum::from("s")), ("ports", Uuid::from_u128(99).into())]);
    let error = run(&client, txn).await.unwrap_err();
    assert!(
        matches!(&error, Error::Commit { error, .. } if error == "referential integrity violation"),
        "{error:?}"
    );
    assert!(replica.read().table::<LogicalSwitch>().is_empty());
}

#[tokio::test]
async fn wait_checks_or_waits() {
    let server = Server::start(NB_SCHEMA);
    let client = server.client(NB).await;
    let id = add_switch(&client, "s").await;
    let row = move |name: &str| vec![BTreeMap::from([("name".to_owned(), Datum::from(name))])];
    let guard = move |txn: &mut Transaction, name: &str, until, timeout| {
        txn.wait(LogicalSwitch::TABLE, vec![Condition::uuid(id)], &["name"], row(name), until, timeout);
    };
    let zero = Some(Duration::ZERO);
    one(&client, |txn| guard(txn, "s", Until::Equal, zero)).await.unwrap();
    for (name, until) in [("t", Until::Equal), ("s", Until::NotEqual)] {
        let error = one(&client, |txn| guard(txn, name, until, zero)).await.unwrap_err();
        assert!(
            matches!(&error, Error::Operation { index: 0, error, .. } if error == "timed out"),
            "{error:?}"
        );
    }

    let waiter = tokio::spawn({
        let client = client.clone();
        async move {
            let mut txn = Transaction::new();
            guard(&mut txn, "t", Until::Equal, None);
            client.transact(txn).await
        }
    });
    // Calls that come later are answered earlier.
    soon("echo", client.echo()).await.unwrap();
    assert!(!waiter.is_finished());
    one(&client, |txn| {
        txn.update(LogicalSwitch::TABLE, vec![Condition::uuid(id)], [("name", Datum::from("t"))])
    })
    .await
    .unwrap();
    soon("wait", waiter).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_dropped_wait_is_canceled_on_the_server() {
    let server = Server::start(NB_SCHEMA);
    let client = server.client(NB).await;
    let id = add_switch(&client, "s").await;
    let waiter = tokio::spawn({
        let client = client.clone();
        async move {
            let mut txn = Transaction::new();
            let wanted = vec![BTreeMap::from([("name".to_owned(), Datum::from("t"))])];
            txn.wait(LogicalSwitch::TABLE, vec![Condition::uuid(id)], &["name"], wanted, Until::Equal, None);
            txn.insert(LogicalSwitch::TABLE, [("name", Datum::from("late"))]);
            client.transact(txn).await
        }
    });
    client.echo().await.unwrap();
    waiter.abort();
    assert!(waiter.await.is_err());
    one(&client, |txn| txn.update(LogicalSwitch::TABLE, vec![], [("name", Datum::from("t"))])).await.unwrap();
    client.echo().await.unwrap();
    let read = one(&client, |txn| txn.select(LogicalSwitch::TABLE, vec![], &["name"])).await.unwrap();
    assert_eq!(read.rows.len(), 1, "the abandoned transaction was carried out");
}

#[tokio::test]
async fn a_lock_is_a_fence_and_passes_to_the_next_in_line() {
    let server = Server::start(NB_SCHEMA);
    let (first, second) = (server.client(NB).await, server.client(NB).await);
    let guarded = |txn: &mut Transaction| {
        txn.assert_lock("leader");
        txn.insert(LogicalSwitch::TABLE, [("name", Datum::from("s"))]);
    };
    let lock = soon("lock", first.lock("leader")).await.unwrap();
    assert!(lock.is_owned());
    one(&first, guarded).await.unwrap();
    assert_eq!(first.lock("leader").await.unwrap_err(), Error::LockInUse("leader".to_owned()));
    one(&first, guarded).await.expect("a refused second request does not release the first");

    let mut queued = soon("lock", second.lock("leader")).await.unwrap();
    assert!(!queued.is_owned());
    let error = one(&second, guarded).await.unwrap_err();
    assert!(matches!(&error, Error::Operation { index: 0, error, .. } if error == "not owner"), "{error:?}");
    drop(lock);
    soon("ownership", queued.owned.wait_for(|owned| *owned)).await.unwrap();
    one(&second, guarded).await.unwrap();
    one(&first, guarded).await.unwrap_err();

    let stolen = soon("steal", first.steal_lock("leader")).await.unwrap();
    assert!(stolen.is_owned());
    soon("loss", queued.owned.wait_for(|owned| !*owned)).await.unwrap();
    one(&second, guarded).await.unwrap_err();
    one(&first, guarded).await.unwrap();
}

#[tokio::test]
async fn after_a_restart_replica_and_lock_come_back_and_only_differences_are_told() {
    let mut server = Server::start(NB_SCHEMA);
    let client = server.client(NB).await;
    for name in ["kept", "changed", "deleted"] {
        add_switch(&client, name).await;
    }
    let replica = switches(&client).await;
    let mut lock = client.lock("leader").await.unwrap();
    let mut changes = replica.changes();
    let mut synced = replica.synced();
    server.kill();
    soon("loss", synced.wait_for(|synced| !*synced)).await.unwrap();
    soon("loss of the lock", lock.owned.wait_for(|owned| !*owned)).await.unwrap();
    assert_eq!(replica.read().table::<LogicalSwitch>().len(), 3, "old contents stay readable");
    assert!(client.transact(one_switch("x")).await.unwrap_err().not_sent());

    // Changed behind the client's back.
    for operation in [
        r#"{"op":"delete","table":"Logical_Switch","where":[["name","==","deleted"]]}"#,
        r#"{"op":"update","table":"Logical_Switch","where":[["name","==","changed"]],"row":{"name":"changed2"}}"#,
        r#"{"op":"insert","table":"Logical_Switch","row":{"name":"new"}}"#,
    ] {
        support::ovs_run(
            "ovsdb-tool",
            server.dir.path(),
            &["transact", "db", &format!("[\"{NB}\",{operation}]")],
        );
    }
    server.run();
    soon("sync", synced.wait_for(|synced| *synced)).await.unwrap();
    soon("lock", lock.owned.wait_for(|owned| *owned)).await.unwrap();
    let Some(Change::Rows(rows)) = soon("change", changes.next()).await else { panic!("no rows") };
    let mut told: Vec<_> = rows
        .iter()
        .map(|row| {
            (row.kind, row.old().or(row.new_row()).map(|row: &LogicalSwitch| row.name.clone()).unwrap())
        })
        .collect();
    told.sort_by(|a, b| a.1.cmp(&b.1));
    let expected =
        [(ChangeKind::Modified, "changed"), (ChangeKind::Deleted, "deleted"), (ChangeKind::Inserted, "new")];
    assert_eq!(told, expected.map(|(kind, name)| (kind, name.to_owned())));
    soon("connection", client.connected(PATIENCE)).await.unwrap();
    run(&client, one_switch("after")).await.unwrap();
    assert_eq!(replica.read().table::<LogicalSwitch>().len(), 4);
}

fn one_switch(name: &str) -> Transaction {
    let mut txn = Transaction::new();
    txn.insert(LogicalSwitch::TABLE, [("name", Datum::from(name))]);
    txn
}

#[tokio::test]
async fn a_conditional_monitor_follows_rows_in_and_out() {
    let server = Server::start(NB_SCHEMA);
    let client = server.client(NB).await;
    let wanted = ["a", "b"].map(|name| Condition::equal("name", name)).to_vec();
    let spec = MonitorSpec::new().table_where::<LogicalSwitch>(&["name"], wanted);
    let replica = client.monitor(spec).await.unwrap();
    let names = || {
        let mut names: Vec<_> =
            replica.read().table::<LogicalSwitch>().iter().map(|row| row.name.clone()).collect();
        names.sort();
        names
    };
    for name in ["a", "b", "c"] {
        run(&client, one_switch(name)).await.unwrap();
    }
    assert_eq!(names(), ["a", "b"], "one condition that holds is enough");
    for (from, to, now) in [("a", "x", vec!["b"]), ("c", "a", vec!["a", "b"])] {
        one(&client, |txn| {
            txn.update(
                LogicalSwitch::TABLE,
                vec![Condition::equal("name", from)],
                [("name", Datum::from(to))],
            )
        })
        .await
        .unwrap();
        assert_eq!(names(), now);
    }
}

#[tokio::test]
async fn a_dropped_replica_ends_its_monitor() {
    let server = Server::start(NB_SCHEMA);
    let client = server.client(NB).await;
    let monitors = |text: String| {
        text.split_whitespace().find_map(|word| word.strip_prefix("monitors:").map(str::to_owned))
    };
    let before = monitors(server.appctl(&["memory/show"]));
    let replica = switches(&client).await;
    let during = monitors(server.appctl(&["memory/show"]));
    assert_ne!(before, during, "the server counts the monitor");
    drop(replica);
    client.echo().await.unwrap();
    assert_eq!(monitors(server.appctl(&["memory/show"])), before);
}

#[tokio::test]
async fn the_schema_tells_what_the_server_has() {
    let server = Server::start(NB_SCHEMA);
    let client = server.client(NB).await;
    let schema = client.schema().await.unwrap();
    assert!(schema.has_table("Logical_Switch") && !schema.has_table("Nonsense"));
    assert!(schema.has_column("Logical_Switch", "ports") && !schema.has_column("Logical_Switch", "nonsense"));
    assert_eq!(client.list_dbs().await.unwrap(), ["OVN_Northbound", "_Server"]);
    let error = client.call("nonsense", &[(); 0]).await.unwrap_err();
    assert!(matches!(&error, Error::Rpc { method, .. } if method == "nonsense"), "{error}");
}

#[tokio::test]
async fn columns_that_an_older_server_lacks_are_left_out() {
    // An Open_vSwitch server of ancient times: one table, two columns.
    let old = r#"{"name":"OVN_Northbound","version":"1.0.0","tables":{"Logical_Switch":{"isRoot":true,"columns":{
        "name":{"type":"string"},"external_ids":{"type":{"key":"string","value":"string","min":0,"max":"unlimited"}}}}}}"#;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("old.ovsschema");
    std::fs::write(&path, old).unwrap();
    let server = Server::start(path.to_str().unwrap());
    let client = server.client(NB).await;
    add_switch(&client, "s").await;
    let spec = MonitorSpec::new().table::<LogicalSwitch>(&[]).table::<LogicalSwitchPort>(&[]);
    let replica = soon("monitor", client.monitor(spec)).await.unwrap();
    let tables = replica.read();
    assert_eq!(tables.table::<LogicalSwitch>().iter().next().unwrap().name, "s");
    assert!(tables.table::<LogicalSwitchPort>().is_empty());
}

#[tokio::test]
async fn a_converted_schema_is_taken_up_and_contents_stay() {
    let schema = |columns: &str| {
        format!(
            r#"{{"name":"{NB}","version":"1.0.0","tables":{{"Logical_Switch":{{"isRoot":true,"columns":{{"name":{{"type":"string"}}{columns}}}}}}}}}"#
        )
    };
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (dir.path().join("old.ovsschema"), dir.path().join("new.ovsschema"));
    std::fs::write(&old, schema("")).unwrap();
    std::fs::write(&new, schema(r#","copp":{"type":{"key":"uuid","min":0,"max":1}}"#)).unwrap();
    let server = Server::start(old.to_str().unwrap());
    let client = server.client(NB).await;
    add_switch(&client, "s").await;
    let replica = switches(&client).await;
    let mut changes = replica.changes();
    let mut synced = replica.synced();
    support::ovs_run("ovsdb-client", server.dir.path(), &["convert", "unix:db.sock", new.to_str().unwrap()]);
    soon("notice", synced.wait_for(|synced| !*synced)).await.unwrap();
    soon("sync", synced.wait_for(|synced| *synced)).await.unwrap();
    assert!(client.schema().await.unwrap().has_column("Logical_Switch", "copp"));
    let reference = Uuid::from_u128(5);
    one(&client, |txn| txn.update(LogicalSwitch::TABLE, vec![], [("copp", Datum::from(reference))]))
        .await
        .unwrap();
    let Some(Change::Rows(rows)) = soon("change", changes.next()).await else { panic!("no rows") };
    assert_eq!(
        (rows.len(), rows[0].kind),
        (1, ChangeKind::Modified),
        "the conversion itself changed nothing"
    );
    assert_eq!(replica.read().table::<LogicalSwitch>().iter().next().unwrap().copp, Some(reference));
}

#[tokio::test]
async fn a_database_the_server_lacks_is_named_in_the_error() {
    let server = Server::start(NB_SCHEMA);
    let client = Client::new(server.options("OVN_Southbound"));
    let error = client.connected(Duration::from_millis(500)).await.unwrap_err().to_string();
    assert!(error.contains("OVN_Southbound") && error.contains("OVN_Northbound"), "{error}");
}

#[tokio::test]
async fn the_next_endpoint_is_tried_when_one_does_not_answer() {
    let server = Server::start_with(NB_SCHEMA, |_| vec!["--remote=ptcp:0:127.0.0.1".to_owned()]);
    let port = server.port();
    let dead = tempfile::tempdir().unwrap();
    let list = format!("unix:{}/none.sock,tcp:127.0.0.1:1,tcp:localhost:{port}", dead.path().display());
    let client = Client::new(support::options(ovsdb_client::Endpoint::parse_list(&list).unwrap(), NB));
    client.connected(PATIENCE).await.unwrap();
    let status = client.status().borrow().clone();
    let Status::Connected { endpoint, .. } = status else { panic!("{status:?}") };
    assert_eq!(endpoint.to_string(), format!("tcp:localhost:{port}"));
    add_switch(&client, "over tcp").await;
}

#[tokio::test]
async fn the_probe_of_the_server_is_answered_on_an_idle_session() {
    let server = Server::start_args(NB_SCHEMA, |dir| {
        let config = r#"{"remotes":{"punix:db.sock":{"inactivity-probe":1000}},"databases":{"db":{}}}"#;
        std::fs::write(dir.join("config.json"), config).unwrap();
        vec!["--config-file=config.json".to_owned()]
    });
    let client = Client::new(Options { probe_interval: Duration::ZERO, ..server.options(NB) });
    client.connected(PATIENCE).await.unwrap();
    // The server gives up after two of its intervals.
    tokio::time::sleep(Duration::from_millis(3500)).await;
    add_switch(&client, "s").await;
    assert!(matches!(&*client.status().borrow(), Status::Connected { session: 1, .. }), "{}", server.log());
}

#[tokio::test]
async fn many_calls_at_once_get_their_own_replies() {
    let server = Server::start(NB_SCHEMA);
    let client = server.client(NB).await;
    let replica = switches(&client).await;
    let calls: Vec<_> = (0..300)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move {
                let name = format!("s{n}");
                let mut txn = one_switch(&name);
                txn.select(LogicalSwitch::TABLE, vec![Condition::equal("name", &name)], &["_uuid", "name"]);
                let results = client.transact(txn).await.unwrap();
                assert_eq!(results[1].rows[0]["name"], Datum::from(&name));
                assert_eq!(results[1].rows[0]["_uuid"], Datum::from(Atom::Uuid(results[0].uuid.unwrap())));
            })
        })
        .collect();
    for call in calls {
        soon("call", call).await.unwrap();
    }
    assert_eq!(replica.read().table::<LogicalSwitch>().len(), 300);
}
