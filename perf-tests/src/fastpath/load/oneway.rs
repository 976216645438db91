//! Traffic in one direction. What counts is what arrives, in the time from the first that was sent to the last that came:
//! the receiver shares the CPU with the sender, and may have much to do yet when all was sent.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};
use std::{fs, io};

use anyhow::{Context, Result, bail};
use nix::sys::socket::{setsockopt, sockopt};
use serde::{Deserialize, Serialize};

use super::account::monotonic;
use super::session::{Command, Session};
use super::{Measured, PATIENCE, SMALL, per_second, ready};

/// Room in the receiver's socket: a full one would drop what the path has carried.
const ROOM: usize = 16 << 20;
/// Bytes of one read and one write of a stream.
const CHUNK: usize = 128 << 10;
/// So many datagrams are sent between two looks at the clock.
const BATCH: u32 = 32;
/// When nothing came for so long, the receiver looks whether it was the last. One tick of the slowest usual kernel.
const QUIET: Duration = Duration::from_millis(10);

/// What a sender says at the end of a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sent {
    /// Datagrams, or bytes.
    pub(crate) sent: u64,
    /// When the first was sent: `CLOCK_MONOTONIC` in nanoseconds.
    pub(crate) begin: u64,
}

/// Counts datagrams.
pub(super) fn count_datagrams(at: SocketAddr, session: Session) -> Result<()> {
    let socket = UdpSocket::bind(at).with_context(|| format!("cannot listen on {at}"))?;
    socket.set_read_timeout(Some(QUIET))?;
    setsockopt(&socket, sockopt::RcvBufForce, &ROOM).context("SO_RCVBUFFORCE")?;
    ready()?;
    let mut buffer = [0; 2 * SMALL];
    // What was sent and is not there when all is quiet was lost.
    count(session, 1, Duration::ZERO, || socket.recv(&mut buffer).map(|_| 1))
}

/// Counts the bytes of one connection, as bits per second.
pub(super) fn count_bytes(at: SocketAddr, session: Session) -> Result<()> {
    let listener = TcpListener::bind(at).with_context(|| format!("cannot listen on {at}"))?;
    ready()?;
    let (mut stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(QUIET))?;
    let mut buffer = vec![0; CHUNK];
    count(session, 8, PATIENCE, || match stream.read(&mut buffer)? {
        0 => Err(ErrorKind::UnexpectedEof.into()),
        length => Ok(length),
    })
}

/// Counts what `receive` gives, slice by slice; waits up to `patience` for what was sent and did not come.
fn count(
    mut session: Session,
    unit: u64,
    patience: Duration,
    mut receive: impl FnMut() -> io::Result<usize>,
) -> Result<()> {
    while let Some(command) = session.next() {
        let Command::Open { peer } = command else { bail!("{command:?} without an open slice") };
        let account = session.begin(peer)?;
        session.say("open")?;
        let (mut count, mut last, mut closed) = (0, 0, None);
        loop {
            match receive() {
                Ok(more) => {
                    count += u64::try_from(more)?;
                    last = monotonic()?;
                    continue;
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => return Err(error).context("receiving"),
            }
            closed = closed.or_else(|| session.pending().map(|command| (command, Instant::now())));
            let Some((command, since)) = closed else { continue };
            let Command::Close { sent, begin } = command else { bail!("{command:?} in an open slice") };
            if count >= sent || since.elapsed() >= patience {
                let time = Duration::from_nanos(last.saturating_sub(begin));
                let per_second = per_second(unit * count, time);
                let away = session.away(account)?;
                session.answer(&Measured { per_second, away, ..Measured::default() })?;
                break;
            }
        }
    }
    Ok(())
}

/// Sends datagrams as fast as they go.
pub(super) fn blast(at: SocketAddr, session: Session) -> Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(at)?;
    send(session, || {
        // What a full queue does not take is not sent.
        Ok((0..BATCH).filter(|_| socket.send(&[7; SMALL]).is_ok()).count())
    })
}

/// Makes the namespace that we are in fit for [`pour`]: a connection that slept shall not start small again.
pub(super) fn prepare_namespace() -> Result<()> {
    fs::write("/proc/sys/net/ipv4/tcp_slow_start_after_idle", "0").context("sysctl tcp_slow_start_after_idle")
}

/// Writes to one connection as fast as it takes it.
pub(super) fn pour(at: SocketAddr, session: Session) -> Result<()> {
    let mut stream =
        TcpStream::connect_timeout(&at, PATIENCE).with_context(|| format!("cannot connect to {at}"))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let chunk = vec![7; CHUNK];
    send(session, || stream.write_all(&chunk).map(|()| CHUNK).context("stream"))
}

/// Repeats `some`, which tells how much it sent, slice by slice.
fn send(mut session: Session, mut some: impl FnMut() -> Result<usize>) -> Result<()> {
    while let Some(command) = session.next() {
        let Command::Go { length, .. } = command else { bail!("{command:?} is for receivers") };
        let (begin, end, mut sent) = (monotonic()?, Instant::now() + length, 0);
        while Instant::now() < end {
            sent += u64::try_from(some()?)?;
        }
        session.answer(&Sent { sent, begin })?;
    }
    Ok(())
}
