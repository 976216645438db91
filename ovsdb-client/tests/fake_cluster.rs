//! The client against a peer that tells of itself, and answers monitors, as real servers do only in rare states.

#![allow(clippy::unwrap_used, reason = "helpers of tests are test code")]

mod support;

use ovsdb_client::nb::{LogicalSwitch, LogicalSwitchPort};
use ovsdb_client::{Change, ChangeKind, Client, MonitorSpec, Options};
use serde_json::{Value, json};
use support::fake::{Fake, Peer, ZERO, clustered, connected, disconnected, schema, spawn_transact, uuid};
use support::soon;
use tokio::io::AsyncWriteExt;

#[tokio::test]
async fn older_monitor_methods_are_used_where_the_server_lacks_the_newer() {
    let fake = Fake::new();
    let client = Client::new(fake.options());
    let mut peer = fake.session().await;
    connected(&client).await;
    let monitor = tokio::spawn({
        let client = client.clone();
        let wanted = ovsdb_client::Condition::equal("name", "a");
        async move {
            client
                .monitor(MonitorSpec::new().table_where::<LogicalSwitchPort>(&["name", "up"], vec![wanted]))
                .await
        }
    });
    for method in ["monitor_cond_since", "monitor_cond"] {
        let request = peer.expect(method).await;
        assert_eq!(request["params"][2]["Logical_Switch_Port"][0]["where"], json!([["name", "==", "a"]]));
        peer.refuse(&request).await;
    }
    let request = peer.expect("monitor").await;
    assert_eq!(request["params"][2], json!({ "Logical_Switch_Port": [{ "columns": ["name", "up"] }] }));
    let row = |name: &str| json!({ "new": { "name": name, "up": ["set", []] } });
    peer.reply(
        &request,
        json!({ "Logical_Switch_Port": { uuid(1).to_string(): row("a"), uuid(2).to_string(): row("b") } }),
    )
    .await;
    let replica = soon("monitor", monitor).await.unwrap().unwrap();
    let names = || {
        replica
            .read()
            .table::<LogicalSwitchPort>()
            .iter()
            .map(|row| (row.name.clone(), row.up))
            .collect::<Vec<_>>()
    };
    assert_eq!(names(), [("a".to_owned(), None)], "the condition is evaluated by the client");
    let updates = json!({
        uuid(1).to_string(): { "old": { "name": "a" }, "new": { "name": "c", "up": true } },
        uuid(2).to_string(): { "old": { "name": "b" }, "new": { "name": "a", "up": true } },
    });
    peer.send(&json!({ "id": null, "method": "update", "params": [request["params"][1], { "Logical_Switch_Port": updates }] })).await;
    let call = spawn_transact(&client);
    let transact = peer.expect("transact").await;
    peer.reply(&transact, json!([{ "uuid": ["uuid", uuid(9)] }])).await;
    soon("reply", call).await.unwrap().unwrap();
    assert_eq!(names(), [("a".to_owned(), Some(true))]);
    assert!(replica.read().table::<LogicalSwitchPort>().get(&uuid(2)).is_some());
}

#[tokio::test]
async fn a_server_that_remembers_sends_only_what_was_missed() {
    let fake = Fake::new();
    let client = Client::new(fake.options());
    let mut peer = fake.session().await;
    connected(&client).await;
    let monitor = tokio::spawn({
        let client = client.clone();
        async move { client.monitor(MonitorSpec::new().table::<LogicalSwitch>(&["name"])).await }
    });
    let request = peer.expect("monitor_cond_since").await;
    assert_eq!(request["params"][3], ZERO);
    let rows = json!({ "Logical_Switch": { uuid(1).to_string(): { "initial": { "name": "a" } }, uuid(2).to_string(): { "initial": { "name": "b" } } } });
    let last = uuid(77).to_string();
    peer.reply(&request, json!([false, last, rows])).await;
    let replica = soon("monitor", monitor).await.unwrap().unwrap();
    let mut changes = replica.changes();
    drop(peer);

    let mut peer = fake.accept().await;
    assert!(!replica.is_synced());
    assert_eq!(replica.read().table::<LogicalSwitch>().len(), 2, "old contents stay readable");
    peer.handshake().await;
    let request = peer.expect("monitor_cond_since").await;
    assert_eq!(request["params"][3], last.as_str());
    peer.reply(&request, json!([true, uuid(78).to_string(), { "Logical_Switch": { uuid(2).to_string(): { "delete": null } } }])).await;
    let Some(Change::Rows(rows)) = soon("change", changes.next()).await else { panic!("no rows") };
    assert_eq!((rows.len(), rows[0].kind, rows[0].uuid), (1, ChangeKind::Deleted, uuid(2)));
    assert_eq!(replica.read().table::<LogicalSwitch>().len(), 1);
    soon("sync", replica.synced().wait_for(|synced| *synced)).await.unwrap();
}

#[tokio::test]
async fn an_update_that_cannot_be_applied_leads_to_a_full_reload() {
    let fake = Fake::new();
    let client = Client::new(fake.options());
    let mut peer = fake.session().await;
    connected(&client).await;
    let monitor = tokio::spawn({
        let client = client.clone();
        async move { client.monitor(MonitorSpec::new().table::<LogicalSwitch>(&["name"])).await }
    });
    let request = peer.expect("monitor_cond_since").await;
    peer.reply(&request, json!([false, uuid(77).to_string(), {}])).await;
    let replica = soon("monitor", monitor).await.unwrap().unwrap();
    let update = json!({ "Logical_Switch": { uuid(5).to_string(): { "modify": { "name": "x" } } } });
    peer.send(&json!({ "id": null, "method": "update3", "params": [request["params"][1], uuid(78).to_string(), update] })).await;
    let reason = disconnected(&client).await;
    assert!(reason.contains(&uuid(5).to_string()) && reason.contains("Logical_Switch"), "{reason}");
    let mut peer = fake.session().await;
    let request = peer.expect("monitor_cond_since").await;
    assert_eq!(request["params"][3], ZERO, "resuming after a half applied update would be wrong");
    peer.reply(&request, json!([false, uuid(78).to_string(), {}])).await;
    soon("sync", replica.synced().wait_for(|synced| *synced)).await.unwrap();
}

