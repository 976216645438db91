//! New connections: connect, a request, an answer, close; one after another.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use anyhow::{Context, Result};

use super::{MESSAGE, Measured, PATIENCE, Window, per_second, ready};

/// What a client's namespace must allow for many thousand connections a second to one port: all ports, and those of
/// connections closed a second ago once more (ip-sysctl: `tcp_tw_reuse`).
const SETTINGS: [(&str, &str); 2] = [("ip_local_port_range", "10000 65535"), ("tcp_tw_reuse", "1")];

/// Serves connections until one is closed without a request.
pub(super) fn serve(at: SocketAddr) -> Result<Measured> {
    let listener = TcpListener::bind(at).with_context(|| format!("cannot listen on {at}"))?;
    ready()?;
    let mut message = [0; MESSAGE];
    loop {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        match stream.read_exact(&mut message) {
            Ok(()) => stream.write_all(&message).context("answer")?,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(Measured::default()),
            Err(error) => return Err(error).context("request"),
        }
        // The client closes first, so that it is the one with ports in TIME_WAIT.
        let _ = stream.read(&mut message);
    }
}

/// Makes the namespace that we are in fit for [`drive`].
pub(super) fn prepare_namespace() -> Result<()> {
    SETTINGS.iter().try_for_each(|(name, value)| {
        fs::write(format!("/proc/sys/net/ipv4/{name}"), value).with_context(|| format!("sysctl {name}"))
    })
}

/// Opens connections.
pub(super) fn drive(at: SocketAddr, window: Window) -> Result<Measured> {
    let (begin, end) = window.starting_now();
    let mut start = None;
    let mut count = 0;
    loop {
        connection(at)?;
        let now = Instant::now();
        match start {
            None if now >= begin => start = Some(now),
            None => {}
            Some(start) => {
                count += 1;
                if now >= end {
                    // One that asks nothing is the last.
                    drop(TcpStream::connect_timeout(&at, PATIENCE));
                    let per_second = per_second(count, now.duration_since(start));
                    return Ok(Measured { per_second, ..Measured::default() });
                }
            }
        }
    }
}

fn connection(at: SocketAddr) -> Result<()> {
    let mut stream =
        TcpStream::connect_timeout(&at, PATIENCE).with_context(|| format!("cannot connect to {at}"))?;
    stream.set_nodelay(true)?;
    let mut message = [7; MESSAGE];
    stream.write_all(&message).context("request")?;
    stream.read_exact(&mut message).context("answer")
}
