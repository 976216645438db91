//! What is read and counted: clocks of CPUs, the host, TCP's counters, numbers of datagrams, times of transactions.

mod cpu;
mod host;
mod latency;
mod sequence;
mod slice;
mod tcp_info;
mod waited;

pub use cpu::CpuTimes;
pub use host::Host;
pub use latency::Latency;
pub(crate) use latency::Times;
pub(crate) use sequence::{Arrival, Sequence};
pub(crate) use slice::WARM_UP;
pub use slice::{Transactions, transactions};
pub(crate) use tcp_info::retransmits;
pub(crate) use waited::Waited;

/// A count in a time, as a rate; 0 in no time.
pub(crate) fn per_second(count: u64, seconds: f64) -> f64 {
    // Counts of a test are far below 2^52.
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}
