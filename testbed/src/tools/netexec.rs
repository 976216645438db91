//! Questions to `agnhost netexec`, the server of the upstream suite: who it is and whom it sees. Both go over one
//! connection, or from one port, so that one backend answers both.

use std::io::{Error, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

/// `NAME CLIENT-ADDRESS` over HTTP.
pub(super) fn ask_http(server: SocketAddr, limit: Duration) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&server, limit)?;
    stream.set_read_timeout(Some(limit))?;
    let name = get(&mut stream, "/hostname", server)?;
    let client = get(&mut stream, "/clientip", server)?;
    Ok(format!("{name} {}", address(&client)?))
}

/// `NAME CLIENT-ADDRESS` over UDP.
pub(super) fn ask_udp(server: SocketAddr, limit: Duration) -> std::io::Result<String> {
    let socket = UdpSocket::bind(if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
    socket.connect(server)?;
    socket.set_read_timeout(Some(limit))?;
    let ask = |what: &str| -> std::io::Result<String> {
        socket.send(what.as_bytes())?;
        let mut buffer = [0; 2048];
        let length = socket.recv(&mut buffer)?;
        Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
    };
    let name = ask("hostname")?;
    let client = ask("clientip")?;
    Ok(format!("{} {}", name.trim(), address(client.trim())?))
}

/// The address in `ADDRESS:PORT`.
fn address(text: &str) -> std::io::Result<String> {
    let parsed: SocketAddr =
        text.parse().map_err(|_bad| Error::other(format!("{text:?} is no address with a port")))?;
    Ok(parsed.ip().to_canonical().to_string())
}

/// One request on a connection that is used again.
pub(super) fn get(stream: &mut TcpStream, path: &str, server: SocketAddr) -> std::io::Result<String> {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {server}\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    let mut buffer = [0; 2048];
    loop {
        if let Some(body) = complete(&answer) {
            return Ok(body);
        }
        let length = stream.read(&mut buffer)?;
        if length == 0 {
            return Err(Error::other("half an answer"));
        }
        answer.extend(&buffer[..length]);
    }
}

/// The body, once it is complete. The server sends its length, as it does for all short ones.
fn complete(answer: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let length: usize = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    })?;
    body.get(..length).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_taken_when_all_of_it_is_there() {
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        assert_eq!(complete(format!("{head}web-1").as_bytes()).as_deref(), Some("web-1"));
        assert_eq!(complete(format!("{head}web").as_bytes()), None);
        assert_eq!(complete(b"HTTP/1.1 200 OK\r\n"), None);
    }

    #[test]
    fn clients_are_told_by_address_whatever_the_family() {
        assert_eq!(address("10.244.0.3:4711").unwrap(), "10.244.0.3");
        assert_eq!(address("[::ffff:10.244.0.3]:4711").unwrap(), "10.244.0.3");
        assert!(address("web-1").is_err());
    }
}
