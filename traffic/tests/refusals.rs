//! Wrong peers, hostile peers, and peers that die: clear errors, and a server that serves on.
#![expect(clippy::unwrap_used, reason = "what cannot be done fails the test")]

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use support::{PROGRAM, Server, command, failure, number, result, run};

const HERE: &str = "127.0.0.1";

fn server(port: u16) -> (Server, String) {
    let server = Server::start(None, &["--bind", HERE, "--port", &port.to_string()]);
    (server, format!("{HERE}:{port}"))
}

fn say(at: &str, line: &str) -> String {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let _ = stream.write_all(line.as_bytes());
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

#[test]
fn no_server_and_other_servers_are_told_apart() {
    let error = failure(None, &["127.0.0.1:1", "tcp-rr"]);
    assert!(error.contains("no server at 127.0.0.1:1") && error.contains("serve --port 1"), "{error}");
    let other = TcpListener::bind((HERE, 0)).unwrap();
    let at = other.local_addr().unwrap().to_string();
    let thread = std::thread::Builder::new().spawn(move || {
        let (mut stream, _) = other.accept().unwrap();
        stream.write_all(b"220 mail.example ESMTP\r\n").unwrap();
    });
    let error = failure(None, &[&at, "tcp-rr"]);
    assert!(error.contains("is no server of slipstream-traffic"), "{error}");
    thread.unwrap().join().unwrap();
}

#[test]
fn a_port_that_is_taken_is_named() {
    let (_server, _) = server(15_511);
    let out = command(None, PROGRAM).args(["serve", "--bind", HERE, "--port", "15511"]).output().unwrap();
    let error = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && error.contains("127.0.0.1:15511"), "{error}");
}

#[test]
fn another_version_of_the_protocol_is_refused() {
    let (_server, at) = server(15_521);
    let hello =
        "{\"program\":\"slipstream-traffic\",\"protocol\":99,\"version\":\"9.9\",\"run\":1,\"new\":true}\n";
    let answer = say(&at, hello);
    assert!(answer.contains("speaks version 99") && answer.contains("same release"), "{answer}");
    assert!(say(&at, &hello.replace("slipstream-traffic", "iperf3")).contains("not a server of"));
}

#[test]
fn a_second_run_is_told_that_the_server_is_busy() {
    let (_server, at) = server(15_531);
    let mut first = command(None, PROGRAM);
    let mut first = first.args(["run", &at, "tcp-rr", "--time", "2", "--quiet"]).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let error = failure(None, &[&at, "udp-rr"]);
    assert!(error.contains("busy"), "{error}");
    // Dies in the middle of its test; the server is free again.
    first.kill().unwrap();
    first.wait().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert!(number(&result(None, &[&at, "udp-rr"]), "transactions") > 100);
}

#[test]
fn what_may_be_asked_is_bounded_by_the_server_too() {
    let (_server, at) = server(15_541);
    let hello = "{\"program\":\"slipstream-traffic\",\"protocol\":1,\"version\":\"0\",\"run\":1}\n";
    let ask = |connections: u64, bytes: u64, seconds: &str| {
        let settings = format!(
            "{{\"test\":\"tcp-rr\",\"connections\":{connections},\"request_bytes\":{bytes},\"response_bytes\":1,\
             \"message_bytes\":1,\"seconds\":{seconds},\"server_cpu\":null}}"
        );
        say(&at, &format!("{hello}{{\"ask\":\"prepare\",\"settings\":{settings}}}\nnothing\n"))
    };
    assert!(ask(1, 1, "1").contains("\"done\""));
    assert!(ask(4_000_000, 1, "1").contains("--connections 4000000"));
    assert!(ask(1, 4_000_000_000, "1").contains("--request-bytes 4000000000"));
    assert!(ask(1, 1, "1e300").contains("--time"));
    assert!(say(&at, &format!("{hello}{{\"ask\":\"end\"}}\n")).contains("no test is prepared"));
    assert!(say(&at, &format!("{hello}{{\"ask\":\"format\"}}\n")).contains("no message of this protocol"));
}

#[test]
fn garbage_and_half_open_connections_do_not_stop_a_server() {
    let (_server, at) = server(15_551);
    let data = format!("{HERE}:15552");
    let noise: Vec<u8> = (0..4096_u32).map(|i| u8::try_from(i * 31 % 251).unwrap()).collect();
    let socket = UdpSocket::bind((HERE, 0)).unwrap();
    for length in [0, 1, 8, 15, 16, 17, 1400] {
        socket.send_to(&noise[..length], &data).unwrap();
    }
    let mut open = Vec::new();
    for i in 0..200 {
        for to in [&at, &data] {
            let mut stream = TcpStream::connect(to).unwrap();
            // Some say nothing, some the beginning of something, some nonsense.
            let _ = stream.write_all(&noise[..i % 64]);
            open.push(stream);
        }
    }
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    assert!(socket.recv(&mut [0; 100]).is_err(), "a datagram of no session is answered");
    let start = Instant::now();
    while !run(None, &[&at, "tcp-crr"]).status.success() {
        assert!(start.elapsed() < Duration::from_secs(15), "the server does not come back");
        std::thread::sleep(Duration::from_millis(200));
    }
    drop(open);
    assert!(number(&result(None, &[&at, "udp-rr"]), "transactions") > 100);
}