#[tokio::test]
async fn a_slow_reader_of_changes_is_told_to_read_again() {
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
    for n in 0..2000u128 {
        let update = json!({ "Logical_Switch": { uuid(n).to_string(): { "insert": { "name": "s" } } } });
        peer.send(&json!({ "id": null, "method": "update3", "params": [id, ZERO, update] })).await;
    }
    let call = spawn_transact(&client);
    let transact = peer.expect("transact").await;
    peer.reply(&transact, json!([{ "uuid": ["uuid", uuid(1)] }])).await;
    soon("reply", call).await.unwrap().unwrap();
    assert!(matches!(soon("change", changes.next()).await, Some(Change::Resync)));
    assert_eq!(replica.read().table::<LogicalSwitch>().len(), 2000);
    let update = json!({ "Logical_Switch": { uuid(3).to_string(): { "delete": null } } });
    peer.send(&json!({ "id": null, "method": "update3", "params": [id, ZERO, update] })).await;
    let Some(Change::Rows(rows)) = soon("change", changes.next()).await else {
        panic!("no rows after the resync")
    };
    assert_eq!((rows[0].uuid, rows[0].kind), (uuid(3), ChangeKind::Deleted));
}

/// The reason for which the client rejected a server that introduced itself like this.
async fn refusal(fake: &Fake, client: &Client, database: Value) -> String {
    let mut peer = fake.accept().await;
    peer.introduce(database).await;
    while let Some(request) = peer.try_receive().await {
        assert_ne!(request["method"], "echo", "the client stays although it should turn away");
        let result = if request["method"] == "get_schema" { schema() } else { json!({}) };
        let reply = json!({ "id": request["id"], "result": result, "error": null });
        // The client may be gone already.
        let _ = peer.stream.write_all(reply.to_string().as_bytes()).await;
    }
    disconnected(client).await
}

#[tokio::test]
async fn a_server_that_fell_behind_is_refused() {
    let fake = Fake::new();
    let client = Client::new(fake.options());
    let mut peer = fake.accept().await;
    peer.introduce(clustered(true, true, 10)).await;
    peer.handshake_end().await;
    connected(&client).await;
    // The index grows while the session lasts.
    let update =
        json!({ "Database": { ZERO: { "old": { "index": 10 }, "new": clustered(true, true, 20) } } });
    peer.send(&json!({ "id": null, "method": "update", "params": [0, update] })).await;
    client_is_alive(&client, &mut peer).await;
    drop(peer);

    let reason = refusal(&fake, &client, clustered(false, true, 15)).await;
    assert!(reason.contains("behind") && reason.contains("15") && reason.contains("20"), "{reason}");
    let mut peer = fake.accept().await;
    peer.introduce(clustered(false, true, 20)).await;
    peer.handshake_end().await;
    connected(&client).await;
}

/// Runs a call to its end.
async fn client_is_alive(client: &Client, peer: &mut Peer) {
    let call = spawn_transact(client);
    let request = peer.expect("transact").await;
    peer.reply(&request, json!([{ "uuid": ["uuid", uuid(1)] }])).await;
    soon("reply", call).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_leader_only_session_wants_and_keeps_the_leader() {
    let fake = Fake::new();
    let client = Client::new(Options { leader_only: true, ..fake.options() });
    let reason = refusal(&fake, &client, clustered(false, true, 1)).await;
    assert!(reason.contains("not the leader"), "{reason}");
    let mut peer = fake.accept().await;
    peer.introduce(clustered(true, true, 2)).await;
    peer.handshake_end().await;
    connected(&client).await;
    client_is_alive(&client, &mut peer).await;
    let update =
        json!({ "Database": { ZERO: { "old": { "leader": true }, "new": clustered(false, true, 3) } } });
    peer.send(&json!({ "id": null, "method": "update", "params": [0, update] })).await;
    assert!(peer.try_receive().await.is_none(), "the client leaves a server that leads no more");
    let reason = disconnected(&client).await;
    assert!(reason.contains("not the leader"), "{reason}");
}

#[tokio::test]
async fn a_server_cut_off_from_its_cluster_is_left_and_refused() {
    let fake = Fake::new();
    let client = Client::new(fake.options());
    let reason = refusal(&fake, &client, clustered(false, false, 1)).await;
    assert!(reason.contains("lost its cluster"), "{reason}");
    let mut peer = fake.accept().await;
    peer.introduce(clustered(false, true, 2)).await;
    peer.handshake_end().await;
    connected(&client).await;
    let update =
        json!({ "Database": { ZERO: { "old": { "connected": true }, "new": clustered(false, false, 2) } } });
    peer.send(&json!({ "id": null, "method": "update", "params": [0, update] })).await;
    assert!(peer.try_receive().await.is_none(), "the client leaves");
}

#[tokio::test]
async fn a_server_without_server_database_is_used_as_it_is() {
    let fake = Fake::new();
    let client = Client::new(fake.options());
    let mut peer = fake.accept().await;
    for method in ["monitor", "set_db_change_aware"] {
        let request = peer.expect(method).await;
        peer.refuse(&request).await;
    }
    let request = peer.expect("get_schema").await;
    peer.reply(&request, schema()).await;
    connected(&client).await;
    client_is_alive(&client, &mut peer).await;
}
