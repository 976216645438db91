//! The client against a peer that misbehaves in ways a real server does so only now and then: the bytes and the calls.

#![allow(clippy::unwrap_used, reason = "helpers of tests are test code")]

mod support;

use std::time::Duration;

use ovsdb_client::nb::LogicalSwitch;
use ovsdb_client::{
    Change, ChangeKind, Client, Datum, Endpoint, Error, MonitorSpec, Options, Row, Status, Transaction,
};
use serde_json::{Value, json};
use support::fake::{Fake, NB, ZERO, connected, disconnected, one_insert, spawn_transact, uuid};
use support::{options, soon};
use tokio::io::AsyncWriteExt;

#[tokio::test]
async fn replies_cut_at_every_byte_arrive() {
    let fake = Fake::new();
    let client = Client::new(fake.options());
    let mut peer = fake.session().await;
    connected(&client).await;
    let id = uuid(7);
    let length = json!({ "id": 99, "result": [{ "uuid": ["uuid", id] }], "error": null }).to_string().len();
    for cut in 1..length {
        let call = spawn_transact(&client);
        let request = peer.expect("transact").await;
        let text =
            json!({ "id": request["id"], "result": [{ "uuid": ["uuid", id] }], "error": null }).to_string();
        let (head, tail) = text.as_bytes().split_at(cut.min(text.len() - 1));
        peer.stream.write_all(head).await.unwrap();
        tokio::task::yield_now().await;
        peer.stream.write_all(tail).await.unwrap();
        assert_eq!(soon("reply", call).await.unwrap().unwrap()[0].uuid, Some(id), "cut at {cut}");
    }
}

#[tokio::test]
async fn coalesced_messages_are_all_handled_in_order() {
    let fake = Fake::new();
    let client = Client::new(fake.options());
    let mut peer = fake.session().await;
    connected(&client).await;
    let monitor = tokio::spawn({
        let client = client.clone();
        async move { client.monitor(MonitorSpec::new().table::<LogicalSwitch>(&["name"])).await }
    });
    let request = peer.expect("monitor_cond_since").await;
    let id = request["params"][1].clone();
    peer.reply(&request, json!([false, ZERO, {}])).await;
    let replica = soon("monitor", monitor).await.unwrap().unwrap();
    let mut changes = replica.changes();

    let call = spawn_transact(&client);
    let request = peer.expect("transact").await;
    let update = |row: Value| json!({ "id": null, "method": "update3", "params": [id, ZERO, { "Logical_Switch": { uuid(1).to_string(): row } }] });
    let messages = [
        json!({ "id": "echo", "method": "echo", "params": ["x"] }),
        update(json!({ "insert": { "name": "a}{\"\\" } })),
        update(json!({ "modify": { "name": "b" } })),
        json!({ "id": request["id"], "result": [{ "uuid": ["uuid", uuid(1)] }], "error": null }),
    ];
    let text: String = messages.iter().map(ToString::to_string).collect();
    peer.stream.write_all(text.as_bytes()).await.unwrap();

    soon("reply", call).await.unwrap().unwrap();
    assert_eq!(replica.read().table::<LogicalSwitch>().get(&uuid(1)).unwrap().name, "b");
    for (kind, old, new) in
        [(ChangeKind::Inserted, None, "a}{\"\\"), (ChangeKind::Modified, Some("a}{\"\\"), "b")]
    {
        let Some(Change::Rows(rows)) = soon("change", changes.next()).await else { panic!("no rows") };
        assert_eq!((rows[0].kind, rows.len()), (kind, 1));
        assert_eq!(rows[0].old::<LogicalSwitch>().map(|row| row.name.as_str()), old);
        assert_eq!(rows[0].new_row::<LogicalSwitch>().unwrap().name, new);
    }
    assert_eq!(peer.receive().await, json!({ "id": "echo", "result": ["x"], "error": null }));
}

