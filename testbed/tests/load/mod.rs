//! Load between two pods while something happens to their nodes: a TCP connection on which a question follows each answer, and
//! numbered datagrams at a steady pace.

use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use testbed::cluster::Bed;
use testbed::tools::load::{Arrival, Dial, Order, PORT};
use testbed::traffic::{self, Place};

/// Milliseconds between two datagrams.
const PAUSE: u64 = 10;

/// Its processes end with this.
pub(crate) struct Load {
    children: Vec<Child>,
    seen: Arc<Mutex<Seen>>,
    has_stream: bool,
}

#[derive(Debug, Default)]
struct Seen {
    /// When the last answer came.
    answer: Option<Instant>,
    answers: u32,
    /// When the last datagram came, and its number; the number of the last one before the report began.
    datagram: Option<Instant>,
    number: u32,
    base: u32,
    arrived: u32,
    silence: Duration,
    gap: Duration,
    end: Option<String>,
}

/// What became of the load since the report before.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Report {
    /// Longest time without an answer on the TCP connection.
    pub(crate) silence: Duration,
    /// Longest time without a datagram.
    pub(crate) gap: Duration,
    pub(crate) sent: u32,
    pub(crate) lost: u32,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { silence, gap, sent, lost } = self;
        write!(
            f,
            "TCP silent for at most {:.2} s; {lost} of {sent} datagrams lost, none for at most {:.2} s",
            silence.as_secs_f64(),
            gap.as_secs_f64()
        )
    }
}

/// A pod of the namespace `default`, on a node.
pub(crate) fn pod(name: &str, node: &str) -> Place {
    Place::Pod { node: node.into(), namespace: "default".into(), name: name.into() }
}

fn client(bed: &Bed, place: &Place, args: &[&str]) -> Command {
    let mut command = traffic::command(bed, place, &bed.config().program("testbed")).expect("a command");
    command.arg("probe").args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

impl Load {
    /// From one pod to another, whose address is given; returns when both protocols arrive.
    pub(crate) fn start(bed: &Bed, from: &Place, to: &Place, address: &str) -> Self {
        let mut stream = client(bed, from, &["stream", address, "8080"]).spawn().expect("a client");
        let (out, err) = (stream.stdout.take().expect("a pipe"), stream.stderr.take().expect("a pipe"));
        let mut load = Self::datagrams_to(bed, from, to, address);
        let shared = Arc::clone(&load.seen);
        read("answers", move || answers(out, err, &shared));
        load.children.push(stream);
        load.has_stream = true;
        load.goes_on("the load begins");
        load
    }

    /// Datagrams alone.
    pub(crate) fn datagrams(bed: &Bed, from: &Place, to: &Place, address: &str) -> Self {
        let load = Self::datagrams_to(bed, from, to, address);
        load.goes_on("datagrams begin");
        load
    }

    fn datagrams_to(bed: &Bed, from: &Place, to: &Place, address: &str) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let mut receiver = client(bed, to, &["load"]).spawn().expect("a receiver");
        let (out, shared) = (receiver.stdout.take().expect("a pipe"), Arc::clone(&seen));
        read("datagrams", move || datagrams(out, &shared));
        let mut sender =
            client(bed, from, &["load", "--pause", &PAUSE.to_string()]).spawn().expect("a sender");
        let to = format!("{address}:{PORT}").parse().expect("an address");
        let order = serde_json::to_string(&Order::Dial(Dial { flow: 1, udp: true, to })).expect("an order");
        let orders = sender.stdin.as_mut().expect("a pipe");
        writeln!(orders, "{order}").expect("the order is taken");
        Self { children: vec![receiver, sender], seen, has_stream: false }
    }

    fn with<T>(&self, look: impl FnOnce(&mut Seen) -> T) -> T {
        look(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until both protocols arrive; what was seen since the last report.
    pub(crate) fn goes_on(&self, what: &str) -> Report {
        let (answers, number) = self.with(|seen| (seen.answers, seen.number));
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let (more, broken) = self.with(|seen| {
                (
                    (!self.has_stream || seen.answers > answers + 2) && seen.number > number + 2,
                    seen.end.clone(),
                )
            });
            assert!(broken.is_none(), "{what}: the TCP connection broke: {broken:?}");
            if more {
                break;
            }
            assert!(Instant::now() < end, "{what}: {:?}", self.with(|seen| format!("{seen:?}")));
            thread::sleep(Duration::from_millis(50));
        }
        self.report()
    }

    /// The connection must not have broken.
    fn report(&self) -> Report {
        self.with(|seen| {
            assert!(seen.end.is_none(), "the TCP connection broke: {:?}", seen.end);
            let now = |last: Option<Instant>| last.map_or(Duration::ZERO, |last| last.elapsed());
            let sent = seen.number.saturating_sub(seen.base);
            let report = Report {
                silence: seen.silence.max(now(seen.answer)),
                gap: seen.gap.max(now(seen.datagram)),
                sent,
                lost: sent.saturating_sub(seen.arrived),
            };
            (seen.base, seen.arrived) = (seen.number, 0);
            (seen.silence, seen.gap) = (Duration::ZERO, Duration::ZERO);
            report
        })
    }
}

fn read(name: &str, work: impl FnOnce() + Send + 'static) {
    thread::Builder::new().name(name.into()).spawn(work).expect("a thread");
}

fn answers(out: impl Read, mut err: impl Read, seen: &Mutex<Seen>) {
    for _ in BufReader::new(out).lines().map_while(Result::ok) {
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = seen.answer {
            seen.silence = seen.silence.max(last.elapsed());
        }
        seen.answer = Some(Instant::now());
        seen.answers += 1;
    }
    let mut reason = String::new();
    // Without a reason there is still an end.
    let _ = err.read_to_string(&mut reason);
    seen.lock().unwrap_or_else(PoisonError::into_inner).end = Some(reason);
}

fn datagrams(out: impl Read, seen: &Mutex<Seen>) {
    for line in BufReader::new(out).lines().map_while(Result::ok) {
        let arrivals: Vec<Arrival> = serde_json::from_str(&line).expect("arrivals");
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        for arrival in arrivals {
            let age = Duration::from_nanos(testbed::tools::load::now().saturating_sub(arrival.at));
            let at = Instant::now().checked_sub(age).unwrap_or_else(Instant::now);
            if let Some(last) = seen.datagram {
                seen.gap = seen.gap.max(at.saturating_duration_since(last));
            } else {
                // What came before the first arrival was sent while nothing was learned.
                seen.base = arrival.number - 1;
            }
            seen.datagram = Some(at);
            seen.number = seen.number.max(arrival.number);
            seen.arrived += 1;
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.children {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
