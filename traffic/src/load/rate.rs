//! Numbered datagrams at a rate, or as many as go.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::errno::Errno;

use super::drive::{Tally, Work};
use super::{PATIENCE, Phase, Shared, Way};
use crate::net::{self, BATCH, Sender};
use crate::protocol::data::{Head, Kind};

/// Shortest sleep: what is due meanwhile goes as one batch.
const NAP: Duration = Duration::from_micros(50);

/// One work for each flow.
pub(crate) fn rate_threads(way: &Way) -> Result<Vec<Work>> {
    let count = u16::try_from(way.settings.connections)?;
    let each = way.rate.map(|rate| rate / f64::from(count));
    (0..count)
        .map(|flow| -> Result<Work> {
            let socket =
                net::udp_client(way.data, PATIENCE).with_context(|| format!("UDP socket to {}", way.data))?;
            let head = Head { tag: way.tag, kind: Kind::Early, flow, number: 0 };
            let bytes = usize::try_from(way.settings.message_bytes)?;
            Ok(Box::new(move |shared: &Shared| send(&socket, head, bytes, each, shared)))
        })
        .collect()
}

fn send(
    socket: &std::net::UdpSocket,
    mut head: Head,
    bytes: usize,
    rate: Option<f64>,
    shared: &Shared,
) -> Result<Tally> {
    let mut tally = Tally::new()?;
    let mut sender = Sender::new(bytes);
    let (mut start, mut offered) = (Instant::now(), 0_u64);
    loop {
        let phase = shared.phase();
        let kind = match phase {
            Phase::Stop => break,
            Phase::Measure => Kind::Counted,
            Phase::WarmUp | Phase::After => Kind::Early,
        };
        if kind != head.kind {
            head = Head { kind, number: 0, ..head };
            // What the warm-up could not send in time is not caught up with in the measurement.
            (start, offered) = (Instant::now(), 0);
        }
        let count = match rate {
            None => BATCH,
            Some(rate) => {
                let due = due(rate, start.elapsed()).saturating_sub(offered);
                if due == 0 {
                    let next = Duration::try_from_secs_f64((offered + 1) as f64 / rate).unwrap_or(NAP);
                    let left = (start + next).saturating_duration_since(Instant::now());
                    std::thread::sleep(left.clamp(NAP, Duration::from_millis(50)));
                    continue;
                }
                usize::try_from(due).unwrap_or(BATCH).min(BATCH)
            }
        };
        let first = head.number;
        let write = |index: usize, payload: &mut [u8]| {
            Head { number: first + u64::try_from(index).unwrap_or(0), ..head }.write(payload);
        };
        let sent = match sender.send(socket, count, write) {
            Ok(sent) => u64::try_from(sent)?,
            // A full queue, or an ICMP error of an earlier datagram.
            Err(error @ (Errno::ENOBUFS | Errno::EAGAIN | Errno::ECONNREFUSED | Errno::EINTR)) => {
                if kind == Kind::Counted {
                    *tally.failures.entry(error.desc().to_owned()).or_default() += 1;
                }
                0
            }
            Err(Errno::EMSGSIZE) => {
                anyhow::bail!("--message-bytes {bytes}: too large for one datagram on this path")
            }
            Err(error) => return Err(error).context("datagrams"),
        };
        head.number += sent;
        offered += sent;
        if kind == Kind::Counted {
            tally.datagrams += sent;
            tally.sent_bytes += sent * u64::try_from(bytes)?;
            shared.done.fetch_add(sent, Relaxed);
        }
    }
    Ok(tally)
}

/// How many are due after a time.
fn due(rate: f64, time: Duration) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "positive, and a cast saturates"
    )]
    let due = (rate * time.as_secs_f64()) as u64;
    due
}
