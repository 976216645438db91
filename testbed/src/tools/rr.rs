//! Round trips over one connection, one after another: how long each takes, and how many get no answer.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::ui;

/// `testbed probe echo`.
#[derive(Clone, Debug, clap::Args)]
pub struct EchoArgs {
    /// Run on this CPU only.
    #[arg(long)]
    cpu: Option<usize>,
    /// TCP and UDP port.
    port: u16,
}

/// `testbed probe rr`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// UDP instead of TCP.
    #[arg(long)]
    udp: bool,
    /// A connection for each: connect, ask, get the answer, close. Of UDP a socket with a port of its own.
    #[arg(long)]
    connect: bool,
    /// So many round trips.
    #[arg(long, default_value_t = 1000)]
    count: u64,
    /// Go on for at most so many seconds.
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
    /// End when standard input is closed, too.
    #[arg(long)]
    until_closed: bool,
    /// End after so many in a row that were not answered.
    #[arg(long)]
    give_up: Option<u64>,
    /// Bytes of a message.
    #[arg(long, default_value_t = 64)]
    size: usize,
    /// Milliseconds between an answer and the next question.
    #[arg(long, default_value_t = 0)]
    pause: u64,
    /// Milliseconds to wait for an answer.
    #[arg(long, default_value_t = 2000)]
    timeout: u64,
    /// Run on this CPU only: with both ends on one, what is measured is not how the kernel wakes another.
    #[arg(long)]
    cpu: Option<usize>,
    /// Address of a `probe echo`.
    host: IpAddr,
    /// Its port.
    port: u16,
}

/// What came of the round trips.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundTrips {
    /// Questions that were answered.
    pub answers: u64,
    /// Times that nothing came within the time to wait.
    pub lost: u64,
    /// Median time of a round trip in nanoseconds; 0 without an answer.
    pub p50_ns: u64,
    /// Shortest time of a round trip in nanoseconds; 0 without an answer.
    pub min_ns: u64,
    /// From the start to the last answer, in milliseconds.
    pub last_answer_ms: u64,
    /// From the start to the end, in milliseconds.
    pub total_ms: u64,
}

/// Keeps this process, and the threads that it starts from now on, on a CPU.
fn pin(cpu: Option<usize>) -> Result<()> {
    let Some(cpu) = cpu else { return Ok(()) };
    let mut set = CpuSet::new();
    set.set(cpu).with_context(|| format!("CPU {cpu}"))?;
    sched_setaffinity(Pid::from_raw(0), &set).with_context(|| format!("CPU {cpu}"))
}

impl EchoArgs {
    /// Sends back whatever comes, until it is killed.
    pub fn run(self) -> Result<()> {
        let Self { cpu, port } = self;
        pin(cpu)?;
        let (v6, v4) =
            (SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)), (Ipv4Addr::UNSPECIFIED, port).into());
        let listener = TcpListener::bind(v6).or_else(|_| TcpListener::bind::<SocketAddr>(v4));
        let listener = listener.with_context(|| format!("TCP port {port}"))?;
        let socket = UdpSocket::bind(v6).or_else(|_| UdpSocket::bind::<SocketAddr>(v4));
        let socket = socket.with_context(|| format!("UDP port {port}"))?;
        thread::Builder::new().name("udp".into()).spawn(move || echo_udp(&socket))?;
        ui::say(format_args!("TCP and UDP port {port} listen"));
        for stream in listener.incoming() {
            let stream = stream?;
            // A client that has gone needs no more.
            thread::Builder::new().name("tcp".into()).spawn(move || drop(echo_tcp(stream)))?;
        }
        Ok(())
    }
}

fn echo_udp(socket: &UdpSocket) {
    let mut buffer = [0; 65_536];
    loop {
        if let Ok((length, client)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..length], client);
        }
    }
}

fn echo_tcp(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = [0; 65_536];
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            length => stream.write_all(&buffer[..length])?,
        }
    }
}

