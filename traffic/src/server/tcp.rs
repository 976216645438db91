//! Data connections: threads that accept and serve one connection after another, so that a new connection costs no new thread.
//!
//! There is always one thread that accepts, until there are as many as connections are allowed.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use super::PATIENCE;
use super::counters::Trial;
use super::sessions::Sessions;
use crate::measure::retransmits;
use crate::net;
use crate::protocol::control::MOST_CONNECTIONS;
use crate::protocol::data::{HELLO_BYTES, Mode, STOP, WELCOME, read_hello};

/// Most threads: connections of two tests, and some that have not said anything yet.
const MOST: usize = 2 * MOST_CONNECTIONS as usize + 64;
/// Threads that stay when there is nothing to do.
const KEPT: usize = 4;
/// Stack of a thread; buffers are not on it.
const STACK: usize = 128 << 10;
/// Bytes of one read and one write of a stream.
const CHUNK: usize = 128 << 10;
/// How often a connection that sleeps looks whether its test has ended.
const LOOK: Duration = Duration::from_secs(1);

struct Pool {
    listener: TcpListener,
    sessions: Arc<Sessions>,
    threads: AtomicUsize,
    idle: AtomicUsize,
}

/// Starts the threads.
pub(super) fn start(listener: TcpListener, sessions: &Arc<Sessions>) -> std::io::Result<()> {
    let sessions = Arc::clone(sessions);
    let pool = Arc::new(Pool { listener, sessions, threads: AtomicUsize::new(0), idle: AtomicUsize::new(0) });
    pool.add()
}

impl Pool {
    /// One more thread, if there may be one more.
    fn add(self: &Arc<Self>) -> std::io::Result<()> {
        if self.threads.fetch_add(1, Relaxed) >= MOST {
            self.threads.fetch_sub(1, Relaxed);
            return Ok(());
        }
        self.idle.fetch_add(1, Relaxed);
        let pool = Arc::clone(self);
        let thread = std::thread::Builder::new().name("data".into()).stack_size(STACK);
        thread.spawn(move || pool.work()).map(drop).inspect_err(|_| {
            self.threads.fetch_sub(1, Relaxed);
            self.idle.fetch_sub(1, Relaxed);
        })
    }

    fn work(self: &Arc<Self>) {
        let mut pinned = None;
        let mut buffer = Vec::new();
        loop {
            let Ok((stream, _)) = self.listener.accept() else {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            };
            if self.idle.fetch_sub(1, Relaxed) == 1 {
                // Without another thread the next connection waits for this one.
                let _ = self.add();
            }
            serve(&stream, &self.sessions, &mut pinned, &mut buffer);
            drop(stream);
            if self.idle.load(Relaxed) >= KEPT {
                self.threads.fetch_sub(1, Relaxed);
                return;
            }
            self.idle.fetch_add(1, Relaxed);
        }
    }
}

/// A connection, until it ends or its test does. What is no connection of a session gets no answer.
fn serve(mut stream: &TcpStream, sessions: &Sessions, pinned: &mut Option<u32>, buffer: &mut Vec<u8>) {
    let limits = stream.set_read_timeout(Some(PATIENCE)).and_then(|()| stream.set_write_timeout(Some(LOOK)));
    let mut head = [0; HELLO_BYTES];
    if limits.and_then(|()| stream.set_nodelay(true)).and_then(|()| stream.read_exact(&mut head)).is_err() {
        return;
    }
    let Some((tag, mode)) = read_hello(&head) else { return };
    let Some(trial) = sessions.trial(tag) else { return };
    if let Some(cpu) = trial.settings.server_cpu.filter(|cpu| *pinned != Some(*cpu)) {
        // It was tried when the test was prepared.
        let _ = net::pin(cpu);
        *pinned = Some(cpu);
    } else if trial.settings.server_cpu.is_none() && pinned.take().is_some() {
        net::unpin();
    }
    if trial.open.fetch_add(1, Relaxed) >= may_be_open(trial.settings.connections) {
        trial.open.fetch_sub(1, Relaxed);
        return;
    }
    trial.connections.fetch_add(1, Relaxed);
    let outcome = match mode {
        Mode::Once => once(stream, &trial, buffer),
        _ => stream.set_read_timeout(Some(LOOK)).and_then(|()| stream.write_all(&[WELCOME])).and_then(|()| {
            match mode {
                Mode::Answer => answer(stream, &trial, buffer),
                Mode::Receive => receive(stream, &trial, buffer),
                _ => send(stream, &trial, buffer),
            }
        }),
    };
    if let Err(error) = outcome {
        trial.fail(error.kind());
    }
    if mode != Mode::Once {
        trial.retransmits.fetch_add(retransmits(stream), Relaxed);
    }
    trial.open.fetch_sub(1, Relaxed);
}