#[tokio::test]
async fn an_echo_is_answered_while_a_call_is_outstanding() {
    let fake = Fake::new();
    let client = Client::new(fake.options());
    let mut peer = fake.session().await;
    connected(&client).await;
    let call = spawn_transact(&client);
    let request = peer.expect("transact").await;
    peer.send(&json!({ "id": "echo", "method": "echo", "params": [] })).await;
    assert_eq!(peer.receive().await, json!({ "id": "echo", "result": [], "error": null }));
    assert!(!call.is_finished());
    peer.reply(&request, json!([{ "uuid": ["uuid", uuid(1)] }])).await;
    soon("reply", call).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_lost_reply_times_out_with_outcome_unknown_and_a_late_one_disturbs_nothing() {
    let fake = Fake::new();
    let client = Client::new(Options { call_timeout: Some(Duration::from_millis(100)), ..fake.options() });
    let mut peer = fake.session().await;
    connected(&client).await;
    let call = spawn_transact(&client);
    let lost = peer.expect("transact").await;
    let error = soon("timeout", call).await.unwrap().unwrap_err();
    assert!(
        matches!(error, Error::Timeout { .. }) && error.outcome_unknown() && !error.not_sent(),
        "{error}"
    );
    let cancel = peer.expect("cancel").await;
    assert_eq!(cancel["params"], json!([lost["id"]]));

    let call = spawn_transact(&client);
    let request = peer.expect("transact").await;
    peer.reply(&lost, json!([{ "uuid": ["uuid", uuid(1)] }])).await;
    peer.reply(&request, json!([{ "uuid": ["uuid", uuid(2)] }])).await;
    assert_eq!(soon("reply", call).await.unwrap().unwrap()[0].uuid, Some(uuid(2)));
}

#[tokio::test]
async fn a_dropped_call_leaves_the_others_with_their_own_replies() {
    let fake = Fake::new();
    let client = Client::new(fake.options());
    let mut peer = fake.session().await;
    connected(&client).await;
    let first = spawn_transact(&client);
    let dropped = peer.expect("transact").await;
    let second = spawn_transact(&client);
    let kept = peer.expect("transact").await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    assert_eq!(peer.expect("cancel").await["params"], json!([dropped["id"]]));
    peer.reply(&kept, json!([{ "uuid": ["uuid", uuid(2)] }])).await;
    peer.reply(&dropped, json!([{ "uuid": ["uuid", uuid(1)] }])).await;
    assert_eq!(soon("reply", second).await.unwrap().unwrap()[0].uuid, Some(uuid(2)));
    let third = spawn_transact(&client);
    let request = peer.expect("transact").await;
    peer.reply(&request, json!([{ "uuid": ["uuid", uuid(3)] }])).await;
    assert_eq!(soon("reply", third).await.unwrap().unwrap()[0].uuid, Some(uuid(3)));
}

#[tokio::test]
async fn a_silent_peer_is_probed_and_then_left() {
    let fake = Fake::new();
    let client = Client::new(Options { probe_interval: Duration::from_millis(200), ..fake.options() });
    let mut peer = fake.session().await;
    connected(&client).await;
    // As long as probes are answered the session stays.
    for _ in 0..3 {
        let probe = peer.expect("echo").await;
        peer.reply(&probe, json!([])).await;
    }
    assert!(matches!(&*client.status().borrow(), Status::Connected { session: 1, .. }));
    let call = spawn_transact(&client);
    let error = soon("failure", call).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error}");
    let reason = disconnected(&client).await;
    assert!(reason.contains("silent"), "{reason}");
    let _peer = fake.session().await;
    connected(&client).await;
    assert!(matches!(&*client.status().borrow(), Status::Connected { session: 2, .. }));
}