impl Args {
    /// Asks and prints a [`RoundTrips`] as JSON. Succeeds whatever the answers are, if it can connect.
    pub fn run(self) -> Result<()> {
        pin(self.cpu)?;
        let limit = Duration::from_millis(self.timeout.max(1));
        let server = SocketAddr::new(self.host, self.port);
        let seen = if self.udp {
            let any: IpAddr =
                if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            let open = || {
                let socket = UdpSocket::bind((any, 0))?;
                socket.connect(server)?;
                socket.set_read_timeout(Some(limit))?;
                std::io::Result::Ok(socket)
            };
            let mut socket = open()?;
            let mut answer = vec![0; self.size.max(1)];
            self.measure(|message| {
                if self.connect {
                    socket = open()?;
                }
                socket.send(message)?;
                socket.recv(&mut answer).map(drop)
            })?
        } else if self.connect {
            let mut answer = vec![0; self.size.max(1)];
            self.measure(|message| {
                let mut stream = TcpStream::connect_timeout(&server, limit)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(limit))?;
                stream.write_all(message)?;
                stream.read_exact(&mut answer)
            })?
        } else {
            let mut stream = TcpStream::connect_timeout(&server, limit).context("connecting")?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(limit))?;
            let mut answer = vec![0; self.size.max(1)];
            // After a timeout the answer is still owed: the stream must not get out of step.
            let mut owed = 0;
            self.measure(move |message| {
                if owed == 0 {
                    stream.write_all(message)?;
                    owed = message.len();
                }
                while owed > 0 {
                    let length = stream.read(&mut answer[..owed])?;
                    if length == 0 {
                        return Err(ErrorKind::UnexpectedEof.into());
                    }
                    owed -= length;
                }
                Ok(())
            })?
        };
        ui::say(serde_json::to_string(&seen)?);
        Ok(())
    }

    fn measure(&self, mut ask: impl FnMut(&[u8]) -> std::io::Result<()>) -> Result<RoundTrips> {
        let message = vec![b'x'; self.size.max(1)];
        let mut times = Vec::with_capacity(usize::try_from(self.count.min(1 << 24))?);
        let (begin, most) = (Instant::now(), Duration::from_secs_f64(self.seconds.clamp(0.0, 86_400.0)));
        let (mut lost, mut in_a_row, mut last) = (0, 0, Duration::ZERO);
        let closed = Arc::new(AtomicBool::new(false));
        if self.until_closed {
            let closed = Arc::clone(&closed);
            let wait = move || {
                // An error ends it as well.
                let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
                closed.store(true, Ordering::Relaxed);
            };
            thread::Builder::new().name("stdin".into()).spawn(wait)?;
        }
        for _ in 0..self.count {
            let sent = Instant::now();
            if sent.duration_since(begin) >= most
                || closed.load(Ordering::Relaxed)
                || self.give_up.is_some_and(|limit| in_a_row >= limit)
            {
                break;
            }
            in_a_row += 1;
            match ask(&message) {
                Ok(()) => {
                    in_a_row = 0;
                    let now = Instant::now();
                    times.push(nanoseconds(now.duration_since(sent)));
                    last = now.duration_since(begin);
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    lost += 1
                }
                // What an ICMP error tells is a loss too.
                Err(error) if self.udp && error.kind() == ErrorKind::ConnectionRefused => lost += 1,
                Err(error) => return Err(error).with_context(|| format!("after {} answers", times.len())),
            }
            if self.pause > 0 {
                thread::sleep(Duration::from_millis(self.pause));
            }
        }
        let total = begin.elapsed();
        times.sort_unstable();
        Ok(RoundTrips {
            answers: u64::try_from(times.len())?,
            lost,
            p50_ns: times.get(times.len() / 2).copied().unwrap_or(0),
            min_ns: times.first().copied().unwrap_or(0),
            last_answer_ms: nanoseconds(last) / 1_000_000,
            total_ms: nanoseconds(total) / 1_000_000,
        })
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(count: u64) -> Args {
        let host = Ipv4Addr::LOCALHOST.into();
        Args {
            cpu: None,
            udp: true,
            connect: false,
            count,
            seconds: 5.0,
            until_closed: false,
            give_up: None,
            size: 64,
            pause: 0,
            timeout: 20,
            host,
            port: 9,
        }
    }

    #[test]
    fn an_answer_that_does_not_come_is_a_loss_and_not_the_end() {
        let mut asked = 0;
        let seen = args(4).measure(|_| {
            asked += 1;
            if asked % 2 == 0 { Err(ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        let seen = seen.unwrap();
        assert_eq!((seen.answers, seen.lost), (2, 2));
    }

    #[test]
    fn a_client_gives_up_after_losses_in_a_row_and_not_after_scattered_ones() {
        let mut asked = 0;
        let seen = Args { give_up: Some(2), ..args(100) }.measure(|_| {
            asked += 1;
            if asked % 2 == 0 || asked > 10 { Err(ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        // Answered: 1, 3, 5, 7, 9. The tenth and eleventh are two in a row.
        let seen = seen.unwrap();
        assert_eq!((seen.answers, seen.lost), (5, 6));
    }

    #[test]
    fn a_broken_connection_is_an_error() {
        assert!(args(4).measure(|_| Err(ErrorKind::ConnectionReset.into())).is_err());
    }
}
