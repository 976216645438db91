//! A peer that does what a test tells it, in place of a server.

use ovsdb_client::{
    Client, Datum, Endpoint, Error, OpResult, Options, Row, Status, Transaction, Uuid, nb::LogicalSwitch,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use super::{PATIENCE, options, schema_file, soon};

/// Database that the fake server has.
pub const NB: &str = "OVN_Northbound";
/// Transaction identifier of servers that remember none.
pub const ZERO: &str = "00000000-0000-0000-0000-000000000000";

/// Listens where a client connects.
pub struct Fake {
    pub dir: TempDir,
    listener: UnixListener,
}

impl Fake {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("db.sock")).unwrap();
        Self { dir, listener }
    }

    pub fn options(&self) -> Options {
        options(vec![Endpoint::Unix(self.dir.path().join("db.sock"))], NB)
    }

    pub async fn accept(&self) -> Peer {
        let (stream, _) = soon("connection", self.listener.accept()).await.unwrap();
        Peer { stream, buffer: Vec::new() }
    }

    /// Accepts a connection and leads it through the handshake.
    pub async fn session(&self) -> Peer {
        let mut peer = self.accept().await;
        peer.handshake().await;
        peer
    }
}

/// The server's side of a connection.
pub struct Peer {
    pub stream: UnixStream,
    buffer: Vec<u8>,
}

impl Peer {
    /// The next message, `None` when the client has closed.
    pub async fn try_receive(&mut self) -> Option<Value> {
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

    pub async fn receive(&mut self) -> Value {
        self.try_receive().await.expect("the client keeps the connection")
    }

    /// The next message, which must be a request of this method.
    pub async fn expect(&mut self, method: &str) -> Value {
        let message = self.receive().await;
        assert_eq!(message["method"], method, "{message}");
        message
    }

    pub async fn send(&mut self, message: &Value) {
        self.stream.write_all(message.to_string().as_bytes()).await.unwrap();
    }

    pub async fn reply(&mut self, request: &Value, result: Value) {
        self.send(&json!({ "id": request["id"], "result": result, "error": null })).await;
    }

    pub async fn refuse(&mut self, request: &Value) {
        self.send(&json!({ "id": request["id"], "result": null, "error": "unknown method" })).await;
    }

    pub async fn handshake(&mut self) {
        self.introduce(json!({ "name": NB, "model": "standalone", "connected": true, "leader": true })).await;
        self.handshake_end().await;
    }

    /// Tells what the server says of its database.
    pub async fn introduce(&mut self, database: Value) {
        let request = self.expect("monitor").await;
        assert_eq!(request["params"][0], "_Server");
        self.reply(&request, json!({ "Database": { ZERO: { "new": database } } })).await;
    }

    pub async fn handshake_end(&mut self) {
        let request = self.expect("set_db_change_aware").await;
        self.reply(&request, json!({})).await;
        let request = self.expect("get_schema").await;
        self.reply(&request, schema()).await;
    }
}

/// A clustered database as a server would tell of it.
pub fn clustered(leader: bool, connected: bool, index: i64) -> Value {
    let cid = ["uuid", "11111111-2222-4333-8444-555555555555"];
    json!({ "name": NB, "model": "clustered", "cid": cid, "leader": leader, "connected": connected, "index": index })
}

pub fn schema() -> Value {
    serde_json::from_slice(&std::fs::read(schema_file("ovn-nb.ovsschema")).unwrap()).unwrap()
}

pub fn uuid(number: u128) -> Uuid {
    Uuid::from_u128(number)
}

pub fn one_insert() -> Transaction {
    let mut txn = Transaction::new();
    txn.insert(LogicalSwitch::TABLE, [("name", Datum::from("s"))]);
    txn
}

pub fn spawn_transact(client: &Client) -> tokio::task::JoinHandle<Result<Vec<OpResult>, Error>> {
    let client = client.clone();
    tokio::spawn(async move { client.transact(one_insert()).await })
}

pub async fn connected(client: &Client) {
    client.connected(PATIENCE).await.unwrap();
}

pub async fn disconnected(client: &Client) -> String {
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
