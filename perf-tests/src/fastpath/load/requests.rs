//! Requests and answers, one at a time: both ends sleep until the other's message is there.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use super::{MESSAGE, Measured, PATIENCE, Window, ready};

/// A datagram of this length ends the serving end.
const END: usize = 1;
/// Lost datagrams in a row after which a path counts as dead.
const LOST: u32 = 3;

/// Answers on one connection until it is closed.
pub(super) fn serve_tcp(at: SocketAddr) -> Result<Measured> {
    let listener = TcpListener::bind(at).with_context(|| format!("cannot listen on {at}"))?;
    ready()?;
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut message = [0; MESSAGE];
    loop {
        match stream.read_exact(&mut message) {
            Ok(()) => stream.write_all(&message).context("answer")?,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(Measured::default()),
            Err(error) => return Err(error).context("request"),
        }
    }
}

/// Asks on one connection.
pub(super) fn drive_tcp(at: SocketAddr, window: Window) -> Result<Measured> {
    let mut stream =
        TcpStream::connect_timeout(&at, PATIENCE).with_context(|| format!("cannot connect to {at}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut message = [7; MESSAGE];
    measure(window, || {
        stream.write_all(&message).context("request")?;
        stream.read_exact(&mut message).context("answer")
    })
}

/// Answers datagrams until one says that it was the last.
pub(super) fn serve_udp(at: SocketAddr) -> Result<Measured> {
    let socket = UdpSocket::bind(at).with_context(|| format!("cannot listen on {at}"))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    ready()?;
    let mut message = [0; 2 * MESSAGE];
    loop {
        let (length, from) = socket.recv_from(&mut message).context("request")?;
        if length == END {
            return Ok(Measured::default());
        }
        socket.send_to(&message[..length], from).context("answer")?;
    }
}

/// Asks by datagrams.
pub(super) fn drive_udp(at: SocketAddr, window: Window) -> Result<Measured> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(at)?;
    socket.set_read_timeout(Some(PATIENCE / 10))?;
    let mut message = [7; MESSAGE];
    let mut lost = 0;
    let measured = measure(window, || {
        loop {
            socket.send(&message).context("request")?;
            match socket.recv(&mut message) {
                Ok(_) => {
                    lost = 0;
                    return Ok(());
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    lost += 1;
                    if lost > LOST {
                        bail!("{at} does not answer");
                    }
                }
                Err(error) => return Err(error).context("answer"),
            }
        }
    });
    // If it is lost the other end gives up by itself.
    let _ = socket.send(&[0; END]);
    measured
}

/// Runs transactions through the warm-up and the window, and counts those of the window.
fn measure(window: Window, mut transaction: impl FnMut() -> Result<()>) -> Result<Measured> {
    let (begin, end) = window.starting_now();
    while Instant::now() < begin {
        transaction()?;
    }
    let mut times = Vec::with_capacity(1 << 17);
    let start = Instant::now();
    let mut before = start;
    while before < end {
        transaction()?;
        let now = Instant::now();
        times.push(now.duration_since(before));
        before = now;
    }
    let count = u64::try_from(times.len())?;
    let half = times.len() / 2;
    let (_, median, _) = times.select_nth_unstable(half);
    Ok(Measured {
        per_second: super::per_second(count, before.duration_since(start)),
        median_us: Some(median.as_secs_f64() * 1e6),
        ..Measured::default()
    })
}
