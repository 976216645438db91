//! Requests and answers, one at a time: both ends sleep until the other's message is there.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};

use anyhow::{Context, Result, bail};

use super::{MESSAGE, PATIENCE, ready};

/// Lost datagrams in a row after which a path counts as dead.
const LOST: u32 = 3;

/// Answers on one connection until it is closed.
pub(super) fn serve_tcp(at: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(at).with_context(|| format!("cannot listen on {at}"))?;
    ready()?;
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let mut message = [0; MESSAGE];
    loop {
        match stream.read_exact(&mut message) {
            Ok(()) => stream.write_all(&message).context("answer")?,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error).context("request"),
        }
    }
}

/// Answers datagrams, without end.
pub(super) fn serve_udp(at: SocketAddr) -> Result<()> {
    let socket = UdpSocket::bind(at).with_context(|| format!("cannot listen on {at}"))?;
    ready()?;
    let mut message = [0; 2 * MESSAGE];
    loop {
        let (length, from) = socket.recv_from(&mut message).context("request")?;
        socket.send_to(&message[..length], from).context("answer")?;
    }
}

/// The asking end of a connection.
pub(super) struct Tcp(TcpStream);

impl Tcp {
    pub(super) fn connect(at: SocketAddr) -> Result<Self> {
        let stream =
            TcpStream::connect_timeout(&at, PATIENCE).with_context(|| format!("cannot connect to {at}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self(stream))
    }

    /// One request and its answer.
    pub(super) fn ask(&mut self) -> Result<()> {
        let mut message = [7; MESSAGE];
        self.0.write_all(&message).context("request")?;
        self.0.read_exact(&mut message).context("answer")
    }
}

/// The asking end by datagrams. Each has a number, so that a late answer is not taken for that of the next request.
pub(super) struct Udp {
    socket: UdpSocket,
    number: u64,
}

impl Udp {
    pub(super) fn connect(at: SocketAddr) -> Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect(at)?;
        socket.set_read_timeout(Some(PATIENCE / 10))?;
        Ok(Self { socket, number: 0 })
    }

    /// One request and its answer.
    pub(super) fn ask(&mut self) -> Result<()> {
        self.number += 1;
        let mut message = [7; MESSAGE];
        message[..8].copy_from_slice(&self.number.to_be_bytes());
        let mut answer = [0; MESSAGE];
        for _ in 0..=LOST {
            self.socket.send(&message).context("request")?;
            loop {
                match self.socket.recv(&mut answer) {
                    Ok(_) if answer == message => return Ok(()),
                    Ok(_) => {}
                    Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                        break;
                    }
                    Err(error) => return Err(error).context("answer"),
                }
            }
        }
        bail!("no answer to {} requests", LOST + 1)
    }
}
