//! Threads that load together: started, watched, stopped, and what they counted added up.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::{Result, anyhow};

use super::exchange::{Exchange, Outcome};
use super::pace::Pace;
use super::{Phase, Shared};
use crate::measure::Times;
use crate::net;

/// A failure after so many in a row is the last of its thread: nobody is there.
const MOST_FAILURES: u64 = 1000;

/// What threads have counted in the measurement, unless it says otherwise.
#[derive(Debug, Clone)]
pub(crate) struct Tally {
    pub(crate) times: Times,
    pub(crate) transactions: u64,
    pub(crate) lost: u64,
    pub(crate) failures: BTreeMap<String, u64>,
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
    pub(crate) datagrams: u64,
    /// In all of the test.
    pub(crate) retransmits: u64,
    pub(crate) all_sent_bytes: u64,
    pub(crate) all_received_bytes: u64,
    pub(crate) all_transactions: u64,
}

impl Tally {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            times: Times::new()?,
            transactions: 0,
            lost: 0,
            failures: BTreeMap::new(),
            sent_bytes: 0,
            received_bytes: 0,
            datagrams: 0,
            retransmits: 0,
            all_sent_bytes: 0,
            all_received_bytes: 0,
            all_transactions: 0,
        })
    }

    fn add(&mut self, other: &Self) -> Result<()> {
        self.times.add(&other.times)?;
        self.transactions += other.transactions;
        self.lost += other.lost;
        for (name, count) in &other.failures {
            *self.failures.entry(name.clone()).or_default() += count;
        }
        self.sent_bytes += other.sent_bytes;
        self.received_bytes += other.received_bytes;
        self.datagrams += other.datagrams;
        self.retransmits += other.retransmits;
        self.all_sent_bytes += other.all_sent_bytes;
        self.all_received_bytes += other.all_received_bytes;
        self.all_transactions += other.all_transactions;
        Ok(())
    }
}

/// Threads of one test.
pub(crate) struct Together {
    pub(crate) shared: Arc<Shared>,
    threads: Vec<JoinHandle<Result<Tally>>>,
}

/// What one thread does until [`Phase::Stop`].
pub(crate) type Work = Box<dyn FnOnce(&Shared) -> Result<Tally> + Send>;

impl Together {
    /// Starts a thread for each work.
    pub(crate) fn start(works: Vec<Work>, cpu: Option<u32>) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let mut threads = Vec::new();
        for work in works {
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name("load".into()).stack_size(256 << 10);
            threads.push(thread.spawn(move || {
                cpu.map_or(Ok(()), net::pin)?;
                // Sleeps are to end when they should, not 50 µs later.
                let _ = nix::sys::prctl::set_timerslack(1);
                work(&shared)
            })?);
        }
        Ok(Self { shared, threads })
    }

    /// Load of exchanges, one thread each, at a rate that they share.
    pub(crate) fn of_exchanges(
        exchanges: Vec<Box<dyn Exchange>>,
        rate: Option<f64>,
        cpu: Option<u32>,
    ) -> Result<Self> {
        let pace = Arc::new(Pace::new(rate));
        let work = |mut exchange: Box<dyn Exchange>| -> Work {
            let pace = Arc::clone(&pace);
            Box::new(move |shared| transact(&mut *exchange, &pace, shared))
        };
        Self::start(exchanges.into_iter().map(work).collect(), cpu)
    }

    /// Whether a thread has ended before it was told to.
    pub(crate) fn has_ended(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Stops the threads and adds up what they have counted.
    pub(crate) fn stop(self) -> Result<Tally> {
        self.shared.set(Phase::Stop);
        let mut sum = Tally::new()?;
        for thread in self.threads {
            sum.add(&thread.join().map_err(|_panic| anyhow!("a thread of the load panicked"))??)?;
        }
        Ok(sum)
    }
}

fn transact(exchange: &mut dyn Exchange, pace: &Pace, shared: &Shared) -> Result<Tally> {
    let mut tally = Tally::new()?;
    let mut in_a_row = 0;
    while shared.phase() != Phase::Stop {
        let Some(due) = pace.wait(|| shared.phase() == Phase::Stop) else { break };
        let outcome = exchange.exchange()?;
        let counts = shared.phase() == Phase::Measure;
        in_a_row = if matches!(outcome, Outcome::Failed(_)) { in_a_row + 1 } else { 0 };
        match outcome {
            Outcome::Answered => {
                tally.all_transactions += 1;
                if counts {
                    tally.times.record(due.elapsed());
                    tally.transactions += 1;
                    shared.done.fetch_add(1, Relaxed);
                }
            }
            Outcome::Lost if counts => tally.lost += 1,
            Outcome::Failed(name) if counts => *tally.failures.entry(name).or_default() += 1,
            Outcome::Lost | Outcome::Failed(_) => {}
        }
        if in_a_row > MOST_FAILURES {
            let pause = Instant::now();
            while shared.phase() != Phase::Stop && pause.elapsed().as_millis() < 10 {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    }
    tally.retransmits = exchange.retransmits();
    Ok(tally)
}