#[tokio::test]
async fn garbage_ends_the_session_and_the_next_one_works() {
    for garbage in [
        "HTTP/1.1 400 Bad Request\r\n\r\n",
        "{]",
        "{\"id\":1,\"result\":}",
        "[]",
        "{\"id\":null,\"method\":\"update3\",\"params\":{}}",
    ] {
        let fake = Fake::new();
        let client = Client::new(fake.options());
        let mut peer = fake.session().await;
        connected(&client).await;
        let call = spawn_transact(&client);
        peer.expect("transact").await;
        peer.stream.write_all(garbage.as_bytes()).await.unwrap();
        let error = soon("failure", call).await.unwrap().unwrap_err();
        assert!(matches!(error, Error::OutcomeUnknown { .. }), "{garbage:?}: {error}");
        let mut peer = fake.session().await;
        connected(&client).await;
        let call = spawn_transact(&client);
        let request = peer.expect("transact").await;
        peer.reply(&request, json!([{ "uuid": ["uuid", uuid(1)] }])).await;
        soon("reply", call).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_huge_message_arrives_whole() {
    let fake = Fake::new();
    let client = Client::new(fake.options());
    let mut peer = fake.session().await;
    connected(&client).await;
    let call = tokio::spawn({
        let client = client.clone();
        async move {
            let mut txn = Transaction::new();
            txn.select(LogicalSwitch::TABLE, vec![], &["name"]);
            client.transact(txn).await
        }
    });
    let request = peer.expect("transact").await;
    let name = "é\"\\{".repeat(5_000_000);
    peer.reply(&request, json!([{ "rows": [{ "name": name }] }])).await;
    let results = soon("reply", call).await.unwrap().unwrap();
    assert_eq!(results[0].rows[0]["name"], Datum::from(name));
}

#[tokio::test]
async fn a_request_larger_than_the_socket_buffers_is_sent_while_the_server_talks() {
    let fake = Fake::new();
    let client = Client::new(fake.options());
    let mut peer = fake.session().await;
    connected(&client).await;
    let comment = "c".repeat(8 << 20);
    let call = tokio::spawn({
        let (client, comment) = (client.clone(), comment.clone());
        async move {
            let mut txn = Transaction::new();
            txn.comment(comment);
            client.transact(txn).await
        }
    });
    // The server fills its own direction before it reads: a client that only writes would stall.
    let noise = json!({ "id": null, "method": "noise", "params": ["n".repeat(8 << 20)] });
    peer.send(&noise).await;
    let request = peer.expect("transact").await;
    assert_eq!(request["params"][1]["comment"].as_str().unwrap().len(), comment.len());
    peer.reply(&request, json!([{}])).await;
    soon("reply", call).await.unwrap().unwrap();
}

#[tokio::test]
async fn calls_without_a_session_fail_as_not_sent() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nobody.sock");
    let client = Client::new(options(vec![Endpoint::Unix(path.clone())], NB));
    let error = client.connected(Duration::from_millis(300)).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains(&format!("unix:{}", path.display())) && text.contains("No such file"), "{text}");
    let error = client.transact(one_insert()).await.unwrap_err();
    assert!(error.not_sent() && !error.outcome_unknown(), "{error}");
}

#[tokio::test]
async fn the_session_lasts_as_long_as_a_handle_on_it() {
    let fake = Fake::new();
    let client = Client::new(fake.options());
    let mut peer = fake.session().await;
    connected(&client).await;
    let monitor =
        tokio::spawn(
            async move { client.monitor(MonitorSpec::new().table::<LogicalSwitch>(&["name"])).await },
        );
    let request = peer.expect("monitor_cond_since").await;
    peer.reply(&request, json!([false, ZERO, {}])).await;
    let replica = soon("monitor", monitor).await.unwrap().unwrap();
    let mut changes = replica.changes();
    // The client is gone, the replica still follows.
    let update = json!({ "Logical_Switch": { uuid(1).to_string(): { "insert": { "name": "a" } } } });
    peer.send(&json!({ "id": null, "method": "update3", "params": [request["params"][1], ZERO, update] }))
        .await;
    assert!(matches!(soon("change", changes.next()).await, Some(Change::Rows(_))));
    drop(replica);
    while peer.try_receive().await.is_some() {}
    assert!(soon("end", changes.next()).await.is_none());
}
