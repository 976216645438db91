//! Clients of [`respond`](super::respond), many calls at a time: who answered, and whom it saw. Orders come on standard input, reports
//! go to standard output, a line of JSON each. Connections stay open until the next order, so that what is known of them can be looked at.

use std::io::{BufRead, Error, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::dial::{Answer, reason};
use super::respond::{ANSWER, QUESTION};
use crate::ui;

/// How long a connection that was answered before may take.
const PATIENT: Duration = Duration::from_secs(5);

/// `testbed probe survey`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Calls at the same time.
    #[arg(long, default_value_t = 6)]
    parallel: usize,
}

/// What to do with one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    pub udp: bool,
    pub to: SocketAddr,
    /// Connections whose answers do not count, before the others.
    pub warm_up: u32,
    /// Milliseconds to wait after those.
    pub settle_ms: u64,
    /// Connections, or UDP sockets, one after another, with a question each.
    pub connections: u32,
    /// More questions on the last of them.
    pub round_trips: u32,
    /// Milliseconds to wait for a connection, and for an answer.
    pub timeout_ms: u64,
    /// How often a connection is tried that is not answered in time.
    pub tries: u32,
}

/// One line of standard input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Make these calls. Connections of the last ones end.
    Call(Vec<Call>),
    /// So many further questions on every connection that is open. Outcomes are of those calls that left one open.
    Again(u32),
}

/// One connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Talk {
    /// The client's end.
    pub from: Option<SocketAddr>,
    /// `NAME:PORT CLIENT:PORT`, or why there was no answer.
    pub answer: Answer,
    /// Attempts, this one included.
    pub tries: u32,
}

/// What came of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The connections that count; none where an open one was asked again.
    pub talks: Vec<Talk>,
    /// Further questions on the last connection that had the same answer as the first.
    pub same: u32,
    /// Those that had another one.
    pub other: u32,
    /// The last such answer.
    pub last_other: Option<String>,
    /// Those that had none in time.
    pub lost: u32,
}

impl Args {
    /// Follows orders until standard input ends.
    ///
    /// # Errors
    /// An order cannot be read.
    pub fn run(self) -> Result<()> {
        let mut held = Vec::new();
        for line in std::io::stdin().lock().lines() {
            let outcomes = match serde_json::from_str(&line?).context("an order")? {
                Order::Call(calls) => {
                    held.clear();
                    let outcomes;
                    (outcomes, held) = all(&calls, self.parallel);
                    outcomes
                }
                Order::Again(round_trips) => {
                    held.iter_mut().map(|held: &mut Held| held.ask(round_trips)).collect()
                }
            };
            ui::say(serde_json::to_string(&outcomes)?);
        }
        Ok(())
    }
}

/// Makes all calls; the outcomes in their order, and the connections that are still open.
fn all(calls: &[Call], parallel: usize) -> (Vec<Outcome>, Vec<Held>) {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..parallel.max(1) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(call) = calls.get(index) else { return };
                    let (outcome, connection) = call.make();
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((index, outcome, connection));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(index, ..)| *index);
    let (mut outcomes, mut held) = (Vec::new(), Vec::new());
    for (_, outcome, connection) in done {
        outcomes.push(outcome);
        held.extend(connection);
    }
    (outcomes, held)
}

/// A connection that stays open.
struct Held {
    connection: Connection,
    /// What was answered first.
    first: String,
}

impl Held {
    /// Asks further questions, and compares the answers.
    fn ask(&mut self, round_trips: u32) -> Outcome {
        let mut outcome = Outcome::default();
        for _ in 0..round_trips {
            match self.connection.ask() {
                Ok(said) if said == self.first => outcome.same += 1,
                Ok(said) => {
                    outcome.other += 1;
                    outcome.last_other = Some(said);
                }
                Err(error) if self.connection.goes_on_after(&error) => outcome.lost += 1,
                Err(_) => {
                    outcome.lost += 1;
                    break;
                }
            }
        }
        outcome
    }
}

/// Both kinds, with a time limit set.
enum Connection {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

impl Call {
    fn make(&self) -> (Outcome, Option<Held>) {
        for _ in 0..self.warm_up {
            self.talk();
        }
        thread::sleep(Duration::from_millis(self.settle_ms));
        let mut talks = Vec::new();
        let mut last = None;
        for _ in 0..self.connections {
            let (talk, connection) = self.talk();
            last = match (connection, &talk.answer) {
                (Some(connection), Answer::Reply(first)) => Some(Held { connection, first: first.clone() }),
                _ => None,
            };
            talks.push(talk);
        }
        let further = last.as_mut().map(|held| {
            held.connection.be_patient();
            held.ask(self.round_trips)
        });
        (Outcome { talks, ..further.unwrap_or_default() }, last)
    }

    /// One connection, tried anew while nothing comes.
    fn talk(&self) -> (Talk, Option<Connection>) {
        let mut tries = 0;
        loop {
            tries += 1;
            let mut from = None;
            let answered = self.connect().and_then(|mut connection| {
                from = connection.from().ok();
                Ok((connection.ask()?, connection))
            });
            match answered {
                Ok((text, connection)) => {
                    return (Talk { from, answer: Answer::Reply(text), tries }, Some(connection));
                }
                Err(error) => {
                    let why = reason(&error);
                    if why != "timed out" || tries >= self.tries {
                        return (Talk { from, answer: Answer::Err(why), tries }, None);
                    }
                }
            }
        }
    }

