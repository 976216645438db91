//! Datagrams: one thread for all sessions, as they share a port.

use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, sendto};

use super::counters::Trial;
use super::sessions::Sessions;
use crate::net::{self, Received, Receiver};
use crate::protocol::control::MOST_DATAGRAM;
use crate::protocol::data::{Head, Kind};

/// How often a thread that sleeps looks whether it is to move to another CPU.
const LOOK: Duration = Duration::from_millis(100);

/// Starts the thread.
pub(super) fn start(socket: UdpSocket, sessions: &Arc<Sessions>) -> std::io::Result<()> {
    socket.set_read_timeout(Some(LOOK))?;
    let sessions = Arc::clone(sessions);
    std::thread::Builder::new().name("datagrams".into()).spawn(move || serve(&socket, &sessions)).map(drop)
}

fn serve(socket: &UdpSocket, sessions: &Sessions) {
    let mut receiver = Receiver::new(usize::try_from(MOST_DATAGRAM).unwrap_or(usize::MAX));
    let mut answer = vec![0; usize::try_from(MOST_DATAGRAM).unwrap_or(0)];
    let mut pinned = None;
    // The last session that was looked up: most datagrams in a row are of one.
    let mut last: Option<(u64, Arc<Trial>)> = None;
    loop {
        let wanted = sessions.cpu();
        if wanted != pinned {
            match wanted {
                // It was tried when the test was prepared.
                Some(cpu) => drop(net::pin(cpu)),
                None => net::unpin(),
            }
            pinned = wanted;
        }
        match receiver.receive(socket) {
            Ok(()) => {}
            // An ICMP error of an earlier answer, or nothing came.
            Err(Errno::EAGAIN | Errno::EINTR | Errno::ECONNREFUSED) => {
                last = None;
                continue;
            }
            Err(_) => {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
        }
        let now = Instant::now();
        for (received, payload) in receiver.datagrams() {
            let Some(head) = payload.get(..received.bytes).and_then(Head::read) else { continue };
            if last.as_ref().is_none_or(|(tag, trial)| *tag != head.tag || trial.is_ended()) {
                last = sessions.trial(head.tag).map(|trial| (head.tag, trial));
            }
            let Some((_, trial)) = &last else { continue };
            take(socket, trial, head, received, &mut answer, now);
        }
    }
}

fn take(socket: &UdpSocket, trial: &Trial, head: Head, received: Received, answer: &mut [u8], now: Instant) {
    match head.kind {
        Kind::Request => {
            let length = usize::try_from(trial.settings.response_bytes).unwrap_or(0);
            let Some(payload) = answer.get_mut(..length).filter(|_| trial.settings.test.asks()) else {
                return;
            };
            head.write(payload);
            let Some(from) = received.from else { return };
            trial.received.fetch_add(u64::try_from(received.bytes).unwrap_or(0), Relaxed);
            // What a full queue does not take is lost, as it would be on the way.
            if sendto(socket.as_raw_fd(), payload, &from, MsgFlags::empty()).is_ok() {
                trial.transactions.fetch_add(1, Relaxed);
                trial.sent.fetch_add(u64::try_from(length).unwrap_or(0), Relaxed);
            }
        }
        Kind::Early => {}
        Kind::Counted => {
            let mut flows = trial.flows.lock().unwrap_or_else(PoisonError::into_inner);
            flows.arrived(&trial.settings, head.flow, head.number, received.bytes, now);
        }
    }
}
