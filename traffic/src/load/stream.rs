//! Bytes over TCP connections, as many as go; in one direction, the other, or both.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::drive::{Tally, Work};
use super::exchange::open;
use super::{Phase, Shared, Way};
use crate::measure::retransmits;
use crate::protocol::data::{Mode, STOP};

/// Bytes of one read.
const CHUNK: usize = 128 << 10;

/// Who sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Directions {
    /// The client.
    Forward,
    /// The server.
    Reverse,
    /// Both ends send, each on connections of its own.
    Both,
}

/// One work for each connection.
pub(crate) fn stream_threads(way: &Way, directions: Directions) -> Result<Vec<Work>> {
    let modes: &[Mode] = match directions {
        Directions::Forward => &[Mode::Receive],
        Directions::Reverse => &[Mode::Send],
        Directions::Both => &[Mode::Receive, Mode::Send],
    };
    let mut works: Vec<Work> = Vec::new();
    for _ in 0..way.settings.connections {
        for mode in modes {
            let (stream, bytes) = (open(way, *mode)?, usize::try_from(way.settings.message_bytes)?);
            works.push(match mode {
                Mode::Receive => Box::new(move |shared: &Shared| send(stream, bytes, shared)),
                _ => Box::new(move |shared: &Shared| receive(stream, shared)),
            });
        }
    }
    Ok(works)
}

fn send(mut stream: TcpStream, bytes: usize, shared: &Shared) -> Result<Tally> {
    let mut tally = Tally::new()?;
    let chunk = vec![0; bytes];
    loop {
        let phase = shared.phase();
        if phase == Phase::Stop {
            break;
        }
        let sent = u64::try_from(stream.write(&chunk).context("stream")?)?;
        tally.all_sent_bytes += sent;
        if phase == Phase::Measure {
            tally.sent_bytes += sent;
            shared.done.fetch_add(sent, Relaxed);
        }
    }
    tally.retransmits = retransmits(&stream);
    // Until the server has all of it: what it counts is to be complete.
    stream.shutdown(std::net::Shutdown::Write).context("end of a stream")?;
    // An error is one of the server, which reports it.
    let _ = stream.read(&mut [0]);
    Ok(tally)
}

fn receive(mut stream: TcpStream, shared: &Shared) -> Result<Tally> {
    let mut tally = Tally::new()?;
    let mut buffer = vec![0; CHUNK];
    loop {
        let phase = shared.phase();
        if phase == Phase::Stop {
            return Ok(tally);
        }
        let received = match stream.read(&mut buffer) {
            Ok(received) => u64::try_from(received)?,
            Err(error) if error.kind() == ErrorKind::Interrupted => 0,
            Err(error) => return Err(error).context("stream"),
        };
        anyhow::ensure!(received > 0, "the server has ended the stream");
        tally.all_received_bytes += received;
        if phase == Phase::Measure {
            tally.received_bytes += received;
            shared.done.fetch_add(received, Relaxed);
        }
    }
}

/// A stream that is measured slice by slice. The server counts; its answer to the last byte of a slice ends it.
#[derive(Debug)]
pub(crate) struct Stream {
    stream: TcpStream,
    chunk: Vec<u8>,
    counted: u64,
}

impl Stream {
    /// Opens the connection.
    pub(crate) fn open(way: &Way) -> Result<Self> {
        let chunk = vec![0; usize::try_from(way.settings.message_bytes)?];
        Ok(Self { stream: open(way, Mode::Receive)?, chunk, counted: 0 })
    }

    /// Sends for a time, and answers how many bytes have come in how many seconds.
    pub(crate) fn slice(&mut self, length: Duration) -> Result<(u64, f64)> {
        let start = Instant::now();
        while start.elapsed() < length {
            self.stream.write_all(&self.chunk).context("stream")?;
        }
        self.stream.write_all(&[STOP]).context("end of a slice")?;
        let mut count = [0; 8];
        self.stream.read_exact(&mut count).context("count of a slice")?;
        let before = std::mem::replace(&mut self.counted, u64::from_be_bytes(count));
        Ok((self.counted.saturating_sub(before), start.elapsed().as_secs_f64()))
    }
}
