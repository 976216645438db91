//! What a server counts of one test.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::measure::{CpuTimes, Sequence};
use crate::protocol::control::{BUCKET_MILLIS, Datagrams, MOST_SECONDS, Report, Settings};

/// Most different names of failures that are told apart.
const MOST_FAILURES: usize = 32;

/// One test of a session, shared by the threads that serve it.
#[derive(Debug)]
pub(super) struct Trial {
    pub(super) settings: Settings,
    pub(super) ended: AtomicBool,
    pub(super) open: AtomicUsize,
    pub(super) connections: AtomicU64,
    pub(super) transactions: AtomicU64,
    pub(super) received: AtomicU64,
    pub(super) sent: AtomicU64,
    pub(super) retransmits: AtomicU64,
    pub(super) failures: Mutex<BTreeMap<String, u64>>,
    pub(super) flows: Mutex<Flows>,
    begin: Mutex<Point>,
    end: Mutex<Option<Point>>,
}

/// The counters at a moment.
#[derive(Debug, Clone, Copy)]
struct Point {
    at: Instant,
    received: u64,
    sent: u64,
    cpu: CpuTimes,
}

/// Datagrams that count, by flow.
#[derive(Debug, Default)]
pub(super) struct Flows {
    sequences: BTreeMap<u16, Sequence>,
    counts: Datagrams,
    first: Option<Instant>,
}

impl Flows {
    /// Notes a datagram. Flows beyond those of the test are not counted.
    pub(super) fn arrived(
        &mut self,
        settings: &Settings,
        flow: u16,
        number: u64,
        bytes: usize,
        now: Instant,
    ) {
        use crate::measure::Arrival;
        if u32::from(flow) >= settings.connections {
            return;
        }
        let counts = &mut self.counts;
        match self.sequences.entry(flow).or_default().arrived(number) {
            Arrival::Duplicate => {
                counts.duplicates += 1;
                return;
            }
            Arrival::Reordered => counts.reordered += 1,
            Arrival::InOrder => {}
        }
        let since = now.duration_since(*self.first.get_or_insert(now));
        counts.received += 1;
        counts.bytes += u64::try_from(bytes).unwrap_or(0);
        counts.seconds = since.as_secs_f64();
        let bucket = usize::try_from(since.as_millis() / u128::from(BUCKET_MILLIS)).unwrap_or(usize::MAX);
        if since.as_secs_f64() <= MOST_SECONDS {
            if counts.buckets.len() <= bucket {
                counts.buckets.resize(bucket + 1, 0);
            }
            counts.buckets[bucket] += 1;
        }
    }
}

impl Trial {
    pub(super) fn new(settings: Settings) -> Self {
        let point = Point { at: Instant::now(), received: 0, sent: 0, cpu: CpuTimes::now() };
        Self {
            settings,
            ended: AtomicBool::new(false),
            open: AtomicUsize::new(0),
            connections: AtomicU64::new(0),
            transactions: AtomicU64::new(0),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            retransmits: AtomicU64::new(0),
            failures: Mutex::default(),
            flows: Mutex::default(),
            begin: Mutex::new(point),
            end: Mutex::default(),
        }
    }

    fn point(&self) -> Point {
        let (received, sent) = (self.received.load(Relaxed), self.sent.load(Relaxed));
        Point { at: Instant::now(), received, sent, cpu: CpuTimes::now() }
    }

    pub(super) fn begin(&self) {
        *self.begin.lock().unwrap_or_else(PoisonError::into_inner) = self.point();
    }

    pub(super) fn mark(&self) {
        *self.end.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.point());
    }

    pub(super) fn is_ended(&self) -> bool {
        self.ended.load(Relaxed)
    }

    pub(super) fn fail(&self, kind: ErrorKind) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let name = kind.to_string();
        if failures.len() < MOST_FAILURES || failures.contains_key(&name) {
            *failures.entry(name).or_default() += 1;
        }
    }

    /// Waits until no connection is open, at most so long.
    pub(super) fn settle(&self, limit: Duration) {
        let end = Instant::now() + limit;
        while self.open.load(Relaxed) > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(super) fn report(&self) -> Report {
        let begin = *self.begin.lock().unwrap_or_else(PoisonError::into_inner);
        let end = *self.end.lock().unwrap_or_else(PoisonError::into_inner);
        let end = end.unwrap_or_else(|| self.point());
        Report {
            seconds: end.at.duration_since(begin.at).as_secs_f64(),
            received_bytes: end.received.saturating_sub(begin.received),
            sent_bytes: end.sent.saturating_sub(begin.sent),
            all_received_bytes: self.received.load(Relaxed),
            all_sent_bytes: self.sent.load(Relaxed),
            all_connections: self.connections.load(Relaxed),
            all_transactions: self.transactions.load(Relaxed),
            retransmits: self.retransmits.load(Relaxed),
            datagrams: self.flows.lock().unwrap_or_else(PoisonError::into_inner).counts.clone(),
            cpu: end.cpu.since(begin.cpu),
            failures: self.failures.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}
