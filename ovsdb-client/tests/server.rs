//! The client against a private ovsdb-server: every operation and every way to be refused.

#![allow(clippy::unwrap_used, reason = "helpers of tests are test code")]

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use ovsdb_client::nb::{AddressSet, LogicalSwitch, LogicalSwitchPort, NbGlobal};
use ovsdb_client::vswitch::{Bridge, OpenVSwitch};
use ovsdb_client::{
    Atom, Change, ChangeKind, Condition, Datum, Error, Function, MonitorSpec, Mutator, Row, Set, Transaction,
    Until, Uuid,
};
use support::nb::{NB, NB_SCHEMA, add_switch, one, one_switch, run, switches};
use support::{Server, soon};

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
    let expected: Set<Uuid> = results[..2].iter().map(|result| result.uuid.unwrap()).collect();
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
async fn a_monitor_that_the_server_refuses_is_an_error_and_the_session_goes_on() {
    let server = Server::start(NB_SCHEMA);
    let client = server.client(NB).await;
    let nonsense = vec![Condition::equal("name", 5)];
    let spec = MonitorSpec::new().table_where::<LogicalSwitch>(&[], nonsense);
    let error = soon("refusal", client.monitor(spec)).await.unwrap_err();
    assert!(matches!(&error, Error::Rpc { method, .. } if method == "monitor"), "{error:?}");
    let replica = switches(&client).await;
    add_switch(&client, "s").await;
    assert_eq!(replica.read().table::<LogicalSwitch>().len(), 1);
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
async fn a_conditional_monitor_follows_rows_in_and_out() {
    let server = Server::start(NB_SCHEMA);
    let client = server.client(NB).await;
    let wanted = ["a", "b"].map(|name| Condition::equal("name", name)).to_vec();
    let spec = MonitorSpec::new().table_where::<LogicalSwitch>(&["name"], wanted);
    let replica = soon("monitor", client.monitor(spec)).await.unwrap();
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
