//! Rows of `_Server`, the database in which a server tells about itself (ovsdb-server(5)). Written by hand: its schema is
//! part of the server.

use crate::Uuid;
use crate::row::table;

table! {
    /// Table `Database`: the databases of the server. Only the columns that tell whether a server will do.
    Database = "Database" {
        /// Cluster.
        cid: Option<Uuid> = "cid",
        /// Whether the server is in contact with a majority of its cluster.
        connected: bool = "connected",
        /// Newest Raft log entry.
        index: Option<i64> = "index",
        /// Whether the server leads its cluster.
        leader: bool = "leader",
        /// `standalone`, `clustered` or `relay`.
        model: String = "model",
        /// Name of the database.
        name: String = "name",
    }
}
