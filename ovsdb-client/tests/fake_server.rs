//! The client against a peer that misbehaves in ways a real server does so only now and then.

#![allow(clippy::unwrap_used, reason = "helpers of tests are test code")]

mod support;

use std::time::Duration;

use ovsdb_client::nb::{LogicalSwitch, LogicalSwitchPort};
use ovsdb_client::{
    Change, ChangeKind, Client, Datum, Endpoint, Error, MonitorSpec, Options, Row, Status, Transaction, Uuid,
};
use serde_json::{Value, json};
use support::{options, soon};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

const NB: &str = "OVN_Northbound";
const ZERO: &str = "00000000-0000-0000-0000-000000000000";

/// Listens where a client connects.
struct Fake {
    dir: TempDir,
    listener: UnixListener,
}

impl Fake {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("db.sock")).unwrap();
        Self { dir, listener }
    }

    fn options(&self) -> Options {
        options(vec![Endpoint::Unix(self.dir.path().join("db.sock"))], NB)
    }

    async fn accept(&self) -> Peer {
        let (stream, _) = soon("connection", self.listener.accept()).await.unwrap();
        Peer { stream, buffer: Vec::new() }
    }

    /// Accepts a connection and leads it through the handshake.
    async fn session(&self) -> Peer {
        let mut peer = self.accept().await;
        peer.handshake().await;
        peer
    }
}

/// The server's side of a connection.
struct Peer {
    stream: UnixStream,
    buffer: Vec<u8>,
}

impl Peer {
    /// The next message, `None` when the client has closed.
    async fn try_receive(&mut self) -> Option<Value> {
        loop {
            let mut values = serde_json::Deserializer::from_slice(&self.buffer).into_iter::<Value>();
            if let Some(Ok(value)) = values.next() {
                let used = values.byte_offset();
                self.buffer.drain(..used);
                return Some(value);
            }
            let read = soon("message of the client", self.stream.read_buf(&mut self.buffer)).await;
            if !matches!(read, Ok(count) if count > 0) {
                return None;
            }
        }
    }

    async fn receive(&mut self) -> Value {
        self.try_receive().await.expect("the client keeps the connection")
    }

    /// The next message, which must be a request of this method.
    async fn expect(&mut self, method: &str) -> Value {
        let message = self.receive().await;
        assert_eq!(message["method"], method, "{message}");
        message
    }

    async fn send(&mut self, message: &Value) {
        self.stream.write_all(message.to_string().as_bytes()).await.unwrap();
    }

    async fn reply(&mut self, request: &Value, result: Value) {
        self.send(&json!({ "id": request["id"], "result": result, "error": null })).await;
    }

    async fn refuse(&mut self, request: &Value) {
        self.send(&json!({ "id": request["id"], "result": null, "error": "unknown method" })).await;
    }

    async fn handshake(&mut self) {
        self.introduce(json!({ "name": NB, "model": "standalone", "connected": true, "leader": true })).await;
        self.handshake_end().await;
    }

    /// Tells what the server says of its database.
    async fn introduce(&mut self, database: Value) {
        let request = self.expect("monitor").await;
        assert_eq!(request["params"][0], "_Server");
        self.reply(&request, json!({ "Database": { ZERO: { "new": database } } })).await;
    }

    async fn handshake_end(&mut self) {
        let request = self.expect("set_db_change_aware").await;
        self.reply(&request, json!({})).await;
        let request = self.expect("get_schema").await;
        self.reply(&request, schema()).await;
    }
}

/// A clustered database as a server would tell of it.
fn clustered(leader: bool, connected: bool, index: i64) -> Value {
    let cid = ["uuid", "11111111-2222-4333-8444-555555555555"];
    json!({ "name": NB, "model": "clustered", "cid": cid, "leader": leader, "connected": connected, "index": index })
}

fn schema() -> Value {
    serde_json::from_slice(&std::fs::read(support::schema_file("ovn-nb.ovsschema")).unwrap()).unwrap()
}

fn uuid(number: u128) -> Uuid {
    Uuid::from_u128(number)
}

fn one_insert() -> Transaction {
    let mut txn = Transaction::new();
    txn.insert(LogicalSwitch::TABLE, [("name", Datum::from("s"))]);
    txn
}

fn spawn_transact(client: &Client) -> tokio::task::JoinHandle<Result<Vec<ovsdb_client::OpResult>, Error>> {
    let client = client.clone();
    tokio::spawn(async move { client.transact(one_insert()).await })
}

async fn connected(client: &Client) {
    client.connected(support::PATIENCE).await.unwrap();
}

async fn disconnected(client: &Client) -> String {
    let mut status = client.status();
    let status = soon(
        "loss of the session",
        status.wait_for(|s| matches!(s, Status::Connecting { last_error: Some(_) })),
    )
    .await;
    match &*status.unwrap() {
        Status::Connecting { last_error: Some(error) } => error.clone(),
        other => panic!("{other:?}"),
    }
}

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
    // The server fills its own direction before it reads: a client that only writes would stand still.
    let noise = json!({ "id": null, "method": "noise", "params": ["n".repeat(8 << 20)] });
    peer.send(&noise).await;
    let request = peer.expect("transact").await;
    assert_eq!(request["params"][1]["comment"].as_str().unwrap().len(), comment.len());
    peer.reply(&request, json!([{}])).await;
    soon("reply", call).await.unwrap().unwrap();
}

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

/// The reason for which the client turned away from a server that introduced itself like this.
async fn refusal(fake: &Fake, client: &Client, database: Value) -> String {
    let mut peer = fake.accept().await;
    peer.introduce(database).await;
    while let Some(request) = peer.try_receive().await {
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