#[test]
fn a_data_path_that_leads_elsewhere_is_named() {
    let (_one, at) = server(15_561);
    let (_other, _) = server(15_571);
    let error = failure(None, &[&at, "tcp-rr", "--target-address", "127.0.0.1:15572"]);
    assert!(error.contains("127.0.0.1:15572") && error.contains("does that address lead to"), "{error}");
}

/// Passes datagrams on to the server; of each eight the fifth goes after the sixth, and the eighth goes twice.
fn relay(to: String) -> String {
    let (front, back) = (UdpSocket::bind((HERE, 0)).unwrap(), UdpSocket::bind((HERE, 0)).unwrap());
    let at = front.local_addr().unwrap().to_string();
    back.connect(to).unwrap();
    let pass = move || {
        let (mut buffer, mut held, mut count) = ([0; 2048], None, 0_u64);
        while let Ok((length, _)) = front.recv_from(&mut buffer) {
            // Those of the warm-up (kind 2, the ninth byte) are left alone.
            let counts = buffer[8] == 3;
            let place = if counts { count % 8 } else { 0 };
            count += u64::from(counts);
            match place {
                5 => held = Some(buffer[..length].to_vec()),
                _ => {
                    back.send(&buffer[..length]).unwrap();
                    if let Some(late) = held.take() {
                        back.send(&late).unwrap();
                    }
                    if place == 7 {
                        back.send(&buffer[..length]).unwrap();
                    }
                }
            }
        }
    };
    std::thread::Builder::new().spawn(pass).unwrap();
    at
}

#[test]
fn reordering_and_duplicates_are_counted_as_a_relay_makes_them() {
    let (_server, at) = server(15_581);
    let through = relay(format!("{HERE}:15582"));
    let document = result(None, &[&at, "udp-rate", "--rate", "8000", "--target-address", &through]);
    let [received, lost] = ["received_packets", "lost"].map(|name| number(&document, name));
    assert!(received > 500, "{document:#}");
    for name in ["reorder/reordered", "reorder/duplicates"] {
        assert!(number(&document, name).abs_diff(received / 8) <= 2 + lost, "{name}: {document:#}");
    }
}

#[test]
fn with_patience_paths_that_do_not_open_are_left_out_of_every_test() {
    let (_server, at) = server(5941);
    // Data to a port where nobody is: TCP is refused, and datagrams get no answer.
    let paths = format!("good={at},closed={at}@127.0.0.1:5949");
    let args =
        ["--paths", &paths, "--rounds", "3", "--slice-ms", "20", "--patience", "0", "tcp-rr,udp-rr,udp-rate"];
    let out = run(None, &args);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let lines = String::from_utf8_lossy(&out.stdout).into_owned();
    let documents: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(documents.len(), 3, "{lines}");
    for (document, test) in documents.iter().zip(["tcp-rr", "udp-rr", "udp-rate"]) {
        let sliced = document.get("sliced").unwrap();
        assert_eq!(sliced["test"], test);
        assert_eq!(sliced["paths"].as_array().unwrap().len(), 1, "{sliced}");
        assert_eq!(sliced["paths"][0]["name"], "good");
        assert!(sliced["paths"][0]["per_second"].as_f64().unwrap() > 100.0, "{sliced}");
        assert_eq!(sliced["unreachable"][0][0], "closed", "{sliced}");
    }
    let sent = documents[2].pointer("/sliced/paths/0/sent").and_then(serde_json::Value::as_u64);
    assert!(sent.unwrap() > 100, "{documents:?}");
    let error = failure(None, &["--paths", &paths, "--rounds", "3", "tcp-rr"]);
    assert!(error.contains("path closed"), "{error}");
}

#[test]
fn a_path_that_is_open_is_not_given_up_while_another_does_not_open() {
    let (_server, at) = server(5961);
    let paths = format!("good={at},closed={at}@127.0.0.1:5969");
    // A server gives a silent client up after 15 s.
    let document =
        result(None, &["--paths", &paths, "--rounds", "3", "--slice-ms", "20", "--patience", "17", "tcp-rr"]);
    assert_eq!(document["sliced"]["paths"][0]["name"], "good", "{document:#}");
    assert_eq!(document["sliced"]["unreachable"][0][0], "closed", "{document:#}");
}
