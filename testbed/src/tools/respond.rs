//! Servers that answer every message with who they are and whom they see, on connections that last.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result, bail};

/// Bytes of a question, whatever they are.
pub(super) const QUESTION: usize = 16;
/// Bytes of an answer: `NAME:PORT CLIENT-ADDRESS:PORT`, and spaces.
pub(super) const ANSWER: usize = 96;
/// Of a thread; each connection has one.
const STACK: usize = 64 * 1024;

/// `testbed probe respond`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Begin of each answer.
    #[arg(long)]
    name: String,
    /// An address to serve, so that answers to UDP come from it where the host has several. Without any: all of them.
    #[arg(long)]
    address: Vec<IpAddr>,
    /// TCP and UDP ports.
    #[arg(required = true)]
    port: Vec<u16>,
}

impl Args {
    /// Serves until it is killed.
    ///
    /// # Errors
    /// A port cannot be served.
    pub fn run(self) -> Result<()> {
        let Self { name, address, port } = self;
        let mut threads = Vec::new();
        for port in port {
            let name: Arc<str> = format!("{name}:{port}").into();
            for place in places(&address, port) {
                let listener = TcpListener::bind(&*place).with_context(|| format!("TCP {place:?}"))?;
                let socket = UdpSocket::bind(&*place).with_context(|| format!("UDP {place:?}"))?;
                let (tcp, udp) = (Arc::clone(&name), Arc::clone(&name));
                threads.push(small().spawn(move || serve_tcp(&listener, &tcp))?);
                threads.push(small().spawn(move || serve_udp(&socket, &udp))?);
            }
        }
        for thread in threads {
            let _ = thread.join();
        }
        bail!("the servers ended")
    }
}

/// Where to listen, with alternatives: without IPv6 in the namespace the wildcard is IPv4's.
fn places(addresses: &[IpAddr], port: u16) -> Vec<Vec<SocketAddr>> {
    if addresses.is_empty() {
        return vec![vec![(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()]];
    }
    addresses.iter().map(|ip| vec![(*ip, port).into()]).collect()
}

fn small() -> thread::Builder {
    thread::Builder::new().stack_size(STACK)
}

fn answer(name: &str, client: SocketAddr) -> [u8; ANSWER] {
    let client = SocketAddr::new(client.ip().to_canonical(), client.port());
    let mut bytes = [b' '; ANSWER];
    let text = format!("{name} {client}");
    for (byte, letter) in bytes.iter_mut().zip(text.bytes()) {
        *byte = letter;
    }
    bytes
}

fn serve_tcp(listener: &TcpListener, name: &Arc<str>) {
    for stream in listener.incoming().flatten() {
        let name = Arc::clone(name);
        // A client that has gone needs no answer; one without a thread is refused, and says so.
        let _ = small().spawn(move || converse(stream, &name));
    }
}

fn converse(mut stream: TcpStream, name: &str) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let answer = answer(name, stream.peer_addr()?);
    let mut question = [0; QUESTION];
    loop {
        stream.read_exact(&mut question)?;
        stream.write_all(&answer)?;
    }
}

fn serve_udp(socket: &UdpSocket, name: &str) {
    let mut question = [0; 2048];
    loop {
        if let Ok((_, client)) = socket.recv_from(&mut question) {
            let _ = socket.send_to(&answer(name, client), client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_names_server_and_client_whatever_the_socket() {
        let mapped = "[::ffff:10.244.0.3]:4711".parse().unwrap();
        let bytes = answer("b1:7300", mapped);
        assert_eq!(String::from_utf8_lossy(&bytes).trim_end(), "b1:7300 10.244.0.3:4711");
        let longest = "[fd00:1111:2222:3333:4444:5555:6666:7777]:65535".parse().unwrap();
        let bytes = answer("far-host-backend:65535", longest);
        assert!(String::from_utf8_lossy(&bytes).trim_end().ends_with("]:65535"), "nothing is cut off");
    }

    #[test]
    fn given_addresses_are_served_alone() {
        let one: IpAddr = Ipv4Addr::LOCALHOST.into();
        assert_eq!(places(&[one], 9), [vec![SocketAddr::new(one, 9)]]);
        assert_eq!(places(&[], 9)[0].len(), 2, "either wildcard");
    }
}
