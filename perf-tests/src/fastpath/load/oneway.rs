//! Traffic in one direction. The receiver measures, in a window that starts a warm-up after the first arrival.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Instant;

use anyhow::{Context, Result};
use nix::sys::socket::{setsockopt, sockopt};

use super::{Measured, PATIENCE, SMALL, Window, ready};

/// Room in the receiver's socket: a full one would drop what the path has carried.
const ROOM: usize = 16 << 20;
/// Bytes of one read and one write of a stream.
const CHUNK: usize = 128 << 10;
/// So many datagrams are sent between two looks at the clock.
const BATCH: u32 = 32;

/// Counts datagrams.
pub(super) fn count_datagrams(at: SocketAddr, window: Window) -> Result<Measured> {
    let socket = UdpSocket::bind(at).with_context(|| format!("cannot listen on {at}"))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    setsockopt(&socket, sockopt::RcvBufForce, &ROOM).context("SO_RCVBUFFORCE")?;
    ready()?;
    let mut buffer = [0; 2 * SMALL];
    socket.recv(&mut buffer).context("first datagram")?;
    socket.set_read_timeout(Some(PATIENCE / 50))?;
    let (begin, end) = window.starting_now();
    let mut count = 0;
    loop {
        let arrived = match socket.recv(&mut buffer) {
            Ok(_) => true,
            // A path that stopped carrying them: what came is what counts.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => false,
            Err(error) => return Err(error).context("datagram"),
        };
        match Instant::now() {
            now if now >= end => break,
            now if now >= begin && arrived => count += 1,
            _ => {}
        }
    }
    Ok(Measured { per_second: window.rate(count), ..Measured::default() })
}

/// Sends datagrams as fast as they go.
pub(super) fn blast(at: SocketAddr, window: Window) -> Result<Measured> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(at)?;
    let end = Instant::now() + window.traffic();
    let mut sent = 0;
    while Instant::now() < end {
        for _ in 0..BATCH {
            // A full queue, or a receiver that has seen enough and is gone.
            if socket.send(&[7; SMALL]).is_ok() {
                sent += 1;
            }
        }
    }
    Ok(Measured { per_second: super::per_second(sent, window.traffic()), ..Measured::default() })
}

/// Counts the bytes of one connection, as bits per second.
pub(super) fn count_bytes(at: SocketAddr, window: Window) -> Result<Measured> {
    let listener = TcpListener::bind(at).with_context(|| format!("cannot listen on {at}"))?;
    ready()?;
    let (mut stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut buffer = vec![0; CHUNK];
    let (begin, end) = window.starting_now();
    let mut count = 0;
    loop {
        let length = stream.read(&mut buffer).context("stream")?;
        match Instant::now() {
            now if now >= end || length == 0 => break,
            now if now >= begin => count += u64::try_from(length)?,
            _ => {}
        }
    }
    Ok(Measured { per_second: window.rate(8 * count), ..Measured::default() })
}

/// Writes to one connection as fast as it takes it.
pub(super) fn pour(at: SocketAddr, window: Window) -> Result<Measured> {
    let mut stream =
        TcpStream::connect_timeout(&at, PATIENCE).with_context(|| format!("cannot connect to {at}"))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let end = Instant::now() + window.traffic();
    let chunk = vec![7; CHUNK];
    while Instant::now() < end {
        // The receiver closes when it has seen enough.
        if stream.write_all(&chunk).is_err() {
            break;
        }
    }
    Ok(Measured::default())
}
