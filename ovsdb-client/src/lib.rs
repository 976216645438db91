//! OVSDB client: RFC 7047 and the Open vSwitch extensions of ovsdb-server(7).

mod backoff;
mod client;
pub mod column;
mod condition;
mod connection;
mod datum;
mod endpoint;
mod error;
mod framing;
mod lock;
pub mod model;
mod replica;
mod row;
mod rpc;
mod schema;
mod session;
mod tls;
mod txn;

pub use uuid::Uuid;

pub use backoff::Backoff;
pub use client::{Client, Options, Status};
pub use condition::{Condition, Function};
pub use datum::{Atom, Datum};
pub use endpoint::Endpoint;
pub use error::Error;
pub use lock::Lock;
pub use model::{nb, sb, vswitch};
pub use replica::{
    Change, ChangeKind, ChangeStream, MonitorProtocol, MonitorSpec, Replica, RowChange, Snapshot, Table,
};
pub use row::Row;
pub use schema::{ColumnSchema, Schema, TableSchema};
pub use tls::TlsOptions;
pub use txn::{Columns, Mutator, OpResult, Operation, Transaction, Until};
