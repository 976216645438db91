//! OVSDB client: RFC 7047 and the Open vSwitch extensions of ovsdb-server(7), with typed rows.
//!
//! # Session
//!
//! A [`Client`] is a handle on one database. [`Client::new`] starts a task that connects to the first usable one of
//! [`Options::endpoints`], and reconnects without end: to the next endpoint at once, and after a full round without success with a
//! jittered wait that doubles. [`Client::status`] shows the state, [`Client::connected`] waits for a session.
//!
//! Before a server is used its `_Server` database is read. A server without the database, cut off from its Raft cluster,
//! with an older log than one we saw before, or, with [`Options::leader_only`], not the leader, is passed over, and left
//! as soon as it becomes so. Silence is ended by an own probe, and probes of the server are answered.
//!
//! # Calls
//!
//! Any number of calls may be under way at once. [`Client::transact`] carries out a [`Transaction`]. Its errors are
//! precise about what may have happened:
//!
//! | error | what happened on the server |
//! |---|---|
//! | [`Error::NotConnected`] | nothing: the request was not sent |
//! | [`Error::Operation`], [`Error::Commit`] | nothing: one operation, or the commit, was rejected |
//! | [`Error::OutcomeUnknown`], [`Error::Timeout`] | unknown: no reply came |
//!
//! There are no retries inside: after an unknown outcome only the caller knows whether doing it twice hurts. Dropping the
//! future of a call is always safe; replies find their call by identifier, and a waiting transaction is canceled.
//!
//! # Replicas
//!
//! [`Client::monitor`] keeps the tables of a [`MonitorSpec`] as a [`Replica`]: rows of the structs in [`model`], by
//! identifier and by indexes, and a [`ChangeStream`]. What holds:
//!
//! - When `monitor` returns, the contents are complete.
//! - When `transact` returns `Ok`, every replica of the same client already shows the effect: the server sends the update
//!   before the reply, and one task handles both in order.
//! - One update of the server (one transaction) is applied at once and is one [`Change::Rows`].
//! - A lost session leaves the contents as they were. The next session brings them up to date: by what was missed where the
//!   server remembers it (`monitor_cond_since` in a cluster), else by everything. Either way the change stream reports only
//!   the net difference. [`Replica::is_synced`] is false in between.
//! - A reader of changes that falls behind gets [`Change::Resync`] and reads the tables again; nothing grows without bound.
//!
//! Tables and columns that the server's schema lacks are left out of monitors; [`Client::schema`] returns what it has.
//!
//! # Locks
//!
//! [`Client::lock`] requests an OVSDB lock, again after every reconnect. Together with [`Transaction::assert_lock`] it
//! fences writers: a transaction of a client that has lost the lock fails with `not owner`.
//!
//! # Example
//!
//! ```no_run
//! use ovsdb_client::nb::{LogicalSwitch, LogicalSwitchPort};
//! use ovsdb_client::{Client, Condition, Datum, Endpoint, MonitorSpec, Mutator, Options, Row, Transaction};
//! # use std::time::Duration;
//! # async fn example() -> Result<(), ovsdb_client::Error> {
//! let client = Client::new(Options {
//!     endpoints: Endpoint::parse_list("tcp:192.0.2.1:6641,tcp:192.0.2.2:6641")?,
//!     database: ovsdb_client::nb::DATABASE.to_owned(),
//!     leader_only: true,
//!     ..Options::default()
//! });
//! client.connected(Duration::from_secs(10)).await?;
//! let replica = client
//!     .monitor(
//!         MonitorSpec::new()
//!             .table::<LogicalSwitch>(&["name", "ports"])
//!             .table::<LogicalSwitchPort>(&[])
//!             .index::<LogicalSwitchPort>("name", |port| vec![port.name.clone()]),
//!     )
//!     .await?;
//!
//! let mut txn = Transaction::new();
//! let port = txn.insert(LogicalSwitchPort::TABLE, [("name", Datum::from("default_web-0"))]);
//! txn.mutate(LogicalSwitch::TABLE, vec![Condition::equal("name", "n1")], [("ports", Mutator::Insert, port.into())]);
//! client.transact(txn).await?;
//! assert!(replica.read().table::<LogicalSwitchPort>().by_index("name", "default_web-0").next().is_some());
//! # Ok(())
//! # }
//! ```

#![warn(missing_docs, clippy::missing_errors_doc)]

mod backoff;
mod client;
pub mod column;
mod command;
mod condition;
mod connection;
mod datum;
mod endpoint;
mod error;
mod framing;
#[doc(hidden)]
pub mod fuzzing;
mod lock;
pub mod model;
mod monitor;
mod options;
mod replica;
mod row;
mod rpc;
mod schema;
mod session;
mod sorted;
mod tls;
mod txn;

pub use uuid::Uuid;

pub use backoff::Backoff;
pub use client::Client;
pub use condition::{Condition, Function};
pub use datum::{Atom, Datum};
pub use endpoint::Endpoint;
pub use error::Error;
pub use lock::Lock;
pub use model::{nb, sb, vswitch};
pub use monitor::Replica;
pub use options::{Options, Status};
pub use replica::{
    Change, ChangeKind, ChangeStream, MonitorProtocol, MonitorSpec, RowChange, Snapshot, Table,
};
pub use row::Row;
pub use schema::{ColumnSchema, Schema, TableSchema};
pub use sorted::{Kept, Map, MapIter, Set};
pub use tls::TlsOptions;
pub use txn::{Columns, Mutator, OpResult, Operation, Transaction, Until};
