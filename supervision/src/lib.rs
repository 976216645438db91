//! Tasks and threads that a process cannot do without. Each has a name; the first that ends, in whatever way, is reported
//! with its cause, and the process is to end with it: whoever started it starts it again, whole. A part that is dead while
//! the rest looks well is worse than a restart, which this project's programs are made for.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};

/// Why a task or thread ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// It came to an end of its own, with this error if it gave one.
    Returned(Option<String>),
    /// It panicked; the message is in the log.
    Panicked,
    /// It was cancelled.
    Cancelled,
    /// It could not be started.
    NotStarted(String),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Returned(None) => f.write_str("it returned"),
            Self::Returned(Some(error)) => f.write_str(error),
            Self::Panicked => f.write_str("it panicked"),
            Self::Cancelled => f.write_str("it was cancelled"),
            Self::NotStarted(error) => write!(f, "it could not be started: {error}"),
        }
    }
}

/// A task or thread that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Its name.
    pub name: String,
    /// Why.
    pub cause: Cause,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` ended: {}", self.name, self.cause)
    }
}

impl std::error::Error for Ended {}

/// What a task may end with.
pub trait Outcome {
    /// The error, where there is one.
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

/// How a running task or thread is told to stop.
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

/// The set of tasks and threads. Clones are the same set.
#[derive(Debug, Clone)]
pub struct Tasks(Arc<Shared>);

/// Where the end of a task or thread is heard of.
#[derive(Debug)]
pub struct Ends(mpsc::UnboundedReceiver<Ended>);

impl Ends {
    /// The next task or thread that has ended. Waits for ever while none has.
    pub async fn next(&mut self) -> Ended {
        match self.0.recv().await {
            Some(ended) => ended,
            // The set is gone, and so are its tasks.
            None => std::future::pending().await,
        }
    }
}

/// Tells of the end when it goes, whatever made it go.
struct Sentinel {
    name: String,
    shared: Arc<Shared>,
    returned: Option<Option<String>>,
}

impl Sentinel {
    /// It came to an end of its own.
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
        // Fails when nobody listens any more: the process is ending.
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
            // The sentinel went with the thread's body and told of a cancellation; this says why.
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

    /// Ends a task (it panics) or thread (it is told to return) by its name, as a test does; false when there is none.
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
        assert_eq!(ends.next().await.to_string(), "`returns` ended: it returned");
        tasks.thread("panics", |_| assert_eq!(1 + 1, 3, "on purpose"));
        assert_eq!(ends.next().await.to_string(), "`panics` ended: it panicked");
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
        assert_eq!(ended, ["`task` ended: it panicked", "`thread` ended: it returned"]);
    }
}
