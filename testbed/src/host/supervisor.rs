//! Starts, ends and reaps the processes of a host, on request over a unix socket: one JSON line each way.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::exec;

/// A process to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// By which it is known afterwards.
    pub name: String,
    pub argv: Vec<String>,
    /// Beside what the host's first process has.
    pub env: Vec<(String, String)>,
    /// Where its standard output and error go, added at the end.
    pub log: PathBuf,
    /// Started again when it ends by itself, as a machine's service manager does.
    #[serde(default)]
    pub service: bool,
}

/// What is asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Request {
    Start(Spec),
    /// SIGKILL, and wait until it is gone.
    Kill(String),
    /// SIGTERM, and SIGKILL if it is still there after this time. Shorter than the limit of [`ask`].
    Stop(String, Duration),
    /// Kill if it runs, then start again as before.
    Restart(String),
    List,
}

/// What is answered.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reply {
    Done,
    Processes(Vec<Process>),
    Error(String),
}

/// One process that was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    pub name: String,
    /// In the host's pid namespace; none when it has ended.
    pub pid: Option<i32>,
    /// How it ended, if it did.
    pub end: Option<String>,
}

#[derive(Debug)]
struct Entry {
    spec: Spec,
    pid: Option<i32>,
    end: Option<String>,
    /// False from when it was asked to end.
    wanted: bool,
}

/// How long a service that ended stays down.
const PAUSE: Duration = Duration::from_secs(1);

type Table = Arc<Mutex<BTreeMap<String, Entry>>>;

/// Serves requests and reaps children, without end.
pub fn run(socket: &Path) -> Result<()> {
    let listener =
        UnixListener::bind(socket).with_context(|| format!("cannot listen on {}", socket.display()))?;
    let table = Table::default();
    let served = Arc::clone(&table);
    thread::Builder::new().name("requests".into()).spawn(move || {
        for stream in listener.incoming().flatten() {
            let table = Arc::clone(&served);
            // A host without threads left is of no use; the client sees its connection closed.
            let _ = thread::Builder::new().name("request".into()).spawn(move || serve(&stream, &table));
        }
    })?;
    reap(&table)
}

/// Asks the supervisor behind `socket`.
pub fn ask(socket: &Path, request: &Request) -> Result<Reply> {
    let mut stream =
        UnixStream::connect(socket).with_context(|| format!("no host behind {}", socket.display()))?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.write_all(format!("{}\n", serde_json::to_string(request)?).as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).context("no answer from the host")?;
    match serde_json::from_str(&line).context("answer of the host")? {
        Reply::Error(error) => bail!("{error}"),
        reply => Ok(reply),
    }
}

fn lock(table: &Table) -> MutexGuard<'_, BTreeMap<String, Entry>> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve(mut stream: &UnixStream, table: &Table) {
    let mut line = String::new();
    let reply = BufReader::new(stream)
        .read_line(&mut line)
        .map_err(anyhow::Error::from)
        .and_then(|_| Ok(serde_json::from_str(&line)?))
        .and_then(|request| answer(request, table))
        .unwrap_or_else(|error| Reply::Error(format!("{error:#}")));
    if let Ok(text) = serde_json::to_string(&reply) {
        // A client that has gone does not want to know.
        let _ = writeln!(stream, "{text}");
    }
}

fn answer(request: Request, table: &Table) -> Result<Reply> {
    match request {
        Request::Start(spec) => start(spec, table)?,
        Request::Kill(name) => end(&name, table)?,
        Request::Stop(name, limit) => {
            if signal(&name, Signal::SIGTERM, limit, table).is_err() {
                end(&name, table)?;
            }
        }
        Request::Restart(name) => {
            end(&name, table)?;
            let spec = lock(table).get(&name).map(|e| e.spec.clone()).with_context(|| unknown(&name))?;
            start(spec, table)?;
        }
        Request::List => {
            let table = lock(table);
            let list =
                table.values().map(|e| Process { name: e.spec.name.clone(), pid: e.pid, end: e.end.clone() });
            return Ok(Reply::Processes(list.collect()));
        }
    }
    Ok(Reply::Done)
}

fn unknown(name: &str) -> String {
    format!("no process named {name} was ever started on this host")
}

fn start(spec: Spec, table: &Table) -> Result<()> {
    // The reaper waits for this lock, so it finds the new number in the table.
    let mut table = lock(table);
    if table.get(&spec.name).is_some_and(|e| e.pid.is_some()) {
        bail!("{} runs already", spec.name);
    }
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&spec.log)
        .with_context(|| format!("cannot open {}", spec.log.display()))?;
    let (program, arguments) =
        spec.argv.split_first().ok_or_else(|| anyhow!("{} has no program", spec.name))?;
    let mut command = exec::command(program);
    command
        .args(arguments)
        .envs(spec.env.iter().map(|(k, v)| (k, v)))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0);
    // Not waited for through this handle: the reaper waits for every child.
    let child = command.spawn().with_context(|| format!("cannot start {program}"))?;
    let pid = i32::try_from(child.id())?;
    table.insert(spec.name.clone(), Entry { spec, pid: Some(pid), end: None, wanted: true });
    Ok(())
}

/// Starts a service after the pause, unless it was started meanwhile or is no longer wanted.
fn start_again(spec: Spec, table: Table) -> Result<()> {
    let again = move || {
        thread::sleep(PAUSE);
        let wanted = lock(&table).get(&spec.name).is_some_and(|e| e.wanted && e.pid.is_none());
        if wanted && let Err(error) = start(spec, &table) {
            // To the log of the host.
            crate::ui::say(format_args!("{error:#}"));
        }
    };
    thread::Builder::new().name("service".into()).spawn(again).context("cannot start a thread")?;
    Ok(())
}

fn end(name: &str, table: &Table) -> Result<()> {
    // A process in the middle of a call that waits for the kernel (network namespaces that are taken down, RCU) ends when that returns.
    signal(name, Signal::SIGKILL, Duration::from_secs(40), table)
}

/// Sends a signal and waits for the end.
fn signal(name: &str, signal: Signal, limit: Duration, table: &Table) -> Result<()> {
    let pid = {
        let mut table = lock(table);
        let entry = table.get_mut(name).with_context(|| unknown(name))?;
        entry.wanted = false;
        entry.pid
    };
    let Some(pid) = pid else { return Ok(()) };
    match kill(Pid::from_raw(pid), signal) {
        Ok(()) | Err(Errno::ESRCH) => {}
        Err(error) => return Err(error).with_context(|| format!("cannot end {name}")),
    }
    let limit = Instant::now() + limit;
    while lock(table).get(name).is_some_and(|e| e.pid == Some(pid)) {
        if Instant::now() > limit {
            bail!("{name} got {signal} and does not end");
        }
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Waits for children without end: our own, and those that lost their parent in this pid namespace.
fn reap(table: &Table) -> Result<()> {
    loop {
        let (pid, how) = match waitpid(None, None) {
            Ok(WaitStatus::Exited(pid, code)) => (pid, format!("exit code {code}")),
            Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, signal.to_string()),
            Ok(_) | Err(Errno::EINTR) => continue,
            Err(Errno::ECHILD) => {
                thread::sleep(Duration::from_millis(20));
                continue;
            }
            Err(error) => return Err(error).context("waiting for children"),
        };
        if let Some(entry) = lock(table).values_mut().find(|e| e.pid == Some(pid.as_raw())) {
            entry.pid = None;
            entry.end = Some(how);
            if entry.wanted && entry.spec.service {
                start_again(entry.spec.clone(), Arc::clone(table))?;
            }
        }
    }
}
