//! Clients of [`serve`](super::serve).

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrStorage, setsockopt, sockopt};
use nix::sys::time::TimeVal;
use serde::{Deserialize, Serialize};

use super::netexec;
use crate::ui;

/// `testbed probe dial`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// UDP instead of TCP.
    #[arg(long)]
    udp: bool,
    /// So many times, one after another.
    #[arg(long, default_value_t = 1)]
    count: u32,
    /// Seconds to wait for each answer.
    #[arg(long, default_value_t = 3.0)]
    timeout: f64,
    /// The server is `agnhost netexec`: it is asked for its name and for the client it sees.
    #[arg(long, conflicts_with = "source_port")]
    netexec: bool,
    /// The client's port.
    #[arg(long)]
    source_port: Option<u16>,
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
    /// Address of the server.
    host: IpAddr,
    /// Its port.
    port: u16,
}

/// One attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// The answer, or why there was none.
    pub answer: Answer,
    /// Time until the answer or the error, in milliseconds.
    pub ms: f64,
}

/// What came of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// `NAME CLIENT-ADDRESS`.
    Reply(String),
    /// Why not.
    Err(String),
}

impl Args {
    /// Asks and prints. Succeeds whatever the answers are.
    pub fn run(self) -> Result<()> {
        let Self { udp, count, timeout, netexec, source_port, json, host, port } = self;
        let server = SocketAddr::new(host, port);
        let limit = Duration::from_secs_f64(timeout.clamp(0.001, 3600.0));
        for _ in 0..count {
            let begin = Instant::now();
            let outcome = match (udp, netexec) {
                (false, false) => ask_tcp(server, limit, source_port),
                (true, false) => ask_udp(server, limit, source_port),
                (false, true) => netexec::ask_http(server, limit),
                (true, true) => netexec::ask_udp(server, limit),
            };
            let ms = begin.elapsed().as_secs_f64() * 1000.0;
            let answer = match outcome {
                Ok(text) if text.trim().is_empty() => Answer::Err("empty answer".into()),
                Ok(text) => Answer::Reply(text.trim().to_owned()),
                Err(error) => Answer::Err(reason(&error)),
            };
            if json {
                ui::say(serde_json::to_string(&Attempt { answer, ms })?);
                continue;
            }
            match answer {
                Answer::Reply(text) => ui::say(format_args!("{text}  ({ms:.2} ms)")),
                Answer::Err(reason) => ui::say(format_args!("ERR {reason}  ({ms:.2} ms)")),
            }
        }
        Ok(())
    }
}

pub(super) fn reason(error: &std::io::Error) -> String {
    use std::io::ErrorKind::{
        ConnectionRefused, ConnectionReset, HostUnreachable, NetworkUnreachable, TimedOut, WouldBlock,
    };
    match error.kind() {
        TimedOut | WouldBlock => "timed out".into(),
        ConnectionRefused => "refused".into(),
        ConnectionReset => "reset".into(),
        HostUnreachable => "host unreachable".into(),
        NetworkUnreachable => "network unreachable".into(),
        // EINPROGRESS: the connection was not there when the time to wait was over.
        _ if error.raw_os_error() == Some(nix::errno::Errno::EINPROGRESS as i32) => "timed out".into(),
        _ => error.to_string(),
    }
}

fn ask_tcp(server: SocketAddr, limit: Duration, port: Option<u16>) -> std::io::Result<String> {
    let mut stream = match port {
        None => TcpStream::connect_timeout(&server, limit)?,
        Some(port) => connect_from(server, limit, port)?,
    };
    stream.set_read_timeout(Some(limit))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let _ = stream.flush();
    Ok(text)
}

/// Connects from a given port, which may still be in TIME_WAIT.
fn connect_from(server: SocketAddr, limit: Duration, port: u16) -> std::io::Result<TcpStream> {
    let family = if server.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let fd: OwnedFd = socket::socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    // Bounds connect() too: socket(7), SO_SNDTIMEO.
    let wait =
        TimeVal::new(i64::try_from(limit.as_secs()).unwrap_or(i64::MAX), i64::from(limit.subsec_micros()));
    setsockopt(&fd, sockopt::SendTimeout, &wait)?;
    socket::bind(fd.as_raw_fd(), &SockaddrStorage::from(any(server, port)))?;
    socket::connect(fd.as_raw_fd(), &SockaddrStorage::from(server))?;
    Ok(TcpStream::from(fd))
}

fn any(server: SocketAddr, port: u16) -> SocketAddr {
    if server.is_ipv4() { (Ipv4Addr::UNSPECIFIED, port).into() } else { (Ipv6Addr::UNSPECIFIED, port).into() }
}

fn ask_udp(server: SocketAddr, limit: Duration, port: Option<u16>) -> std::io::Result<String> {
    let socket = UdpSocket::bind(any(server, port.unwrap_or(0)))?;
    socket.connect(server)?;
    socket.set_read_timeout(Some(limit))?;
    socket.send(b"?\n")?;
    let mut buffer = [0; 2048];
    let length = socket.recv(&mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}
