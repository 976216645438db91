//! Namespaces of the test's own: a thread that left the machine's network and mounts, and what can be done in it.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    net::if_::if_nametoindex,
    sched::{CloneFlags, unshare},
    unistd::{Pid, geteuid, gettid},
};

/// Longest wait for something that the kernel does a little later.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

/// A network namespace, held by a thread that runs what it is given in it.
pub(crate) struct Netns {
    jobs: Option<mpsc::Sender<Job>>,
    tid: Pid,
    thread: Option<thread::JoinHandle<()>>,
}

impl Netns {
    /// A new, empty network namespace.
    pub(crate) fn new(name: &str) -> Self {
        Self::with(name, CloneFlags::CLONE_NEWNET)
    }

    fn with(name: &str, flags: CloneFlags) -> Self {
        assert!(geteuid().is_root(), "the eBPF tests load programs into the kernel: run them as root");
        let (jobs, queue) = mpsc::channel::<Job>();
        let (ready, is_ready) = mpsc::channel();
        let holder = move || {
            let entered = unshare(flags);
            ready.send((entered, gettid())).unwrap();
            for job in queue {
                job();
            }
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(holder).unwrap();
        let (entered, tid) = is_ready.recv().unwrap();
        entered.expect("cannot make namespaces: run the tests as root outside of a restricted container");
        Self { jobs: Some(jobs), tid, thread: Some(thread) }
    }

    /// Runs `job` in the namespace; a panic in it is one here.
    pub(crate) fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (result, take) = mpsc::channel();
        let job: Job = Box::new(move || result.send(catch_unwind(AssertUnwindSafe(job))).unwrap());
        self.jobs.as_ref().unwrap().send(job).unwrap();
        take.recv().unwrap().unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Runs a command line in the namespace; it must succeed.
    pub(crate) fn sh(&self, line: &str) {
        let line = line.to_owned();
        self.run(move || must(&line));
    }

    /// Whether a command line succeeds in the namespace.
    pub(crate) fn try_sh(&self, line: &str) -> bool {
        let line = line.to_owned();
        self.run(move || output(&line).status.success())
    }

    /// Thread that holds the namespace, as `ip link set … netns` takes it.
    pub(crate) fn tid(&self) -> Pid {
        self.tid
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A node: a network namespace with a bpffs.
pub(crate) struct Node {
    net: Netns,
    bpffs: tempfile::TempDir,
}

impl Node {
    pub(crate) fn new() -> Self {
        let net = Netns::with("node", CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS);
        let bpffs = tempfile::tempdir().unwrap();
        let dir = bpffs.path().to_path_buf();
        net.run(move || {
            let none: Option<&Path> = None;
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
            mount(Some("bpf"), &dir, Some("bpf"), MsFlags::empty(), none).unwrap();
        });
        Self { net, bpffs }
    }

    /// Where the agent's pins go.
    pub(crate) fn pins(&self) -> PathBuf {
        self.bpffs.path().join("slipstream")
    }

    /// Names of everything under a directory of the node's bpffs, which only the node sees.
    pub(crate) fn list(&self, dir: &Path) -> Vec<String> {
        let dir = dir.to_path_buf();
        self.run(move || {
            let Ok(entries) = std::fs::read_dir(&dir) else { return Vec::new() };
            let mut names: Vec<_> =
                entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
            names.sort();
            names
        })
    }

    /// Interface index by name.
    pub(crate) fn ifindex(&self, name: &str) -> u32 {
        let name = name.to_owned();
        self.run(move || if_nametoindex(name.as_str()).unwrap())
    }
}

impl std::ops::Deref for Node {
    type Target = Netns;

    fn deref(&self) -> &Netns {
        &self.net
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let dir = self.bpffs.path().to_path_buf();
        self.net.run(move || {
            let _ = umount2(&dir, MntFlags::MNT_DETACH);
        });
    }
}

/// Waits until `condition` holds; false if it does not within [`PATIENCE`].
pub(crate) fn eventually(mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + PATIENCE;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() > end {
            return false;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Runs a command line in the namespace of the calling thread; it must succeed.
pub(crate) fn must(line: &str) {
    let output = output(line);
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}

#[expect(clippy::disallowed_methods, reason = "tests set up namespaces with the usual tools")]
fn output(line: &str) -> Output {
    let mut words = line.split_whitespace();
    Command::new(words.next().unwrap()).args(words).output().unwrap_or_else(|error| panic!("{line}: {error}"))
}
