//! Supervision of vital tasks and threads. Each has a name; when one ends for any reason, its end is reported with the cause, and
//! the process should exit so that its supervisor restarts it. A process with a dead part that looks healthy is worse than a
//! restart. [`log`] is the process's log.
#![forbid(unsafe_code)]
#![warn(missing_docs, clippy::missing_errors_doc)]

pub mod log;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};

/// Why a task or thread ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// Returned, with an error if it returned one.
    Returned(Option<String>),
    /// Panicked; the message is in the log.
    Panicked,
    /// Was cancelled.
    Cancelled,
    /// Could not be started, because of this error.
    NotStarted(String),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Returned(None) => f.write_str("returned"),
            Self::Returned(Some(error)) => f.write_str(error),
            Self::Panicked => f.write_str("panicked"),
            Self::Cancelled => f.write_str("cancelled"),
            Self::NotStarted(error) => write!(f, "cannot be started: {error}"),
        }
    }
}

/// A task or thread that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Name of the task or thread.
    pub name: String,
    /// Why it ended.
    pub cause: Cause,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` ended: {}", self.name, self.cause)
    }
}

impl std::error::Error for Ended {}

/// Return type of a supervised task.
pub trait Outcome {
    /// Error text, or `None` for success.
    fn error(self) -> Option<String>;
}

impl Outcome for () {
    fn error(self) -> Option<String> {
        None
    }
}

impl<E: fmt::Display> Outcome for Result<(), E> {
    fn error(self) -> Option<String> {
        // With all causes, for errors that print them so.
        self.err().map(|error| format!("{error:#}"))
    }
}

/// Stop signal of a running task or thread.
#[derive(Debug, Default)]
struct Running {
    /// For tasks.
    stop: Notify,
    /// For threads.
    stopped: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Shared {
    ends: mpsc::UnboundedSender<Ended>,
    running: Mutex<BTreeMap<String, Arc<Running>>>,
}

/// A set of supervised tasks and threads. Clones share it.
#[derive(Debug, Clone)]
pub struct Tasks(Arc<Shared>);

/// Receives the ends of tasks and threads.
#[derive(Debug)]
pub struct Ends(mpsc::UnboundedReceiver<Ended>);

impl Ends {
    /// Waits for the next task or thread that ends.
    pub async fn next(&mut self) -> Ended {
        match self.0.recv().await {
            Some(ended) => ended,
            // The set is gone, and so are its tasks.
            None => std::future::pending().await,
        }
    }
}

/// Reports the end of its task or thread when dropped.
struct Sentinel {
    name: String,
    shared: Arc<Shared>,
    returned: Option<Option<String>>,
}

impl Sentinel {
    /// Marks the task or thread as returned.
    fn finish(mut self, error: Option<String>) {
        self.returned = Some(error);
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        self.shared.running.lock().remove(&self.name);
        let cause = match self.returned.take() {
            Some(error) => Cause::Returned(error),
            None if std::thread::panicking() => Cause::Panicked,
            None => Cause::Cancelled,
        };
        // Fails when the receiver is gone: the process is exiting.
        let _ = self.shared.ends.send(Ended { name: std::mem::take(&mut self.name), cause });
    }
}

impl Tasks {
    /// An empty set.
    #[must_use]
    pub fn new() -> (Self, Ends) {
        let (ends, ended) = mpsc::unbounded_channel();
        (Self(Arc::new(Shared { ends, running: Mutex::default() })), Ends(ended))
    }

    fn enter(&self, name: &str) -> (Sentinel, Arc<Running>) {
        let running = Arc::new(Running::default());
        self.0.running.lock().insert(name.to_owned(), Arc::clone(&running));
        (Sentinel { name: name.to_owned(), shared: Arc::clone(&self.0), returned: None }, running)
    }

    /// Starts a task on the current runtime. Names are those of a log and unique in a process.
    pub fn spawn<F>(&self, name: &str, task: F)
    where
        F: Future + Send + 'static,
        F::Output: Outcome,
    {
        let (sentinel, running) = self.enter(name);
        tokio::spawn(async move {
            tokio::select! {
                outcome = task => sentinel.finish(outcome.error()),
                () = running.stop.notified() => panic!("ended by a test"),
            }
        });
    }

    /// Starts a thread. It returns soon after the flag that it is given has been set, as a test does.
    pub fn thread<F, O>(&self, name: &str, body: F)
    where
        F: FnOnce(&AtomicBool) -> O + Send + 'static,
        O: Outcome,
    {
        let (sentinel, running) = self.enter(name);
        let stop = Arc::clone(&running.stopped);
        let started = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let outcome = body(&stop);
            sentinel.finish(outcome.error());
        });
        if let Err(error) = started {
            // The sentinel was dropped with the thread's closure and reported a cancellation; this reports the reason.
            let cause = Cause::NotStarted(error.to_string());
            tracing::error!(name, %cause, "thread");
            let _ = self.0.ends.send(Ended { name: name.to_owned(), cause });
        }
    }

    /// Names of what runs now, sorted.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.0.running.lock().keys().cloned().collect()
    }

    /// Ends a task (by a panic) or thread (by its stop flag) by name, for tests; returns false when there is none.
    #[cfg(any(test, feature = "test-hooks"))]
    pub fn end(&self, name: &str) -> bool {
        let Some(running) = self.0.running.lock().get(name).cloned() else { return false };
        running.stopped.store(true, std::sync::atomic::Ordering::Relaxed);
        running.stop.notify_one();
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[tokio::test]
    async fn the_first_end_is_told_with_its_cause() {
        let (tasks, mut ends) = Tasks::new();
        tasks.spawn("stays", std::future::pending::<()>());
        tasks.spawn("fails", async { Err::<(), _>("no luck") });
        assert_eq!(ends.next().await.to_string(), "`fails` ended: no luck");
        assert_eq!(tasks.names(), ["stays"]);
        tasks.spawn("returns", async {});
        assert_eq!(ends.next().await, Ended { name: "returns".to_owned(), cause: Cause::Returned(None) });
    }

    #[tokio::test]
    async fn a_panic_is_told() {
        let (tasks, mut ends) = Tasks::new();
        tasks.spawn("panics", async {
            tokio::task::yield_now().await;
            assert_eq!(1 + 1, 3, "on purpose");
        });
        assert_eq!(ends.next().await, Ended { name: "panics".to_owned(), cause: Cause::Panicked });
    }

    #[tokio::test]
    async fn a_thread_that_ends_is_told_whether_it_returns_or_panics() {
        let (tasks, mut ends) = Tasks::new();
        tasks.thread("returns", |_| {});
        assert_eq!(ends.next().await.to_string(), "`returns` ended: returned");
        tasks.thread("panics", |_| assert_eq!(1 + 1, 3, "on purpose"));
        assert_eq!(ends.next().await.to_string(), "`panics` ended: panicked");
    }

    #[tokio::test]
    async fn a_test_can_end_tasks_and_threads_by_name() {
        let (tasks, mut ends) = Tasks::new();
        tasks.spawn("task", std::future::pending::<()>());
        tasks.thread("thread", |stop| {
            while !stop.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
        });
        assert_eq!(tasks.names(), ["task", "thread"]);
        assert!(tasks.end("task") && tasks.end("thread") && !tasks.end("neither"));
        let mut ended = [ends.next().await.to_string(), ends.next().await.to_string()];
        ended.sort();
        assert_eq!(ended, ["`task` ended: panicked", "`thread` ended: returned"]);
    }
}
