//! Network namespaces of a test's own, held by threads that left the machine's. Root is needed.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Pid, geteuid, gettid};

type Job = Box<dyn FnOnce() + Send>;

/// A network namespace, held by a thread that runs what it is given in it; gone when dropped.
#[derive(Debug)]
pub struct Netns {
    jobs: Option<mpsc::Sender<Job>>,
    tid: Pid,
    path: PathBuf,
    thread: Option<thread::JoinHandle<()>>,
}

impl Netns {
    /// A new, empty network namespace. `name` is that of the thread.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self::with(name, CloneFlags::CLONE_NEWNET)
    }

    /// A new, empty network namespace with mounts of its own, of which the machine sees nothing.
    #[must_use]
    pub fn with_mounts(name: &str) -> Self {
        let new = Self::with(name, CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS);
        new.run(make_mounts_private);
        new
    }

    fn with(name: &str, flags: CloneFlags) -> Self {
        assert!(geteuid().is_root(), "tests with network namespaces run as root");
        let (jobs, queue) = mpsc::channel::<Job>();
        let (ready, is_ready) = mpsc::channel();
        let holder = move || {
            let entered = unshare(flags);
            let _ = ready.send((entered, gettid()));
            for job in queue {
                job();
            }
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(holder).expect("a thread");
        let (entered, tid) = is_ready.recv().expect("the thread lives");
        entered.expect("namespaces: run the tests as root outside of a restricted container");
        let path = format!("/proc/{}/task/{tid}/ns/net", std::process::id()).into();
        Self { jobs: Some(jobs), tid, path, thread: Some(thread) }
    }

    /// Runs `job` in the namespace; a panic in it is one here.
    pub fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (result, take) = mpsc::channel();
        let job: Job = Box::new(move || {
            let _ = result.send(catch_unwind(AssertUnwindSafe(job)));
        });
        self.jobs.as_ref().and_then(|jobs| jobs.send(job).ok()).expect("the thread takes jobs");
        take.recv().expect("the thread lives").unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Thread that holds the namespace, as `ip link set … netns` takes it.
    #[must_use]
    pub fn tid(&self) -> Pid {
        self.tid
    }

    /// File of the namespace, as CNI's `CNI_NETNS` names it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
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

/// Runs `test` on a thread in a network and mount namespace of its own, inside a current-thread tokio runtime; a panic in it is one here.
pub fn on_a_node<F, Fut>(test: F)
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = ()>,
{
    Netns::with_mounts("node").run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(test());
    });
}

/// What is mounted from here on is seen in this namespace alone.
fn make_mounts_private() {
    let none: Option<&Path> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).expect("private mounts");
}
