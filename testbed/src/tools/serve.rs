//! Servers on any number of ports, a thread each.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// `testbed probe serve`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// What to answer with.
    #[arg(long)]
    name: String,
    /// A TCP port.
    #[arg(long)]
    tcp: Vec<u16>,
    /// A TCP port on which each client gets many bytes.
    #[arg(long)]
    bulk: Option<u16>,
    /// A UDP port.
    #[arg(long)]
    udp: Vec<u16>,
}

impl Args {
    /// Serves until it is killed.
    pub fn run(self) -> Result<()> {
        let Self { name, tcp, bulk, udp } = self;
        let name = Arc::new(name);
        let mut threads = Vec::new();
        for port in tcp {
            let listener = bind(port, TcpListener::bind).with_context(|| format!("TCP port {port}"))?;
            let name = Arc::clone(&name);
            threads
                .push(thread::Builder::new().stack_size(STACK).spawn(move || serve_tcp(&listener, &name))?);
        }
        if let Some(port) = bulk {
            let listener = bind(port, TcpListener::bind).with_context(|| format!("TCP port {port}"))?;
            let serve = move || {
                for stream in listener.incoming().flatten() {
                    // A client that has gone needs no more.
                    let _ = super::bulk::send(stream);
                }
            };
            threads.push(thread::Builder::new().stack_size(2 * STACK).spawn(serve)?);
        }
        for port in udp {
            let socket = bind(port, UdpSocket::bind).with_context(|| format!("UDP port {port}"))?;
            let name = Arc::clone(&name);
            threads.push(thread::Builder::new().stack_size(STACK).spawn(move || serve_udp(&socket, &name))?);
        }
        if threads.is_empty() {
            bail!("no port to serve; give --tcp or --udp");
        }
        for thread in threads {
            let _ = thread.join();
        }
        bail!("the servers ended")
    }
}

/// Many pods run on one machine.
const STACK: usize = 64 * 1024;

/// On both address families if the namespace has IPv6.
fn bind<T>(port: u16, open: impl Fn(SocketAddr) -> std::io::Result<T>) -> std::io::Result<T> {
    open((Ipv6Addr::UNSPECIFIED, port).into()).or_else(|_| open((Ipv4Addr::UNSPECIFIED, port).into()))
}

fn answer(name: &str, client: IpAddr) -> String {
    format!("{name} {}\n", client.to_canonical())
}

fn serve_tcp(listener: &TcpListener, name: &str) {
    for stream in listener.incoming().flatten() {
        // A client that has gone needs no answer.
        let _ = reply(stream, name);
    }
}

fn reply(mut stream: TcpStream, name: &str) -> std::io::Result<()> {
    let client = stream.peer_addr()?.ip();
    stream.set_write_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(answer(name, client).as_bytes())?;
    stream.shutdown(std::net::Shutdown::Write)?;
    // What the client may have sent is read, or closing would reset the connection before the answer is there.
    stream.set_read_timeout(Some(Duration::from_millis(200)))?;
    let _ = stream.read(&mut [0; 512]);
    Ok(())
}

fn serve_udp(socket: &UdpSocket, name: &str) {
    let mut buffer = [0; 2048];
    loop {
        if let Ok((_, client)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(answer(name, client.ip()).as_bytes(), client);
        }
    }
}
