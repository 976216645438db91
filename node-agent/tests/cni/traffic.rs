//! Packets between pods.

use std::io::{Read, Write};
use std::time::Duration;

use node_agent::kernel::netns::Netns;

use crate::common::Pod;

/// Sends a megabyte from one namespace to a server in the other, and returns the number of bytes that come back.
pub(crate) async fn megabyte(from: &Pod, to: &Pod, address: &'static str) {
    let (ready, listening) = tokio::sync::oneshot::channel();
    let server = Netns::open(to.path()).unwrap();
    let serve = move || {
        let listener = std::net::TcpListener::bind(address).unwrap();
        ready.send(()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut got = 0;
        let mut buffer = vec![0; 65536];
        while got < 1 << 20 {
            got += stream.read(&mut buffer).unwrap();
        }
        stream.write_all(&got.to_be_bytes()).unwrap();
    };
    let client = Netns::open(from.path()).unwrap();
    let ask = move || {
        let to = address.parse().unwrap();
        let mut stream = std::net::TcpStream::connect_timeout(&to, Duration::from_secs(20)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(&vec![7; 1 << 20]).unwrap();
        let mut got = [0; size_of::<usize>()];
        stream.read_exact(&mut got).unwrap();
        usize::from_be_bytes(got)
    };
    let ask = async {
        listening.await.unwrap();
        client.run("client", ask).await.unwrap()
    };
    let (served, got) = tokio::join!(server.run("server", serve), ask);
    served.unwrap();
    assert_eq!(got, 1 << 20);
}