/// Connections of a test that may be open: in both directions, and some that are just ending.
fn may_be_open(connections: u32) -> usize {
    usize::try_from(connections).map_or(0, |count| 2 * count + 64)
}

/// A buffer of so many zeros: at the beginning of a connection nothing of another one is in it.
fn room(buffer: &mut Vec<u8>, bytes: usize) -> &mut [u8] {
    buffer.clear();
    buffer.resize(bytes, 0);
    buffer
}

/// Lengths of request and answer.
fn lengths(trial: &Trial) -> (usize, usize) {
    let length = |bytes: u32| usize::try_from(bytes).unwrap_or(0);
    (length(trial.settings.request_bytes), length(trial.settings.response_bytes))
}

fn count(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// One request, whose head has been read, and its answer.
fn once(mut stream: &TcpStream, trial: &Trial, buffer: &mut Vec<u8>) -> std::io::Result<()> {
    let (request, response) = lengths(trial);
    let rest = request.saturating_sub(HELLO_BYTES);
    let buffer = room(buffer, rest.max(response));
    stream.read_exact(&mut buffer[..rest])?;
    stream.write_all(&buffer[..response])?;
    trial.transactions.fetch_add(1, Relaxed);
    trial.received.fetch_add(count(request), Relaxed);
    trial.sent.fetch_add(count(response), Relaxed);
    Ok(())
}

/// Fills the buffer; false at the end of the connection or the test.
fn fill(mut stream: &TcpStream, trial: &Trial, buffer: &mut [u8]) -> std::io::Result<bool> {
    let mut have = 0;
    while have < buffer.len() {
        match stream.read(&mut buffer[have..]) {
            Ok(0) => return Ok(false),
            Ok(bytes) => have += bytes,
            Err(error) if is_pause(&error) => {
                if trial.is_ended() {
                    return Ok(false);
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

fn is_pause(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn answer(mut stream: &TcpStream, trial: &Trial, buffer: &mut Vec<u8>) -> std::io::Result<()> {
    let (request, response) = lengths(trial);
    let buffer = room(buffer, request.max(response));
    while fill(stream, trial, &mut buffer[..request])? {
        stream.write_all(&buffer[..response])?;
        trial.transactions.fetch_add(1, Relaxed);
        trial.received.fetch_add(count(request), Relaxed);
        trial.sent.fetch_add(count(response), Relaxed);
    }
    Ok(())
}

fn receive(mut stream: &TcpStream, trial: &Trial, buffer: &mut Vec<u8>) -> std::io::Result<()> {
    let buffer = room(buffer, CHUNK);
    let mut all = 0_u64;
    loop {
        match stream.read(buffer) {
            Ok(0) => return Ok(()),
            Ok(bytes) => {
                trial.received.fetch_add(count(bytes), Relaxed);
                all += count(bytes);
                if buffer[bytes - 1] == STOP {
                    stream.write_all(&all.to_be_bytes())?;
                }
            }
            Err(error) if is_pause(&error) => {
                if trial.is_ended() {
                    return Ok(());
                }
            }
            Err(error) => return Err(error),
        }
    }
}

fn send(mut stream: &TcpStream, trial: &Trial, buffer: &mut Vec<u8>) -> std::io::Result<()> {
    let buffer = room(buffer, usize::try_from(trial.settings.message_bytes).unwrap_or(CHUNK));
    while !trial.is_ended() {
        match stream.write(buffer) {
            Ok(bytes) => drop(trial.sent.fetch_add(count(bytes), Relaxed)),
            Err(error) if is_pause(&error) => {}
            // The client has had enough.
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {
                return Ok(());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
