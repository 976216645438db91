//! One question to a DNS server (RFC 1035), over UDP or TCP.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::ui;

/// `testbed probe name`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// TCP instead of UDP.
    #[arg(long)]
    tcp: bool,
    /// Seconds to wait.
    #[arg(long, default_value_t = 2.0)]
    timeout: f64,
    /// Address of the server.
    server: IpAddr,
    /// Whose addresses to ask for: those of the server's family.
    name: String,
}

const PORT: u16 = 53;
/// Identifies the answer; there is one question a socket.
const ID: [u8; 2] = [0x51, 0x51];

impl Args {
    /// Asks and prints each address; none is an error.
    pub fn run(self) -> Result<()> {
        let Self { tcp, timeout, server, name } = self;
        let limit = Duration::from_secs_f64(timeout.clamp(0.001, 3600.0));
        let server = SocketAddr::new(server, PORT);
        let question = question(&name, kind_of(server.ip()))?;
        let answer = if tcp { by_tcp(server, limit, &question) } else { by_udp(server, limit, &question) }
            .with_context(|| format!("no answer from {server}"))?;
        let addresses = parse(&answer).with_context(|| format!("answer of {server} about {name}"))?;
        if addresses.is_empty() {
            bail!("{server} knows no address of {name}");
        }
        for address in addresses {
            ui::say(address);
        }
        Ok(())
    }
}

fn by_udp(server: SocketAddr, limit: Duration, question: &[u8]) -> std::io::Result<Vec<u8>> {
    let socket = UdpSocket::bind(if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
    socket.connect(server)?;
    socket.set_read_timeout(Some(limit))?;
    socket.send(question)?;
    let mut buffer = vec![0; 4096];
    let length = socket.recv(&mut buffer)?;
    buffer.truncate(length);
    Ok(buffer)
}

fn by_tcp(server: SocketAddr, limit: Duration, question: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&server, limit)?;
    stream.set_read_timeout(Some(limit))?;
    let length = u16::try_from(question.len()).map_err(std::io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes(), question].concat())?;
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}

/// Record types (RFC 1035, RFC 3596).
const A: u8 = 1;
const AAAA: u8 = 28;

/// The type of records with addresses of this one's family.
fn kind_of(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { A } else { AAAA }
}

/// A question for records of this type, recursion desired.
fn question(name: &str, kind: u8) -> Result<Vec<u8>> {
    let mut message = [&ID[..], &[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]].concat();
    for label in name.trim_end_matches('.').split('.') {
        let length = u8::try_from(label.len()).ok().filter(|n| (1..=63).contains(n));
        message.push(length.with_context(|| format!("{name} is no name"))?);
        message.extend(label.as_bytes());
    }
    // The root, the type, class IN.
    message.extend([0, 0, kind, 0, 1]);
    Ok(message)
}

/// The addresses in an answer.
fn parse(answer: &[u8]) -> Result<Vec<IpAddr>> {
    let number = |at: usize| -> Result<u16> {
        let bytes = answer.get(at..at + 2).context("it is cut short")?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    };
    if answer.get(..2) != Some(&ID[..]) {
        bail!("it is to another question");
    }
    let code = number(2)? & 0xf;
    if code != 0 {
        bail!("it is the error {code}");
    }
    let (questions, records) = (number(4)?, number(6)?);
    let mut at = 12;
    for _ in 0..questions {
        at = skip_name(answer, at)? + 4;
    }
    let mut addresses = Vec::new();
    for _ in 0..records {
        at = skip_name(answer, at)?;
        let (kind, length) = (number(at)?, usize::from(number(at + 8)?));
        let data = answer.get(at + 10..at + 10 + length).context("it is cut short")?;
        let four = <[u8; 4]>::try_from(data).ok().filter(|_| kind == u16::from(A)).map(IpAddr::from);
        let six = <[u8; 16]>::try_from(data).ok().filter(|_| kind == u16::from(AAAA)).map(IpAddr::from);
        addresses.extend(four.or(six));
        at += 10 + length;
    }
    Ok(addresses)
}

/// Where a name ends: at the root, or after a pointer to an earlier one.
fn skip_name(message: &[u8], mut at: usize) -> Result<usize> {
    loop {
        match *message.get(at).context("it is cut short")? {
            0 => return Ok(at + 1),
            pointer if pointer >= 0xc0 => return Ok(at + 2),
            length => at += 1 + usize::from(length),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(code: u8, record: &[u8]) -> Vec<u8> {
        let mut message = question("a.b", A).unwrap();
        message[3] = code;
        message[7] = 1;
        message.extend(record);
        message
    }

    #[test]
    fn the_addresses_of_an_answer_are_found_behind_pointers() {
        let record = [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4, 10, 96, 0, 1];
        assert_eq!(parse(&answer(0, &record)).unwrap(), [IpAddr::from([10, 96, 0, 1])]);
        let six = std::net::Ipv6Addr::new(0xfd00, 0x10, 0x96, 0, 0, 0, 0, 1);
        let record = [&[0xc0, 12, 0, 28, 0, 1, 0, 0, 0, 5, 0, 16][..], &six.octets()].concat();
        assert_eq!(parse(&answer(0, &record)).unwrap(), [IpAddr::from(six)]);
    }

    #[test]
    fn an_error_and_half_an_answer_are_told() {
        assert!(parse(&answer(3, &[])).unwrap_err().to_string().contains("error 3"));
        assert!(parse(&answer(0, &[0xc0, 12, 0, 1])).is_err());
        assert!(question("a..b", A).is_err());
    }
}
