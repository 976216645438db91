//! One TCP connection between two pods, in use while something happens to their nodes.

use std::io::{BufRead, BufReader, Read};
use std::net::Ipv4Addr;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use testbed::cluster::Bed;
use testbed::exec;
use testbed::traffic::{self, Place};

/// Its client is a process in the first pod; it ends with this.
pub(super) struct Stream {
    child: Child,
    state: Arc<Mutex<State>>,
}

struct State {
    answers: u64,
    last: Instant,
    longest: Duration,
    end: Option<String>,
}

impl Stream {
    /// Connects `pod` on its node to `server`, and waits for the first answers.
    pub(super) fn open(bed: &Bed, namespace: &str, pod: (&str, &str), server: Ipv4Addr) -> Result<Self> {
        let (name, node) = (pod.0.to_owned(), pod.1.to_owned());
        let place = Place::Pod { node, namespace: namespace.to_owned(), name };
        let mut command = traffic::command(bed, &place, &bed.config().program("testbed"))?;
        command.args(["probe", "stream", &server.to_string(), "8080"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot start the client of the stream")?;
        let (out, err) = (child.stdout.take().context("no pipe")?, child.stderr.take().context("no pipe")?);
        let now = Instant::now();
        let state = State { answers: 0, last: now, longest: Duration::ZERO, end: None };
        let state = Arc::new(Mutex::new(state));
        let shared = Arc::clone(&state);
        thread::Builder::new().name("stream".into()).spawn(move || follow(out, err, &shared))?;
        let stream = Self { child, state };
        stream.goes_on(Duration::from_secs(20))?;
        stream.with(|state| state.longest = Duration::ZERO);
        Ok(stream)
    }

    fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits for answers to questions of now. The connection must never have stood still for longer than `bound`, nor
    /// have been broken. Says the longest pause since it was opened.
    pub(super) fn goes_on(&self, bound: Duration) -> Result<String> {
        let begin = self.with(|state| state.answers);
        exec::retry(bound + Duration::from_secs(20), "the stream goes on", || {
            let (answers, end) = self.with(|state| (state.answers, state.end.clone()));
            if let Some(reason) = end {
                return Err(exec::Fatal(format!("the connection broke: {reason}")).into());
            }
            ensure!(answers > begin + 1, "no answer");
            Ok(())
        })?;
        let longest = self.with(|state| state.longest);
        ensure!(longest <= bound, "the stream stood still for {longest:.1?}, more than {bound:?}");
        Ok(format!("a stream's longest pause is {:.2} s", longest.as_secs_f64()))
    }
}

fn follow(out: impl Read, mut err: impl Read, state: &Mutex<State>) {
    for line in BufReader::new(out).lines() {
        let Some(number) = line.ok().and_then(|line| line.trim().parse().ok()) else { break };
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        state.longest = state.longest.max(state.last.elapsed());
        (state.answers, state.last) = (number, Instant::now());
    }
    let mut reason = String::new();
    // Without a reason there is still an end.
    let _ = err.read_to_string(&mut reason);
    let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    state.lock().unwrap_or_else(PoisonError::into_inner).end = Some(reason);
}

impl Drop for Stream {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
