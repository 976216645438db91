//! The load tool: one end of one kind of traffic, pinned to one CPU, started inside a network namespace.
//!
//! The serving end writes `ready` when a client may start. Each end writes what it has measured as one line of JSON;
//! for one-way traffic that is the receiver's figure, for requests and answers the client's.

mod connections;
mod oneway;
mod paced;
mod requests;

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use clap::ValueEnum;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

/// Bytes of a request, and of an answer.
const MESSAGE: usize = 64;
/// UDP payload of the packet-rate test: with Ethernet, IPv4 and UDP a frame of 60 bytes, the shortest that there is.
const SMALL: usize = 18;
/// How long an end waits for the other before it gives up.
const PATIENCE: Duration = Duration::from_secs(5);

/// A kind of traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// Requests and answers of 64 bytes on one TCP connection, one at a time.
    TcpRr,
    /// The same by UDP.
    UdpRr,
    /// UDP datagrams of 18 bytes, as many as go; those that arrive count.
    UdpPps,
    /// One TCP connection with as many bytes as go.
    TcpStream,
    /// TCP connections, one after another: connect, request, answer, close.
    Crr,
    /// UDP datagrams at a given rate; the receiver notes when each arrives.
    Paced,
}

/// What an end does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Role {
    Serve,
    Drive,
}

/// One end.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(value_enum)]
    role: Role,
    #[arg(value_enum)]
    kind: Kind,
    /// Where the serving end listens, and where the other sends to.
    #[arg(long)]
    address: IpAddr,
    #[arg(long)]
    port: u16,
    /// The CPU that it stays on.
    #[arg(long)]
    cpu: Option<usize>,
    /// Seconds before the measurement.
    #[arg(long, default_value_t = 0.25)]
    warm_up: f64,
    /// Seconds of the measurement.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Datagrams per second of the paced kind.
    #[arg(long, default_value_t = 5000)]
    rate: u32,
}

/// What one end has measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// Per second: transactions, packets, connections; for a stream bits.
    pub per_second: f64,
    /// Half of the transactions took less than this, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub median_us: Option<f64>,
    /// When each paced datagram arrived: nanoseconds since 1970, and its number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arrivals: Vec<(u64, u32)>,
}

/// The two parts of a run.
#[derive(Debug, Clone, Copy)]
struct Window {
    warm_up: Duration,
    length: Duration,
}

impl Window {
    /// Begin and end of the measurement of a run that starts now.
    fn starting_now(self) -> (Instant, Instant) {
        let begin = Instant::now() + self.warm_up;
        (begin, begin + self.length)
    }

    /// How long traffic goes on: a little longer than anybody measures.
    fn traffic(self) -> Duration {
        self.warm_up + self.length + Duration::from_millis(100)
    }

    fn rate(self, count: u64) -> f64 {
        per_second(count, self.length)
    }
}

/// A count in a time, as a rate.
fn per_second(count: u64, time: Duration) -> f64 {
    let seconds = time.as_secs_f64();
    // Counts of a run of seconds are far below 2^52.
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

impl Args {
    /// Does it, and writes the result.
    pub(crate) fn run(self) -> Result<()> {
        let Self { role, kind, address, port, cpu, warm_up, seconds, rate } = self;
        if let Some(cpu) = cpu {
            let mut set = CpuSet::new();
            set.set(cpu).with_context(|| format!("CPU {cpu}"))?;
            sched_setaffinity(Pid::from_raw(0), &set).with_context(|| format!("pinning to CPU {cpu}"))?;
        }
        let at = SocketAddr::new(address, port);
        let duration = |seconds: f64, flag: &str| {
            Duration::try_from_secs_f64(seconds).with_context(|| format!("--{flag} {seconds} is no time"))
        };
        let window = Window { warm_up: duration(warm_up, "warm-up")?, length: duration(seconds, "seconds")? };
        let measured = match (role, kind) {
            (Role::Serve, Kind::TcpRr) => requests::serve_tcp(at),
            (Role::Drive, Kind::TcpRr) => requests::drive_tcp(at, window),
            (Role::Serve, Kind::UdpRr) => requests::serve_udp(at),
            (Role::Drive, Kind::UdpRr) => requests::drive_udp(at, window),
            (Role::Serve, Kind::UdpPps) => oneway::count_datagrams(at, window),
            (Role::Drive, Kind::UdpPps) => oneway::blast(at, window),
            (Role::Serve, Kind::TcpStream) => oneway::count_bytes(at, window),
            (Role::Drive, Kind::TcpStream) => oneway::pour(at, window),
            (Role::Serve, Kind::Crr) => connections::serve(at),
            (Role::Drive, Kind::Crr) => {
                connections::prepare_namespace().and_then(|()| connections::drive(at, window))
            }
            (Role::Serve, Kind::Paced) => paced::record(at, window),
            (Role::Drive, Kind::Paced) => paced::send(at, window, rate),
        }?;
        let mut out = std::io::stdout().lock();
        serde_json::to_writer(&mut out, &measured)?;
        writeln!(out)?;
        Ok(())
    }
}

/// Tells whoever started us that a client may come.
fn ready() -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready")?;
    out.flush().context("standard output")
}

/// Time that two processes of one machine share, in nanoseconds since 1970.
pub(crate) fn wall_clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use std::thread;

    const WINDOW: Window = Window { warm_up: Duration::from_millis(20), length: Duration::from_millis(100) };

    type End = fn(SocketAddr, Window) -> Result<Measured>;

    /// Runs both ends in this process, the client once the kernel knows the serving end's port.
    fn both(port: u16, serve: End, drive: End) -> (Measured, Measured) {
        let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
        let server = thread::Builder::new().spawn(move || serve(at, WINDOW)).unwrap();
        // Without a peer: bound or listening, not a connection of an earlier run.
        let local = format!(":{port:04X} 00000000:0000 ");
        let listed = |file| std::fs::read_to_string(file).unwrap().contains(&local);
        while !server.is_finished() && !listed("/proc/net/tcp") && !listed("/proc/net/udp") {
            thread::sleep(Duration::from_millis(5));
        }
        let client = drive(at, WINDOW).unwrap();
        (server.join().unwrap().unwrap(), client)
    }

    #[test]
    fn requests_and_answers_are_counted_by_the_client() {
        let (_, tcp) = both(17101, |at, _| requests::serve_tcp(at), requests::drive_tcp);
        assert!(tcp.per_second > 0.0 && tcp.median_us.is_some(), "{tcp:?}");
        let (_, udp) = both(17102, |at, _| requests::serve_udp(at), requests::drive_udp);
        assert!(udp.per_second > 0.0 && udp.median_us.is_some(), "{udp:?}");
    }

    #[test]
    fn one_way_traffic_is_counted_where_it_arrives() {
        let (received, _) = both(17103, oneway::count_datagrams, oneway::blast);
        assert!(received.per_second > 0.0, "{received:?}");
        let (received, _) = both(17104, oneway::count_bytes, oneway::pour);
        assert!(received.per_second > 0.0, "{received:?}");
    }

    #[test]
    fn connections_are_closed_one_after_another() {
        let (_, driven) = both(17105, |at, _| connections::serve(at), connections::drive);
        assert!(driven.per_second > 0.0, "{driven:?}");
    }

    #[test]
    fn paced_datagrams_come_in_order_and_not_faster_than_their_rate() {
        let (recorded, _) = both(17106, paced::record, |at, window| paced::send(at, window, 1000));
        assert!(recorded.arrivals.is_sorted(), "{recorded:?}");
        assert!((1..=250).contains(&recorded.arrivals.len()), "{}", recorded.arrivals.len());
    }
}
