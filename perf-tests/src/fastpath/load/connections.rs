//! New connections: connect, a request, an answer, close; one after another.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use anyhow::{Context, Result};

use super::{MESSAGE, PATIENCE, ready};

/// What a client's namespace must allow for many thousand connections a second to one port: all ports, and those of
/// connections closed a second ago once more (ip-sysctl: `tcp_tw_reuse`).
const SETTINGS: [(&str, &str); 2] = [("ip_local_port_range", "10000 65535"), ("tcp_tw_reuse", "1")];

/// Serves connections, without end.
pub(super) fn serve(at: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(at).with_context(|| format!("cannot listen on {at}"))?;
    ready()?;
    let mut message = [0; MESSAGE];
    loop {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        stream.read_exact(&mut message).context("request")?;
        stream.write_all(&message).context("answer")?;
        // The client closes first, so that it is the one with ports in TIME_WAIT.
        let _ = stream.read(&mut message);
    }
}

/// Makes the namespace that we are in fit for [`open`].
pub(super) fn prepare_namespace() -> Result<()> {
    SETTINGS.iter().try_for_each(|(name, value)| {
        fs::write(format!("/proc/sys/net/ipv4/{name}"), value).with_context(|| format!("sysctl {name}"))
    })
}

/// One connection.
pub(super) fn open(at: SocketAddr) -> Result<()> {
    let mut stream =
        TcpStream::connect_timeout(&at, PATIENCE).with_context(|| format!("cannot connect to {at}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut message = [7; MESSAGE];
    stream.write_all(&message).context("request")?;
    stream.read_exact(&mut message).context("answer")
}
