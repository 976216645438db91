//! One transaction after another: over a TCP connection, a new one each, a UDP socket, or many of them in turn.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{PATIENCE, Way, no_welcome};
use crate::measure::retransmits;
use crate::net;
use crate::protocol::control::Test;
use crate::protocol::data::{HELLO_BYTES, Head, Kind, Mode, WELCOME, hello};

/// A request by UDP whose answer has not come by then is lost.
const LOST: Duration = Duration::from_secs(1);

/// What became of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Answered,
    /// The request or its answer did not come.
    Lost,
    /// The transaction failed, by the name of the error; the next one may not.
    Failed(String),
}

/// Something that makes transactions.
pub(crate) trait Exchange: Send {
    /// One transaction.
    ///
    /// # Errors
    /// None will succeed any more.
    fn exchange(&mut self) -> Result<Outcome>;

    /// TCP segments that were sent again.
    fn retransmits(&self) -> u64 {
        0
    }
}

/// The exchanges of a test, one for each thread.
pub(crate) fn exchanges(way: &Way) -> Result<Vec<Box<dyn Exchange>>> {
    let count = u16::try_from(way.settings.connections)?;
    let one = |flow: u16| -> Result<Box<dyn Exchange>> {
        Ok(match way.settings.test {
            Test::TcpRr | Test::TcpFlows | Test::TcpStream => Box::new(TcpRr::open(way)?),
            Test::TcpCrr | Test::Storm => Box::new(Crr::new(way)),
            Test::UdpRr | Test::Flows | Test::UdpRate => Box::new(UdpRr::open(way, flow)?),
        })
    };
    let all = (0..count).map(one).collect::<Result<Vec<_>>>()?;
    Ok(match way.settings.test {
        Test::Flows | Test::TcpFlows => vec![Box::new(InTurn { all, next: 0 })],
        _ => all,
    })
}

fn bytes(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

/// Opens a data connection and waits for its welcome.
pub(super) fn open(way: &Way, mode: Mode) -> Result<TcpStream> {
    let mut stream = net::connect(way.data, PATIENCE)
        .with_context(|| format!("cannot connect to the data port {}", way.data))?;
    let mut word = [0];
    let said = stream.write_all(&hello(way.tag, mode)).and_then(|()| stream.read_exact(&mut word));
    match said {
        Ok(()) if word[0] == WELCOME => Ok(stream),
        Ok(()) => no_welcome(way.data, &ErrorKind::InvalidData.into()).map(|()| stream),
        Err(error) => no_welcome(way.data, &error).map(|()| stream),
    }
}

struct TcpRr {
    stream: TcpStream,
    request: Vec<u8>,
    response: Vec<u8>,
}

impl TcpRr {
    fn open(way: &Way) -> Result<Self> {
        let stream = open(way, Mode::Answer)?;
        let (request, response) = (bytes(way.settings.request_bytes), bytes(way.settings.response_bytes));
        Ok(Self { stream, request: vec![0; request], response: vec![0; response] })
    }
}

impl Exchange for TcpRr {
    fn exchange(&mut self) -> Result<Outcome> {
        self.stream.write_all(&self.request).context("request")?;
        self.stream.read_exact(&mut self.response).context("answer")?;
        Ok(Outcome::Answered)
    }

    fn retransmits(&self) -> u64 {
        retransmits(&self.stream)
    }
}

struct Crr {
    to: SocketAddr,
    request: Vec<u8>,
    response: Vec<u8>,
    retransmits: u64,
}

impl Crr {
    fn new(way: &Way) -> Self {
        let mut request = vec![0; bytes(way.settings.request_bytes).max(HELLO_BYTES)];
        request[..HELLO_BYTES].copy_from_slice(&hello(way.tag, Mode::Once));
        Self { to: way.data, request, response: vec![0; bytes(way.settings.response_bytes)], retransmits: 0 }
    }

    /// The server closes first, so that the client's port is free again when its end of the connection is closed.
    fn once(&mut self) -> std::io::Result<()> {
        let mut stream = net::connect(self.to, PATIENCE)?;
        stream.write_all(&self.request)?;
        stream.read_exact(&mut self.response)?;
        if stream.read(&mut [0])? != 0 {
            return Err(ErrorKind::InvalidData.into());
        }
        self.retransmits += retransmits(&stream);
        Ok(())
    }
}

impl Exchange for Crr {
    fn exchange(&mut self) -> Result<Outcome> {
        Ok(match self.once() {
            Ok(()) => Outcome::Answered,
            // The limit of a blocking connect (socket(7)) or read.
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock => Outcome::Failed(ErrorKind::TimedOut.to_string()),
                ErrorKind::UnexpectedEof => Outcome::Failed("closed without an answer".to_owned()),
                ErrorKind::TimedOut => Outcome::Failed("no connection in time".to_owned()),
                kind => Outcome::Failed(kind.to_string()),
            },
        })
    }

    fn retransmits(&self) -> u64 {
        self.retransmits
    }
}

struct UdpRr {
    socket: UdpSocket,
    head: Head,
    request: Vec<u8>,
    response: Vec<u8>,
}

impl UdpRr {
    fn open(way: &Way, flow: u16) -> Result<Self> {
        let socket =
            net::udp_client(way.data, LOST).with_context(|| format!("UDP socket to {}", way.data))?;
        let head = Head { tag: way.tag, kind: Kind::Request, flow, number: 0 };
        let (request, response) = (bytes(way.settings.request_bytes), bytes(way.settings.response_bytes));
        Ok(Self { socket, head, request: vec![0; request], response: vec![0; response] })
    }
}

impl Exchange for UdpRr {
    fn exchange(&mut self) -> Result<Outcome> {
        self.head.number += 1;
        self.head.write(&mut self.request);
        let sent = Instant::now();
        match self.socket.send(&self.request) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                return Ok(Outcome::Failed(error.kind().to_string()));
            }
            Err(error) => return Err(error).context("request"),
        }
        while sent.elapsed() < LOST {
            match self.socket.recv(&mut self.response) {
                Ok(length) if self.response.get(..length).and_then(Head::read) == Some(self.head) => {
                    return Ok(Outcome::Answered);
                }
                // An answer that was given up.
                Ok(_) => {}
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut => break,
                    ErrorKind::Interrupted => {}
                    ErrorKind::ConnectionRefused => return Ok(Outcome::Failed(error.kind().to_string())),
                    _ => return Err(error).context("answer"),
                },
            }
        }
        Ok(Outcome::Lost)
    }
}

struct InTurn {
    all: Vec<Box<dyn Exchange>>,
    next: usize,
}

impl Exchange for InTurn {
    fn exchange(&mut self) -> Result<Outcome> {
        let at = self.next;
        self.next = (at + 1) % self.all.len().max(1);
        self.all.get_mut(at).context("a flow")?.exchange()
    }

    fn retransmits(&self) -> u64 {
        self.all.iter().map(|exchange| exchange.retransmits()).sum()
    }
}
