//! One test: prepare, open connections, warm up, measure, close, report.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::session::Session;
use crate::load::{Directions, Phase, Tally, Together, Way, exchanges, rate_threads, stream_threads};
use crate::measure::{CpuTimes, per_second};
use crate::protocol::control::{Ask, BUCKET_MILLIS, Report, Settings, Test};
use crate::report::{Cpu, Reorder, Row, thousands};

/// Datagrams may be on their way, and in the server's queue, for so long after the last was sent.
pub(crate) const DRAIN: Duration = Duration::from_millis(300);
/// Time between two live lines.
const SAY: Duration = Duration::from_secs(1);

/// A test as it is wanted.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) settings: Settings,
    pub(crate) warm_up: Duration,
    pub(crate) time: Duration,
    pub(crate) rate: Option<f64>,
    pub(crate) cpu: Option<u32>,
    pub(crate) directions: Directions,
    /// How long datagrams are waited for after the last was sent.
    pub(crate) drain: Duration,
    /// Whether a live line is written.
    pub(crate) says: bool,
}

/// What a run of the load has given.
struct Measured {
    tally: Tally,
    report: Report,
    seconds: f64,
    cpu: CpuTimes,
    /// Counts of intervals.
    samples: Vec<(u64, f64)>,
}

/// Runs a test on a session.
pub(crate) fn run(session: &mut Session, plan: &Plan) -> Result<Row> {
    session.order(&Ask::Prepare { settings: plan.settings.clone() })?;
    let way = Way { data: session.data, tag: session.tag, settings: plan.settings.clone(), rate: plan.rate };
    let together = match plan.settings.test {
        Test::TcpStream => Together::start(stream_threads(&way, plan.directions)?, plan.cpu)?,
        Test::UdpRate => Together::start(rate_threads(&way)?, plan.cpu)?,
        _ => Together::of_exchanges(exchanges(&way)?, plan.rate, plan.cpu)?,
    };
    let measured = measure(session, plan, together)?;
    Ok(row(plan, &way, measured))
}

fn measure(session: &mut Session, plan: &Plan, together: Together) -> Result<Measured> {
    let shared = std::sync::Arc::clone(&together.shared);
    let sleep_until = |end: Instant| {
        while Instant::now() < end && !together.has_ended() {
            std::thread::sleep(end.saturating_duration_since(Instant::now()).min(Duration::from_millis(100)));
        }
    };
    sleep_until(Instant::now() + plan.warm_up);
    session.order(&Ask::Begin)?;
    let cpu = CpuTimes::now();
    shared.set(Phase::Measure);
    let start = Instant::now();
    let (mut samples, mut before, mut said) = (Vec::new(), (0, start), start);
    // At least 30 intervals, and not so short that single transactions matter.
    let interval = (plan.time / 30).clamp(Duration::from_millis(5), Duration::from_millis(BUCKET_MILLIS));
    while start.elapsed() < plan.time && !together.has_ended() {
        sleep_until((before.1 + interval).min(start + plan.time));
        let (done, now) = (shared.done.load(std::sync::atomic::Ordering::Relaxed), Instant::now());
        samples.push((done - before.0, now.duration_since(before.1).as_secs_f64()));
        before = (done, now);
        if plan.says && said.elapsed() >= SAY {
            said = now;
            live(plan, now.duration_since(start).as_secs_f64(), samples.last().copied().unwrap_or_default());
        }
    }
    shared.set(Phase::After);
    let seconds = start.elapsed().as_secs_f64();
    let cpu = CpuTimes::now().since(cpu);
    session.order(&Ask::Mark)?;
    let tally = together.stop()?;
    if plan.settings.test == Test::UdpRate {
        std::thread::sleep(plan.drain);
    }
    Ok(Measured { tally, report: session.end()?, seconds, cpu, samples })
}

fn live(plan: &Plan, seconds: f64, (count, time): (u64, f64)) {
    let rate = per_second(count, time);
    let rate = match plan.settings.test {
        Test::TcpStream => format!("{:.3} Gbit/s", 8.0 * rate / 1e9),
        Test::UdpRate => format!("{} packets/s sent", thousands(rate)),
        _ => format!("{} transactions/s", thousands(rate)),
    };
    // Nobody reads it: no reason to stop.
    let _ = writeln!(std::io::stderr(), "{} {seconds:.0} s: {rate}", plan.settings.test.name());
}

