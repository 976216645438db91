//! Private OVSDB servers for tests: started in a temporary directory, ended by their own process handle.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "shared by test binaries, each of which uses a part"
)]

pub mod fake;
pub mod nb;

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use ovsdb_client::{Client, Endpoint, Options};
use test_support::ovs;

/// Longest wait for anything that should happen.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Path of a schema file.
pub fn schema_file(name: &str) -> PathBuf {
    ovs::schema(name)
}

/// A command of the OVS installation, with its files kept in `dir`.
pub fn ovs_command(program: &str, dir: &Path) -> Command {
    ovs::command(program, dir)
}

/// Runs a command of the OVS installation to its end.
pub fn ovs_run(program: &str, dir: &Path, args: &[&str]) -> Output {
    ovs::output(ovs::command(program, dir).args(args))
}

/// A running ovsdb-server, killed on drop.
pub struct Server(ovs::Server);

impl Deref for Server {
    type Target = ovs::Server;

    fn deref(&self) -> &ovs::Server {
        &self.0
    }
}

impl DerefMut for Server {
    fn deref_mut(&mut self) -> &mut ovs::Server {
        &mut self.0
    }
}

impl Server {
    /// A server with one database of this schema file, listening on `unix:DIR/db.sock`.
    pub fn start(schema: &str) -> Self {
        Self::start_with(schema, |_dir| Vec::new())
    }

    /// A server with further arguments.
    pub fn start_with(schema: &str, more: impl FnOnce(&Path) -> Vec<String>) -> Self {
        Self(ovs::Server::start_with(&[("db", schema)], |dir| {
            let mut args = vec!["--remote=punix:db.sock".to_owned()];
            args.extend(more(dir));
            args
        }))
    }

    /// A server with these arguments alone; the database is the file `db`, and it must come to listen on `db.sock`.
    pub fn start_args(schema: &str, args: impl FnOnce(&Path) -> Vec<String>) -> Self {
        Self(ovs::Server::start_args(&[("db", schema)], args))
    }

    pub fn endpoint(&self) -> Endpoint {
        Endpoint::Unix(self.socket())
    }

    /// Options for this server.
    pub fn options(&self, database: &str) -> Options {
        options(vec![self.endpoint()], database)
    }

    /// A connected client.
    pub async fn client(&self, database: &str) -> Client {
        let client = Client::new(self.options(database));
        client.connected(PATIENCE).await.expect("the client connects");
        client
    }
}

/// Options with quick reconnection.
pub fn options(endpoints: Vec<Endpoint>, database: &str) -> Options {
    Options {
        endpoints,
        database: database.to_owned(),
        backoff: ovsdb_client::Backoff { min: Duration::from_millis(20), max: Duration::from_millis(200) },
        ..Options::default()
    }
}

/// Fails the test when something takes longer than [`PATIENCE`].
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: nothing within {PATIENCE:?}"),
    }
}
