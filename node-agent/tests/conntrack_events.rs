//! Notifications of the real kernel about connections that it forgets. Needs root, nftables and `conntrack`.

#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "a test")]

mod common;

use std::io::Write;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::Duration;

use common::{lo_up, on_a_node};
use node_agent::kernel::conntrack_events::{Forgotten, Heard, Monitor};

fn run(program: &str, arguments: &[&str]) {
    let out = Command::new(program).args(arguments).output().unwrap();
    assert!(out.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
}

/// The kernel tracks connections of a namespace once something asks for it.
fn track() {
    run("nft", &["add", "table", "inet", "track"]);
    run("nft", &["add", "chain", "inet", "track", "out", "{ type filter hook output priority 0; }"]);
    run("nft", &["add", "rule", "inet", "track", "out", "ct", "state", "new", "counter"]);
}

async fn heard(monitor: &Monitor) -> Vec<Forgotten> {
    match tokio::time::timeout(Duration::from_secs(10), monitor.next()).await.unwrap().unwrap() {
        Heard::Forgotten(all) => all,
        Heard::Lost => panic!("notifications were lost"),
    }
}

#[test]
fn deleted_connections_are_told_with_both_tuples_and_how_far_they_were() {
    on_a_node(async || {
        lo_up().await;
        track();
        let monitor = Monitor::open().unwrap();

        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.send_to(b"?", server.local_addr().unwrap()).unwrap();
        run("conntrack", &["-D", "-p", "udp"]);
        let one = heard(&monitor).await;
        assert_eq!(one.len(), 1);
        let ends = (one[0].original.source, one[0].original.destination);
        assert_eq!(ends, (client.local_addr().unwrap(), server.local_addr().unwrap()));
        assert_eq!((one[0].reply.source, one[0].reply.destination), (ends.1, ends.0));
        assert_eq!((one[0].protocol, one[0].early, one[0].assured, one[0].closed), (17, true, false, false));

        let server = TcpListener::bind("[::1]:0").unwrap();
        let mut client = TcpStream::connect(server.local_addr().unwrap()).unwrap();
        let (served, _) = server.accept().unwrap();
        client.write_all(b"?").unwrap();
        run("conntrack", &["-D", "-f", "ipv6", "-p", "tcp"]);
        let one = heard(&monitor).await;
        assert_eq!(one[0].original.source, client.local_addr().unwrap());
        assert_eq!((one[0].protocol, one[0].early, one[0].assured, one[0].closed), (6, true, true, false));

        // A connection that both ends have closed, and that a new one between the same ends may replace.
        let again = TcpStream::connect(server.local_addr().unwrap()).unwrap();
        let (taken, _) = server.accept().unwrap();
        drop((again, taken, client, served));
        tokio::time::sleep(Duration::from_millis(100)).await;
        run("conntrack", &["-D", "-f", "ipv6", "-p", "tcp", "--state", "TIME_WAIT"]);
        assert!(heard(&monitor).await.iter().all(|one| one.closed && one.early));
    });
}
