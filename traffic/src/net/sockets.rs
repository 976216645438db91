//! Opening sockets with their options.

use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};

/// Room in a socket's receive queue, in bytes: a full one would drop what the path has carried.
const ROOM: usize = 16 << 20;
/// Connections that may wait to be accepted; the kernel bounds it by `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

fn port_error(at: SocketAddr, protocol: &str) -> String {
    format!("cannot listen on {protocol} {at} (is the port taken, or the address not of this machine?)")
}

/// A listener.
///
/// # Errors
/// The port is taken, or the address is not of this machine.
pub(crate) fn listen(at: SocketAddr) -> Result<TcpListener> {
    let open = || {
        let socket = Socket::new(Domain::for_address(at), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.bind(&at.into())?;
        socket.listen(BACKLOG)?;
        std::io::Result::Ok(socket.into())
    };
    open().with_context(|| port_error(at, "TCP"))
}

/// A connection without delays of small writes; `limit` bounds connecting and each read and write.
pub(crate) fn connect(to: SocketAddr, limit: Duration) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    // It bounds connecting, too (socket(7)).
    socket.set_write_timeout(Some(limit))?;
    socket.set_read_timeout(Some(limit))?;
    socket.set_tcp_nodelay(true)?;
    match socket.connect(&to.into()) {
        Ok(()) => Ok(socket.into()),
        // What a blocking connect says when its time is over.
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {
            Err(std::io::ErrorKind::TimedOut.into())
        }
        Err(error) => Err(error),
    }
}

/// The server's UDP socket, with as much room as it may have.
///
/// # Errors
/// The port is taken, or the address is not of this machine.
pub(crate) fn udp_server(at: SocketAddr) -> Result<UdpSocket> {
    let socket = UdpSocket::bind(at).with_context(|| port_error(at, "UDP"))?;
    make_room(&socket);
    Ok(socket)
}

/// A UDP socket that talks to one address.
pub(crate) fn udp_client(to: SocketAddr, limit: Duration) -> std::io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(to), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_read_timeout(Some(limit))?;
    socket.set_write_timeout(Some(limit))?;
    socket.connect(&to.into())?;
    Ok(socket.into())
}

/// Beyond `net.core.rmem_max` if this process may (`CAP_NET_ADMIN`), else up to it.
fn make_room(socket: &UdpSocket) {
    if setsockopt(socket, sockopt::RcvBufForce, &ROOM).is_err() {
        // The kernel takes as much of it as it allows.
        let _ = setsockopt(socket, sockopt::RcvBuf, &ROOM);
    }
}
