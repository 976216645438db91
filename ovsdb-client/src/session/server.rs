//! What a server says of itself, and what it asks.

use std::collections::HashMap;

use serde_json::value::RawValue;
use uuid::Uuid;

use crate::connection::Connection;
use crate::model::server::Database;
use crate::options::Options;
use crate::replica::{Core, Load, MonitorProtocol, MonitorSpec};
use crate::rpc;

/// Identifier of the monitor of `_Server`. Those of replicas count from 1.
pub(super) const SERVER_MONITOR: u64 = 0;

/// What a server says of itself, kept current during the session.
pub(super) struct Server {
    pub(super) core: Core,
    pub(super) known: bool,
}

impl Server {
    pub(super) fn new() -> Self {
        Self { core: Core::new(SERVER_MONITOR, MonitorSpec::new().table::<Database>(&[])), known: false }
    }

    /// Applies an update if it is of the `_Server` monitor; tells whether it was.
    pub(super) fn update(&self, monitor: u64, updates: &RawValue) -> Result<bool, String> {
        if monitor != SERVER_MONITOR {
            return Ok(false);
        }
        self.core
            .apply(updates, Load::Update, MonitorProtocol::Monitor)
            .map_err(|error| format!("update of _Server: {error}"))?;
        Ok(true)
    }

    /// Whether the server will do; the error says why not. Raises the newest index seen.
    pub(super) fn check(&self, options: &Options, newest: &mut HashMap<Uuid, i64>) -> Result<(), String> {
        if !self.known {
            return Ok(());
        }
        let tables = self.core.snapshot();
        let table = tables.table::<Database>();
        let Some(database) = table.iter().find(|database| database.name == options.database) else {
            let names: Vec<_> = table.iter().map(|database| database.name.as_str()).collect();
            return Err(format!(
                "the server has no database {:?}, only {}",
                options.database,
                names.join(", ")
            ));
        };
        if database.model == "standalone" {
            return Ok(());
        }
        if !database.connected {
            return Err("the server has lost its cluster".to_owned());
        }
        if options.leader_only && database.model == "clustered" && !database.leader {
            return Err("the server is not the leader of its cluster".to_owned());
        }
        if let (Some(cluster), Some(index)) = (database.cid, database.index) {
            let seen = newest.entry(cluster).or_insert(index);
            if index < *seen {
                return Err(format!(
                    "the server is behind: its log index is {index}, another server had {seen}"
                ));
            }
            *seen = index;
        }
        Ok(())
    }
}

/// Answers a request of the server; it only ever asks for an echo.
pub(super) fn answer(
    connection: &mut Connection,
    id: &RawValue,
    method: &str,
    params: &RawValue,
) -> Result<(), String> {
    let outcome = if method == "echo" { Ok(params) } else { Err("unknown method") };
    connection.send(&rpc::reply(id, outcome).map_err(|error| error.to_string())?);
    Ok(())
}
