//! Control connections: one thread each, and not many.

use std::io::{BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context, Result};

use super::PATIENCE;
use super::counters::Trial;
use super::sessions::{Session, Sessions};
use crate::measure::{Host, Waited};
use crate::protocol::control::{Answer, Ask, Hello, PROGRAM, PROTOCOL};
use crate::protocol::lines;

/// Most control connections, with those that have not said anything yet.
const MOST: usize = 64;
/// What a client may be late for the time that it asked for.
const GRACE: Duration = Duration::from_secs(15);
/// How long connections of a test may take to end after the client has closed them.
const SETTLE: Duration = Duration::from_secs(2);

/// Accepts, without end.
pub(super) fn accept(listener: &TcpListener, data_port: u16, sessions: &Arc<Sessions>) -> Result<()> {
    let open = Arc::new(AtomicUsize::new(0));
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(_) => {
                // Out of descriptors, or a connection that ended before it was taken.
                std::thread::sleep(Duration::from_millis(10));
                continue;
            }
        };
        if open.load(Relaxed) >= MOST {
            // Whether it is read or not: it must not hold up others.
            let limit = stream.set_write_timeout(Some(Duration::from_millis(1)));
            let _ = limit.map(|()| refuse(&mut &stream, "busy: too many control connections are open"));
            continue;
        }
        open.fetch_add(1, Relaxed);
        let (counted, sessions) = (Arc::clone(&open), Arc::clone(sessions));
        let thread = std::thread::Builder::new().name("control".into()).spawn(move || {
            // Whatever ends a session is the client's matter, which has been told as far as it can be.
            let _ = serve(&stream, data_port, &sessions);
            counted.fetch_sub(1, Relaxed);
        });
        if thread.is_err() {
            open.fetch_sub(1, Relaxed);
        }
    }
}

fn serve(stream: &TcpStream, data_port: u16, sessions: &Arc<Sessions>) -> Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut from = BufReader::new(stream);
    let mut to = stream;
    let hello: Hello = lines::read(&mut from)?;
    let session = match welcome(&hello, sessions) {
        Ok(session) => session,
        Err(reason) => return lines::write(&mut to, &Answer::Refused { reason }),
    };
    let host = Box::new(Host::this());
    lines::write(&mut to, &Answer::Welcome { tag: session.tag, data_port, host })?;
    let mut trial: Option<Arc<Trial>> = None;
    stream.set_read_timeout(Some(GRACE))?;
    loop {
        let ask: Ask = match lines::read(&mut from) {
            Ok(ask) => ask,
            Err(error) => return refuse(&mut to, &format!("{error:#}")),
        };
        if ask == Ask::Bye {
            drop(session);
            return lines::write(&mut to, &Answer::Done);
        }
        match answer(ask, &session, &mut trial) {
            Ok(answer) => lines::write(&mut to, &answer)?,
            Err(reason) => return refuse(&mut to, &reason),
        }
        let busy = trial.as_ref().map_or(0.0, |trial| trial.settings.seconds);
        stream.set_read_timeout(Some(GRACE + Duration::try_from_secs_f64(busy).unwrap_or_default()))?;
    }
}

fn refuse(to: &mut impl Write, reason: &str) -> Result<()> {
    lines::write(to, &Answer::Refused { reason: reason.to_owned() }).context("refusal")
}

fn welcome(hello: &Hello, sessions: &Arc<Sessions>) -> Result<Session, String> {
    if hello.program != PROGRAM {
        return Err(format!("this is {PROGRAM}, not a server of {:?}", hello.program));
    }
    if hello.protocol != PROTOCOL {
        let version = env!("CARGO_PKG_VERSION");
        return Err(format!(
            "the client ({}) speaks version {} of the protocol, this server ({version}) version {PROTOCOL}: use the same \
             release at both ends",
            hello.version, hello.protocol
        ));
    }
    sessions.open(hello.run)
}

fn answer(ask: Ask, session: &Session, trial: &mut Option<Arc<Trial>>) -> Result<Answer, String> {
    let current = |trial: &Option<Arc<Trial>>| {
        trial.as_ref().map(Arc::clone).ok_or_else(|| "no test is prepared".to_owned())
    };
    match ask {
        Ask::Prepare { settings } => {
            settings.check()?;
            if let Some(cpu) = settings.server_cpu {
                can_pin(cpu)?;
            }
            *trial = Some(session.prepare(Trial::new(settings)));
            Ok(Answer::Done)
        }
        Ask::Begin => current(trial).map(|trial| trial.begin()).map(|()| Answer::Done),
        Ask::Mark => current(trial).map(|trial| trial.mark()).map(|()| Answer::Done),
        Ask::End => {
            let trial = current(trial)?;
            trial.settle(SETTLE);
            Ok(Answer::Report { report: Box::new(trial.report()) })
        }
        Ask::Bye => Ok(Answer::Done),
        Ask::Waited => {
            let Waited { nanoseconds, stolen } = Waited::now();
            Ok(Answer::Waited { nanoseconds, stolen })
        }
    }
}

/// Whether threads of this process can stay on a CPU: tries it in one of its own.
fn can_pin(cpu: u32) -> Result<(), String> {
    let thread = std::thread::Builder::new().spawn(move || crate::net::pin(cpu));
    let tried = thread.map_err(|error| error.to_string())?.join();
    match tried {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(format!("--server-cpu: {error:#}")),
        Err(_) => Err("--server-cpu: cannot be tried".to_owned()),
    }
}
