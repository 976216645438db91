//! Private OVSDB servers for tests: started in a temporary directory, ended by their own process handle.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "shared by test binaries, each of which uses a part"
)]

pub mod fake;
pub mod nb;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use ovsdb_client::{Client, Endpoint, Options};
use tempfile::TempDir;

/// Longest wait for anything that should happen.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Directory of the OVS installation: `bin` and `share` are in it.
pub fn ovs_dir() -> PathBuf {
    let bin = match std::env::var_os("SLIPSTREAM_OVS_BIN") {
        Some(bin) => PathBuf::from(bin),
        None => cache_dir().join("ovs/bin"),
    };
    assert!(
        bin.join("ovsdb-server").exists(),
        "no ovsdb-server in {}; run `cargo xtask setup`",
        bin.display()
    );
    bin.parent().expect("the OVS programs are in a directory named bin").to_owned()
}

fn cache_dir() -> PathBuf {
    let var = |name| std::env::var_os(name).map(PathBuf::from);
    var("SLIPSTREAM_CACHE")
        .or_else(|| var("XDG_CACHE_HOME").map(|dir| dir.join("slipstream")))
        .or_else(|| var("HOME").map(|dir| dir.join(".cache/slipstream")))
        .expect("none of SLIPSTREAM_CACHE, XDG_CACHE_HOME and HOME is set")
}

/// Path of a schema file.
pub fn schema_file(name: &str) -> PathBuf {
    let path = ovs_dir().join("share").join(name);
    assert!(path.exists(), "no {}; run `cargo xtask setup`", path.display());
    path
}

/// A command of the OVS installation, with its files kept in `dir`.
#[expect(clippy::disallowed_methods, reason = "tests start the programs they test against")]
pub fn ovs_command(program: &str, dir: &Path) -> Command {
    let mut command = Command::new(ovs_dir().join("bin").join(program));
    command.current_dir(dir);
    for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
        command.env(variable, dir);
    }
    command
}

/// Runs a command of the OVS installation to its end.
pub fn ovs_run(program: &str, dir: &Path, args: &[&str]) -> Output {
    let output = ovs_command(program, dir).args(args).output().expect("the program starts");
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// A running ovsdb-server, killed on drop.
pub struct Server {
    pub dir: TempDir,
    child: Option<Child>,
    args: Vec<String>,
}

impl Server {
    /// A server with one database of this schema file, listening on `unix:DIR/db.sock`.
    pub fn start(schema: &str) -> Self {
        Self::start_with(schema, |_dir| Vec::new())
    }

    /// The same with further arguments.
    pub fn start_with(schema: &str, more: impl FnOnce(&Path) -> Vec<String>) -> Self {
        Self::start_args(schema, |dir| {
            let mut args = vec!["db".to_owned(), "--remote=punix:db.sock".to_owned()];
            args.extend(more(dir));
            args
        })
    }

    /// A server with these arguments; the database is the file `db`, and it must come to listen on `db.sock`.
    pub fn start_args(schema: &str, args: impl FnOnce(&Path) -> Vec<String>) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let schema = schema_file(schema);
        ovs_run("ovsdb-tool", dir.path(), &["create", "db", schema.to_str().expect("a UTF-8 path")]);
        let args = args(dir.path());
        let mut server = Self { dir, child: None, args };
        server.run();
        server
    }

    /// Starts the process, again after [`Server::kill`], and waits until it listens.
    pub fn run(&mut self) {
        assert!(self.child.is_none(), "the server runs already");
        let log = std::fs::File::create(self.dir.path().join("server.log")).expect("a log file");
        let child = ovs_command("ovsdb-server", self.dir.path())
            .args(&self.args)
            .args(["--unixctl=ctl.sock", "--no-chdir"])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("ovsdb-server starts");
        self.child = Some(child);
        let start = Instant::now();
        while std::os::unix::net::UnixStream::connect(self.socket()).is_err() {
            assert!(start.elapsed() < PATIENCE, "ovsdb-server does not listen: {}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills the process.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("the process can be killed");
            child.wait().expect("the process can be waited for");
        }
        let _ = std::fs::remove_file(self.socket());
    }

    /// Changes an argument for the next [`Server::run`].
    pub fn replace_arg(&mut self, old: &str, new: String) {
        let arg = self.args.iter_mut().find(|arg| *arg == old).expect("the argument is there");
        *arg = new;
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("the server runs").id()
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("db.sock")
    }

    pub fn endpoint(&self) -> Endpoint {
        Endpoint::Unix(self.socket())
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("server.log")).unwrap_or_default()
    }

    /// The TCP port that the server chose for a remote with port 0, from its log.
    pub fn port(&self) -> u16 {
        let start = Instant::now();
        loop {
            let log = self.log();
            let port = log.split_once("listening on port ").and_then(|(_, rest)| rest.split_once('\n'));
            if let Some((port, _)) = port {
                return port.trim().parse().expect("a port number");
            }
            assert!(start.elapsed() < PATIENCE, "no port in the log: {log}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Runs an appctl command on the server.
    pub fn appctl(&self, args: &[&str]) -> String {
        let target = self.dir.path().join("ctl.sock");
        let mut all = vec!["-t", target.to_str().expect("a UTF-8 path")];
        all.extend(args);
        String::from_utf8(ovs_run("ovs-appctl", self.dir.path(), &all).stdout).expect("UTF-8 output")
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

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
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
