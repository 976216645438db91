//! What a session outlives, against a private ovsdb-server: locks, restarts, schemas, endpoints, probes.

#![allow(clippy::unwrap_used, reason = "helpers of tests are test code")]

mod support;

use std::time::Duration;

use ovsdb_client::nb::{LogicalSwitch, LogicalSwitchPort};
use ovsdb_client::{
    Change, ChangeKind, Client, Datum, Endpoint, Error, MonitorSpec, Options, Row, Status, Transaction, Uuid,
};
use support::nb::{NB, NB_SCHEMA, add_switch, one, one_switch, run, switches};
use support::{PATIENCE, Server, soon};

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
    assert_eq!(
        soon("refusal", first.lock("leader")).await.unwrap_err(),
        Error::LockInUse("leader".to_owned())
    );
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
    let mut lock = soon("lock", client.lock("leader")).await.unwrap();
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
    let client = Client::new(support::options(Endpoint::parse_list(&list).unwrap(), NB));
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