    fn connect(&self) -> std::io::Result<Connection> {
        let limit = Duration::from_millis(self.timeout_ms.max(1));
        if self.udp {
            let any: SocketAddr = match self.to {
                SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
                SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
            };
            let socket = UdpSocket::bind(any)?;
            socket.connect(self.to)?;
            socket.set_read_timeout(Some(limit))?;
            return Ok(Connection::Udp(socket));
        }
        let stream = TcpStream::connect_timeout(&self.to, limit)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(limit))?;
        Ok(Connection::Tcp(stream))
    }
}

impl Connection {
    fn from(&self) -> std::io::Result<SocketAddr> {
        match self {
            Self::Tcp(stream) => stream.local_addr(),
            Self::Udp(socket) => socket.local_addr(),
        }
    }

    fn ask(&mut self) -> std::io::Result<String> {
        let mut bytes = [0; ANSWER];
        match self {
            Self::Tcp(stream) => {
                stream.write_all(&[b'?'; QUESTION])?;
                stream.read_exact(&mut bytes)?;
            }
            Self::Udp(socket) => {
                socket.send(&[b'?'; QUESTION])?;
                socket.recv(&mut bytes)?;
            }
        }
        Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned())
    }

    /// From the second answer of a TCP connection on nothing can be lost: a loaded machine takes its time.
    fn be_patient(&self) {
        if let Self::Tcp(stream) = self {
            // As before where it cannot be set.
            stream.set_read_timeout(Some(PATIENT)).ok();
        }
    }

    /// Whether the next answer belongs to the next question: one of UDP that is lost is no other's, and a stream is out of step.
    fn goes_on_after(&self, error: &Error) -> bool {
        matches!(self, Self::Udp(_)) && matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn call(to: SocketAddr, udp: bool) -> Call {
        Call { udp, to, warm_up: 0, settle_ms: 0, connections: 2, round_trips: 3, timeout_ms: 200, tries: 2 }
    }

    /// A UDP server whose answers are these, one after another, and then none.
    fn udp(answers: &'static [&'static str]) -> SocketAddr {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let at = socket.local_addr().unwrap();
        let serve = move || {
            let mut question = [0; QUESTION];
            for answer in answers {
                let (_, client) = socket.recv_from(&mut question).unwrap();
                let mut bytes = [b' '; ANSWER];
                bytes[..answer.len()].copy_from_slice(answer.as_bytes());
                socket.send_to(&bytes, client).unwrap();
            }
            // Silent, and not closed.
            loop {
                let _ = socket.recv_from(&mut question);
            }
        };
        thread::Builder::new().spawn(serve).unwrap();
        at
    }

    #[test]
    fn another_answer_on_one_connection_is_told_and_so_is_none() {
        let (outcomes, _held) = all(&[call(udp(&["a", "b", "b", "c"]), true)], 1);
        let outcome = &outcomes[0];
        let said: Vec<_> = outcome.talks.iter().map(|talk| &talk.answer).collect();
        assert_eq!(said, [&Answer::Reply("a".into()), &Answer::Reply("b".into())]);
        assert_eq!((outcome.same, outcome.other, outcome.lost), (1, 1, 1));
    }

    #[test]
    fn what_is_open_is_asked_again() {
        let server = udp(&["a", "b", "b", "c"]);
        let (_, mut held) = all(&[Call { round_trips: 0, ..call(server, true) }], 1);
        let outcome = held[0].ask(3);
        assert_eq!((outcome.talks.len(), outcome.same, outcome.other, outcome.lost), (0, 1, 1, 1));
        assert_eq!(outcome.last_other.as_deref(), Some("c"));
    }

    #[test]
    fn what_is_refused_is_not_tried_again_and_silence_is() {
        let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
        let (outcomes, held) = all(&[call(closed, false), call(udp(&[]), true)], 2);
        let tries = |outcome: &Outcome| outcome.talks.iter().map(|talk| talk.tries).collect::<Vec<_>>();
        assert_eq!(outcomes[0].talks[0].answer, Answer::Err("refused".into()));
        assert_eq!(tries(&outcomes[0]), [1, 1]);
        assert_eq!(outcomes[1].talks[0].answer, Answer::Err("timed out".into()));
        assert_eq!(tries(&outcomes[1]), [2, 2]);
        assert!(held.is_empty());
    }

    #[test]
    fn outcomes_are_in_the_order_of_the_calls() {
        let servers: Vec<_> =
            [&["one", "one"][..], &["two", "two"], &["three", "three"]].map(udp).into_iter().collect();
        let calls: Vec<Call> =
            servers.into_iter().map(|to| Call { round_trips: 0, ..call(to, true) }).collect();
        let (outcomes, held) = all(&calls, 3);
        let said: Vec<_> = outcomes.iter().map(|outcome| outcome.talks[0].answer.clone()).collect();
        assert_eq!(said, ["one", "two", "three"].map(|text| Answer::Reply(text.into())));
        assert_eq!(held.len(), 3);
    }
}
