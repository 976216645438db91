//! The load tool: one end of one kind of traffic, pinned to one CPU, started inside a network namespace.
//!
//! An end is started once and keeps its connection. The serving end writes `ready` when a client may start. Then [`session`]
//! tells what to do, a slice at a time; [`slice`] times transactions, [`oneway`] what arrives, and [`account`] whose the CPU was
//! meanwhile. Paced datagrams are one long run, without slices.

mod account;
mod connections;
mod oneway;
mod paced;
mod requests;
mod session;
mod slice;

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use clap::ValueEnum;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use account::Account;
use session::Session;

pub(crate) use oneway::{Arrived, Sent};
pub(crate) use session::Command;

/// Bytes of a request, and of an answer.
const MESSAGE: usize = 64;
/// UDP payload of the packet-rate test: with Ethernet, IPv4 and UDP a frame of 60 bytes, the shortest that there is.
const SMALL: usize = 18;
/// The serving ends on one CPU have ports behind it.
const PORT: u16 = 7100;
/// How long an end waits for the other before it gives up.
const PATIENCE: Duration = Duration::from_secs(5);

/// A kind of traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// Requests and answers of 64 bytes on one TCP connection, one at a time.
    TcpRr,
    /// Requests and answers of 64 bytes by UDP, one at a time.
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

impl Kind {
    /// Whether the receiver measures.
    pub(crate) fn is_one_way(self) -> bool {
        matches!(self, Self::UdpPps | Self::TcpStream | Self::Paced)
    }

    /// Different for each.
    fn number(self) -> u16 {
        match self {
            Self::TcpRr => 1,
            Self::UdpRr => 2,
            Self::UdpPps => 3,
            Self::TcpStream => 4,
            Self::Crr => 5,
            Self::Paced => 6,
        }
    }

    /// First of the two ports of the serving ends on one CPU.
    pub(crate) fn port(self) -> u16 {
        PORT + 2 * self.number()
    }
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
    cpu: usize,
    /// Processes whose work is a part of the path.
    #[arg(long, value_delimiter = ',')]
    part_of_path: Vec<i32>,
    /// Seconds that the paced kind runs.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Datagrams per second of the paced kind.
    #[arg(long, default_value_t = 5000)]
    rate: u32,
}

/// What was measured in a slice.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// Per second: transactions, packets, connections; for a stream bits.
    pub per_second: f64,
    /// Half of the transactions took less than this, in microseconds.
    pub median_us: Option<f64>,
    /// The part of the time in which other processes had the CPU.
    pub away: f64,
}

/// What the receiver of paced datagrams has seen.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Recorded {
    /// When each arrived: nanoseconds since 1970, and its number.
    pub arrivals: Vec<(u64, u32)>,
}

/// A count in a time, as a rate.
fn per_second(count: u64, time: Duration) -> f64 {
    let seconds = time.as_secs_f64();
    // Counts of a slice are far below 2^52.
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

impl Args {
    /// Runs the load until it is no longer wanted.
    pub(crate) fn run(self) -> Result<()> {
        let Self { role, kind, address, port, cpu, part_of_path, seconds, rate } = self;
        let mut set = CpuSet::new();
        set.set(cpu).with_context(|| format!("CPU {cpu}"))?;
        sched_setaffinity(Pid::from_raw(0), &set).with_context(|| format!("pinning to CPU {cpu}"))?;
        let at = SocketAddr::new(address, port);
        let length = || {
            Duration::try_from_secs_f64(seconds).with_context(|| format!("--seconds {seconds} is no time"))
        };
        if role == Role::Serve && kind != Kind::Paced {
            session::end_with_input()?;
        }
        let session = || Session::of_process(Account::new(cpu, &part_of_path));
        match (role, kind) {
            (Role::Serve, Kind::TcpRr) => requests::serve_tcp(at),
            (Role::Drive, Kind::TcpRr) => {
                let mut end = requests::Tcp::connect(at)?;
                slice::run(session()?, || end.ask())
            }
            (Role::Serve, Kind::UdpRr) => requests::serve_udp(at),
            (Role::Drive, Kind::UdpRr) => {
                let mut end = requests::Udp::connect(at)?;
                slice::run(session()?, || end.ask())
            }
            (Role::Serve, Kind::UdpPps) => oneway::count_datagrams(at, std::io::stdout()),
            (Role::Drive, Kind::UdpPps) => oneway::blast(at, session()?),
            (Role::Serve, Kind::TcpStream) => oneway::count_bits(at, std::io::stdout()),
            (Role::Drive, Kind::TcpStream) => {
                oneway::prepare_namespace()?;
                oneway::pour(at, session()?)
            }
            (Role::Serve, Kind::Crr) => connections::serve(at),
            (Role::Drive, Kind::Crr) => {
                connections::prepare_namespace()?;
                slice::run(session()?, || connections::open(at))
            }
            (Role::Serve, Kind::Paced) => {
                session::answer(&mut std::io::stdout(), &paced::record(at, length()?)?)
            }
            (Role::Drive, Kind::Paced) => paced::send(at, length()?, rate),
        }
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
mod tests;
