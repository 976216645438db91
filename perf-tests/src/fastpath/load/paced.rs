//! Datagrams at a steady rate, each with its number; the receiver notes when they come.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{PATIENCE, Recorded, ready, wall_clock};

/// How long traffic continues after the last moment that is measured.
const BEYOND: Duration = Duration::from_millis(100);
/// A stream that was quiet for so long has ended.
const QUIET: Duration = Duration::from_millis(300);

/// Records arrivals until there are no more, or the run is over.
pub(super) fn record(at: SocketAddr, length: Duration) -> Result<Recorded> {
    let socket = UdpSocket::bind(at).with_context(|| format!("cannot listen on {at}"))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    ready()?;
    let mut number = [0; 4];
    socket.recv(&mut number).context("first datagram")?;
    socket.set_read_timeout(Some(QUIET))?;
    let end = Instant::now() + length + BEYOND;
    let mut arrivals = vec![(wall_clock(), u32::from_be_bytes(number))];
    while Instant::now() < end {
        match socket.recv(&mut number) {
            Ok(_) => arrivals.push((wall_clock(), u32::from_be_bytes(number))),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
            Err(error) => return Err(error).context("datagram"),
        }
    }
    Ok(Recorded { arrivals })
}

/// Sends `rate` datagrams a second; those that were missed in a moment without the CPU follow at once.
pub(super) fn send(at: SocketAddr, length: Duration, rate: u32) -> Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(at)?;
    let start = Instant::now();
    let pause = Duration::from_secs(1) / rate.max(1);
    let mut number: u32 = 0;
    while start.elapsed() < length + BEYOND {
        let due = start + pause * number;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        // An ICMP error of a receiver that has gone is no reason to stop.
        let _ = socket.send(&number.to_be_bytes());
        number += 1;
    }
    Ok(())
}
