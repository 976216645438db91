//! From an open connection to one that is worth keeping: what the server says of itself in its `_Server` database
//! (ovsdb-server(7)), and the schema.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::live::Live;
use super::server::{SERVER_MONITOR, Server, answer};
use crate::connection::{Connection, Event};
use crate::model::server::Database;
use crate::options::Options;
use crate::replica::{Load, MonitorProtocol};
use crate::rpc::{self, Message};
use crate::{Endpoint, Row, Schema};

/// Opens a connection and learns what is needed to use it.
pub(super) async fn open(options: &Arc<Options>, endpoint: &Endpoint) -> Result<Live, String> {
    let connection = Connection::open(endpoint, options.tls.as_ref(), options.probe_interval).await?;
    let mut shake = Handshake { connection, next_id: 0, server: Server::new() };
    let columns = json!({ Database::TABLE: [{ "columns": Database::COLUMNS }] });
    match shake.ask("monitor", &json!(["_Server", SERVER_MONITOR, columns])).await? {
        Ok(rows) => {
            shake
                .server
                .core
                .apply(&rows, Load::Full, MonitorProtocol::Monitor)
                .map_err(|error| format!("contents of _Server: {error}"))?;
            shake.server.known = true;
        }
        Err(error) => tracing::debug!(%endpoint, error, "the server has no _Server database"),
    }
    // Without this the server ends the connection when a database is added or its schema changes.
    if let Err(error) = shake.ask("set_db_change_aware", &json!([true])).await? {
        tracing::debug!(%endpoint, error, "the server knows no set_db_change_aware");
    }
    // Refused before the schema is read: a follower answers that one, a server without the database does not.
    shake.server.check(options, &mut HashMap::new())?;
    let schema = shake
        .ask("get_schema", &json!([options.database]))
        .await?
        .map_err(|error| format!("get_schema: {error}"))?;
    let schema: Schema = serde_json::from_str(schema.get())
        .map_err(|error| format!("schema of {}: {error}", options.database))?;
    Ok(Live::new(shake.connection, shake.next_id, shake.server, Arc::new(schema), Arc::clone(options)))
}

/// One question at a time.
struct Handshake {
    connection: Connection,
    next_id: u64,
    server: Server,
}

impl Handshake {
    /// Sends a request and waits for its reply. Outer error: the connection is of no use. Inner: the server refused.
    async fn ask(
        &mut self,
        method: &str,
        params: &impl Serialize,
    ) -> Result<Result<Box<RawValue>, String>, String> {
        self.next_id += 1;
        let wanted = self.next_id;
        self.connection.send(&rpc::request(wanted, method, params).map_err(|error| error.to_string())?);
        loop {
            let bytes = match self.connection.event().await? {
                Event::Message(bytes) => bytes,
                Event::Idle => {
                    self.next_id += 1;
                    self.connection.send(
                        &rpc::request(self.next_id, "echo", &json!([])).map_err(|error| error.to_string())?,
                    );
                    continue;
                }
            };
            let text =
                std::str::from_utf8(&bytes).map_err(|error| format!("message is not UTF-8: {error}"))?;
            match Message::parse(text)? {
                Message::Reply { id, outcome } if id == wanted => {
                    return Ok(outcome.map(ToOwned::to_owned).map_err(|error| error.get().to_owned()));
                }
                Message::Request { id, method, params } => answer(&mut self.connection, id, &method, params)?,
                Message::Notification { method, params } if method == "update" => {
                    let (monitor, updates): (u64, &RawValue) =
                        serde_json::from_str(params.get()).map_err(|error| format!("update: {error}"))?;
                    self.server.update(monitor, updates)?;
                }
                Message::Reply { .. } | Message::Notification { .. } | Message::Stray => {}
            }
        }
    }
}
