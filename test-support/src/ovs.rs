//! Programs of OVS and OVN from the cache, and OVSDB servers that end with their test.

use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::cache;
use crate::wait::{wait_for, wait_until};

/// How long a server may take to listen.
const PATIENCE: Duration = Duration::from_secs(30);

/// A program of the installation in the cache, or in `$SLIPSTREAM_OVS_BIN`.
///
/// # Panics
/// It is not there.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    match std::env::var_os("SLIPSTREAM_OVS_BIN") {
        Some(bin) => PathBuf::from(bin).join(name),
        None => cache::file(&format!("ovs/bin/{name}")),
    }
}

/// A schema file, such as `ovn-nb.ovsschema`.
///
/// # Panics
/// It is not there.
#[must_use]
pub fn schema(name: &str) -> PathBuf {
    let bin = program("ovsdb-server");
    let path = bin.ancestors().nth(2).expect("programs are in a directory `bin`").join("share").join(name);
    assert!(path.exists(), "{} is missing; run `cargo xtask setup`", path.display());
    path
}

/// A command of the installation that keeps its files in `dir`.
#[expect(clippy::disallowed_methods, reason = "tests start the programs that they test against")]
#[must_use]
pub fn command(name: &str, dir: &Path) -> Command {
    let mut command = Command::new(program(name));
    command.current_dir(dir);
    for directory in ["RUNDIR", "LOGDIR", "DBDIR", "SYSCONFDIR"] {
        command.env(format!("OVS_{directory}"), dir).env(format!("OVN_{directory}"), dir);
    }
    command
}

/// Runs a command to its end.
///
/// # Panics
/// It fails.
pub fn output(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Runs a command to its end; its standard output.
///
/// # Panics
/// It fails, or writes what is not UTF-8.
pub fn text(command: &mut Command) -> String {
    String::from_utf8(output(command).stdout).expect("UTF-8 output")
}

/// A process that is killed when this is dropped.
#[derive(Debug)]
pub struct Process(pub Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A running ovsdb-server with a directory of its own. It listens on `db.sock` there, and is killed when this is dropped.
#[derive(Debug)]
pub struct Server {
    /// Database files, sockets and `server.log`.
    pub dir: TempDir,
    process: Option<Process>,
    args: Vec<String>,
}

impl Server {
    /// A server of the databases `(file, schema)`.
    ///
    /// # Panics
    /// It does not come up.
    #[must_use]
    pub fn start(databases: &[(&str, &str)]) -> Self {
        Self::start_with(databases, |_| vec!["--remote=punix:db.sock".to_owned()])
    }

    /// A server of these databases with further arguments, which make it listen on `db.sock`.
    ///
    /// # Panics
    /// It does not come up.
    pub fn start_with(databases: &[(&str, &str)], more: impl FnOnce(&Path) -> Vec<String>) -> Self {
        Self::start_args(databases, |dir| {
            let mut args: Vec<String> = databases.iter().map(|(file, _)| (*file).to_owned()).collect();
            args.extend(more(dir));
            args
        })
    }

    /// A server with these arguments alone, which name the databases and make it listen on `db.sock`.
    ///
    /// # Panics
    /// It does not come up.
    pub fn start_args(databases: &[(&str, &str)], args: impl FnOnce(&Path) -> Vec<String>) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for (file, of) in databases {
            output(command("ovsdb-tool", dir.path()).arg("create").arg(file).arg(schema(of)));
        }
        let args = args(dir.path());
        let mut server = Self { dir, process: None, args };
        server.run();
        server
    }

    /// Starts the process, again after [`Server::kill`], and waits until it listens.
    ///
    /// # Panics
    /// It runs already, or does not come up.
    pub fn run(&mut self) {
        assert!(self.process.is_none(), "the server runs already");
        let log = File::create(self.path("server.log")).expect("a log file");
        let child = command("ovsdb-server", self.dir.path())
            .args(&self.args)
            .args(["--unixctl=ctl.sock", "--no-chdir"])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("ovsdb-server starts");
        self.process = Some(Process(child));
        wait_until(PATIENCE, "ovsdb-server listens", || UnixStream::connect(self.socket()).is_ok());
    }

    /// Kills the process.
    pub fn kill(&mut self) {
        self.process = None;
        let _ = fs::remove_file(self.socket());
    }

    /// Changes an argument for the next [`Server::run`].
    ///
    /// # Panics
    /// There is no such argument.
    pub fn replace_arg(&mut self, old: &str, new: String) {
        let arg = self.args.iter_mut().find(|arg| *arg == old).expect("the argument is there");
        *arg = new;
    }

    /// The server's process.
    ///
    /// # Panics
    /// It was killed.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("the server runs").0.id()
    }

    /// A file of the server's directory.
    #[must_use]
    pub fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    /// Where it listens.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.path("db.sock")
    }

    /// Where it listens, as OVSDB's programs take it: `unix:PATH`.
    #[must_use]
    pub fn remote(&self) -> String {
        format!("unix:{}", self.socket().display())
    }

    /// What it has logged since it was started.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.path("server.log")).unwrap_or_default()
    }

    /// The TCP port that the server chose for a remote with port 0, from its log.
    ///
    /// # Panics
    /// It says none.
    #[must_use]
    pub fn port(&self) -> u16 {
        wait_for(PATIENCE, "the server tells its port", || {
            let log = self.log();
            let (port, _) = log.split_once("listening on port ")?.1.split_once('\n')?;
            port.trim().parse().ok()
        })
    }

    /// Runs an appctl command on the server.
    ///
    /// # Panics
    /// It fails.
    pub fn appctl(&self, args: &[&str]) -> String {
        text(command("ovs-appctl", self.dir.path()).arg("-t").arg(self.path("ctl.sock")).args(args))
    }

    /// All rows of a database, as `ovsdb-client -f json dump` prints them.
    ///
    /// # Panics
    /// The server does not answer.
    #[must_use]
    pub fn dump(&self, database: &str) -> String {
        let mut dump = command("ovsdb-client", self.dir.path());
        text(dump.args(["-f", "json", "dump", &self.remote(), database]))
    }
}