fn row(plan: &Plan, way: &Way, measured: Measured) -> Row {
    let Measured { tally, report, seconds, cpu, samples } = measured;
    let settings = &plan.settings;
    let (asks, stream) = (settings.test.asks(), settings.test == Test::TcpStream);
    let counted = &report.datagrams;
    let both = [cpu, report.cpu].map(CpuTimes::busy);
    let us_per_transaction =
        (asks && tally.transactions > 0).then(|| both.map(|busy| 1e6 * busy / tally.transactions as f64));
    let (received_bytes, received_seconds) = match plan.directions {
        _ if !stream => (tally.received_bytes, seconds),
        Directions::Forward => (report.received_bytes, report.seconds),
        Directions::Reverse => (tally.received_bytes, seconds),
        Directions::Both => (report.received_bytes + tally.received_bytes, seconds),
    };
    let main = match settings.test {
        Test::TcpStream => per_second(8 * received_bytes, received_seconds),
        // What waits in a queue when the last was sent takes its time, too.
        Test::UdpRate => per_second(counted.received, seconds.max(counted.seconds)),
        _ => per_second(tally.transactions, seconds),
    };
    let samples = match settings.test {
        Test::UdpRate => buckets(&counted.buckets),
        Test::TcpStream => samples.iter().map(|(count, time)| 8.0 * per_second(*count, *time)).collect(),
        _ => samples.iter().map(|(count, time)| per_second(*count, *time)).collect(),
    };
    let rate_test = settings.test == Test::UdpRate;
    let asked = tally.transactions + tally.lost;
    let interval = if rate_test { Duration::from_millis(BUCKET_MILLIS) } else { plan.time / 30 };
    Row {
        test: settings.test,
        direction: stream.then(|| {
            match plan.directions {
                Directions::Forward => "forward",
                Directions::Reverse => "reverse",
                Directions::Both => "both",
            }
            .to_owned()
        }),
        connections: settings.connections,
        request_bytes: asks.then_some(settings.request_bytes),
        response_bytes: asks.then_some(settings.response_bytes),
        message_bytes: (!asks).then_some(settings.message_bytes),
        offered_per_second: plan.rate,
        data_address: way.data.to_string(),
        seconds,
        per_second: main,
        samples,
        interval_seconds: interval.as_secs_f64().clamp(0.005, 0.1),
        latency_us: tally.times.latency(),
        transactions: tally.transactions,
        lost: if rate_test { tally.datagrams.saturating_sub(counted.received) } else { tally.lost },
        failures: tally.failures,
        sent_packets: if rate_test { tally.datagrams } else { asked },
        received_packets: if rate_test { counted.received } else { tally.transactions },
        reorder: rate_test.then(|| Reorder {
            duplicates: counted.duplicates,
            reordered: counted.reordered,
            ratio: counted.reordered as f64 / counted.received.max(1) as f64,
        }),
        sent_bytes: if asks { asked * u64::from(settings.request_bytes) } else { tally.sent_bytes },
        received_bytes: match settings.test {
            Test::TcpStream => received_bytes,
            Test::UdpRate => counted.bytes,
            _ => tally.transactions * u64::from(settings.response_bytes),
        },
        all_sent_bytes: [tally.all_sent_bytes, report.all_sent_bytes],
        all_received_bytes: [tally.all_received_bytes, report.all_received_bytes],
        all_transactions: [tally.all_transactions, report.all_transactions],
        retransmits: [tally.retransmits, report.retransmits],
        server_failures: report.failures,
        cpu: Cpu { client: cpu, server: report.cpu, us_per_transaction },
    }
}

/// Rates of complete buckets of arrivals.
fn buckets(counts: &[u32]) -> Vec<f64> {
    let complete = counts.len().saturating_sub(1);
    counts
        .iter()
        .take(complete)
        .map(|count| per_second(u64::from(*count), BUCKET_MILLIS as f64 / 1e3))
        .collect()
}
