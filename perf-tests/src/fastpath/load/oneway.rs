//! Traffic in one direction. What counts is what arrives, in the time from the first that was sent to the last that came: the
//! receiver shares the CPU with the sender, and may have much to do yet when all was sent.
//!
//! The sender ends a slice by a *stop*, and waits until the receiver has answered it; so the sender sees the complete slice.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::socket::{setsockopt, sockopt};
use serde::{Deserialize, Serialize};

use super::account::monotonic;
use super::session::{self, Command, Session};
use super::{Measured, PATIENCE, SMALL, per_second, ready};

/// Room in the receiver's socket: a full one would drop what the path has carried.
const ROOM: usize = 16 << 20;
/// Bytes of one read and one write of a stream.
const CHUNK: usize = 128 << 10;
/// So many datagrams are sent between two looks at the clock.
const BATCH: u32 = 32;
/// What all is filled with, and a stop: the first byte of a datagram, and the last one of a stream's slice.
const FILL: u8 = 7;
const STOP: u8 = 9;
/// A stop whose answer has not come by then is sent again.
const ANSWER: Duration = Duration::from_millis(100);

/// The sender's part of a slice.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sent {
    /// When the first was sent: `CLOCK_MONOTONIC` in nanoseconds.
    begin: u64,
    /// The part of the time, until all had arrived, in which other processes had the CPU.
    away: f64,
}

/// The receiver's part of a slice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Arrived {
    /// Datagrams, or bits.
    count: u64,
    /// When the last came: `CLOCK_MONOTONIC` in nanoseconds.
    last: u64,
}

impl Sent {
    /// What was sent and what arrived, as one result.
    pub(crate) fn with(self, arrived: Arrived) -> Measured {
        let time = Duration::from_nanos(arrived.last.saturating_sub(self.begin));
        let per_second = per_second(arrived.count, time);
        Measured { per_second, median_us: None, away: self.away }
    }
}

/// Counts datagrams, without end.
pub(super) fn count_datagrams(at: SocketAddr, mut out: impl Write) -> Result<()> {
    let socket = UdpSocket::bind(at).with_context(|| format!("cannot listen on {at}"))?;
    setsockopt(&socket, sockopt::RcvBufForce, &ROOM).context("SO_RCVBUFFORCE")?;
    ready()?;
    let mut buffer = [0; 2 * SMALL];
    let (mut arrived, mut answered) = (Arrived::default(), 0);
    loop {
        let (length, from) = socket.recv_from(&mut buffer).context("datagram")?;
        match Stop::read(&buffer[..length]) {
            None => arrived = Arrived { count: arrived.count + 1, last: monotonic()? },
            Some(stop) => {
                socket.send_to(&stop.bytes(), from).context("answer to the stop")?;
                // One that was sent again, as its answer was late, is not the end of another slice.
                if stop.0 != answered {
                    answered = stop.0;
                    session::answer(&mut out, &std::mem::take(&mut arrived))?;
                }
            }
        }
    }
}

/// Sends datagrams as fast as they go.
pub(super) fn blast(at: SocketAddr, session: Session) -> Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(at)?;
    socket.set_read_timeout(Some(ANSWER))?;
    let mut stop = Stop(0);
    send(session, |end| {
        while Instant::now() < end {
            for _ in 0..BATCH {
                // What a full queue does not take is not sent.
                let _ = socket.send(&[FILL; SMALL]);
            }
        }
        stop.0 += 1;
        stop.deliver(&socket)
    })
}

/// The end of a slice of datagrams, by its number.
struct Stop(u64);

impl Stop {
    fn read(datagram: &[u8]) -> Option<Self> {
        match datagram.split_first() {
            Some((&STOP, number)) => number.first_chunk().map(|bytes| Self(u64::from_be_bytes(*bytes))),
            _ => None,
        }
    }

    fn bytes(&self) -> [u8; 9] {
        let mut bytes = [STOP; 9];
        bytes[1..].copy_from_slice(&self.0.to_be_bytes());
        bytes
    }

    /// Sends it until it is answered.
    fn deliver(&self, socket: &UdpSocket) -> Result<()> {
        let limit = Instant::now() + PATIENCE;
        let mut answer = [0; 9];
        while Instant::now() < limit {
            socket.send(&self.bytes()).context("stop")?;
            loop {
                match socket.recv(&mut answer) {
                    Ok(_) if answer == self.bytes() => return Ok(()),
                    Ok(_) => {}
                    Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                        break;
                    }
                    Err(error) => return Err(error).context("answer to the stop"),
                }
            }
        }
        bail!("the receiver does not answer")
    }
}

/// Counts the bits of one connection until it is closed.
pub(super) fn count_bits(at: SocketAddr, mut out: impl Write) -> Result<()> {
    let listener = TcpListener::bind(at).with_context(|| format!("cannot listen on {at}"))?;
    ready()?;
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; CHUNK];
    let mut arrived = Arrived::default();
    loop {
        let length = stream.read(&mut buffer).context("stream")?;
        let Some(last) = length.checked_sub(1).and_then(|at| buffer.get(at)) else { return Ok(()) };
        arrived = Arrived { count: arrived.count + 8 * u64::try_from(length)?, last: monotonic()? };
        if *last == STOP {
            stream.write_all(&[STOP]).context("answer to the stop")?;
            session::answer(&mut out, &std::mem::take(&mut arrived))?;
        }
    }
}

/// Makes the namespace that we are in fit for [`pour`]: a connection that slept shall not start small again.
pub(super) fn prepare_namespace() -> Result<()> {
    fs::write("/proc/sys/net/ipv4/tcp_slow_start_after_idle", "0").context("sysctl tcp_slow_start_after_idle")
}

/// Writes to one connection as fast as it takes it.
pub(super) fn pour(at: SocketAddr, session: Session) -> Result<()> {
    let mut stream =
        TcpStream::connect_timeout(&at, PATIENCE).with_context(|| format!("cannot connect to {at}"))?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let chunk = vec![FILL; CHUNK];
    send(session, |end| {
        while Instant::now() < end {
            stream.write_all(&chunk).context("stream")?;
        }
        stream.write_all(&[STOP]).context("stop")?;
        stream.read_exact(&mut [0]).context("answer to the stop")
    })
}

/// Runs slices as ordered, without end: `slice` sends until a moment, and returns when all has arrived.
fn send(mut session: Session, mut slice: impl FnMut(Instant) -> Result<()>) -> Result<()> {
    while let Some(Command { length, peer }) = session.next() {
        let account = session.begin(peer)?;
        let begin = monotonic()?;
        slice(Instant::now() + length)?;
        let away = session.away(account)?;
        session.answer(&Sent { begin, away })?;
    }
    Ok(())
}
