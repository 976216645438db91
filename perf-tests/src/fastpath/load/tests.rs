//! Both ends of each kind in one process.

use std::io::{BufRead, BufReader, PipeReader, PipeWriter};
use std::net::Ipv4Addr;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

use serde::de::DeserializeOwned;

use super::*;

const SLICE: Duration = Duration::from_millis(50);

/// The commands to an end, and its answers.
struct Line {
    commands: Sender<Command>,
    answers: Answers,
}

impl Line {
    /// A session, and its other side.
    fn new() -> (Session, Self) {
        let (commands, receiver) = mpsc::channel();
        let (answers, writer) = Answers::new();
        (Session::of_test(receiver, writer), Self { commands, answers })
    }

    /// The answer to a slice.
    fn go<T: DeserializeOwned>(&mut self) -> T {
        self.commands.send(Command { length: SLICE, peer: nobody() }).unwrap();
        self.answers.next()
    }
}

/// The lines that an end writes.
struct Answers(BufReader<PipeReader>);

impl Answers {
    fn new() -> (Self, PipeWriter) {
        let (reader, writer) = std::io::pipe().unwrap();
        (Self(BufReader::new(reader)), writer)
    }

    fn next<T: DeserializeOwned>(&mut self) -> T {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }
}

fn nobody() -> Pid {
    Pid::from_raw(0)
}

/// Starts a serving end; returns when the kernel knows its port.
fn serve<T: Send + 'static>(
    port: u16,
    end: impl FnOnce(SocketAddr) -> T + Send + 'static,
) -> (SocketAddr, JoinHandle<T>) {
    let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
    let server = thread::Builder::new().spawn(move || end(at)).unwrap();
    // Without a peer: bound or listening, not a connection of an earlier run.
    let local = format!(":{port:04X} 00000000:0000 ");
    let listed = |file| std::fs::read_to_string(file).unwrap().contains(&local);
    while !server.is_finished() && !listed("/proc/net/tcp") && !listed("/proc/net/udp") {
        thread::sleep(Duration::from_millis(5));
    }
    (at, server)
}

#[test]
fn requests_and_answers_are_counted_by_the_client_slice_by_slice() {
    let (at, server) = serve(17101, requests::serve_tcp);
    let (session, mut line) = Line::new();
    let driver = thread::Builder::new()
        .spawn(move || {
            let mut end = requests::Tcp::connect(at)?;
            slice::run(session, || end.ask())
        })
        .unwrap();
    for _ in 0..3 {
        let measured: Measured = line.go();
        assert!(measured.per_second > 0.0 && measured.median_us.is_some(), "{measured:?}");
    }
    drop(line);
    driver.join().unwrap().unwrap();
    server.join().unwrap().unwrap();
}

#[test]
fn a_late_answer_is_not_that_of_the_next_datagram() {
    // The first two answers come late, and twice.
    let (at, _server) = serve(17102, |at| {
        let socket = std::net::UdpSocket::bind(at).unwrap();
        let mut message = [0; MESSAGE];
        for round in 0.. {
            let (length, from) = socket.recv_from(&mut message).unwrap();
            if round < 2 {
                thread::sleep(Duration::from_millis(600));
                socket.send_to(&message[..length], from).unwrap();
            }
            socket.send_to(&message[..length], from).unwrap();
        }
    });
    let mut end = requests::Udp::connect(at).unwrap();
    for _ in 0..5 {
        end.ask().unwrap();
    }
}

#[test]
fn datagrams_are_answered() {
    let (at, _server) = serve(17107, requests::serve_udp);
    let mut end = requests::Udp::connect(at).unwrap();
    let measured = slice::transactions(SLICE, || end.ask()).unwrap();
    assert!(measured.per_second > 0.0, "{measured:?}");
}

/// Three slices of one-way traffic.
fn one_way(
    port: u16,
    receive: fn(SocketAddr, PipeWriter) -> Result<()>,
    send: fn(SocketAddr, Session) -> Result<()>,
) -> Vec<Measured> {
    let (mut receiver, out) = Answers::new();
    let (at, _server) = serve(port, move |at| receive(at, out));
    let (session, mut sender) = Line::new();
    let driver = thread::Builder::new().spawn(move || send(at, session)).unwrap();
    let slices = (0..3).map(|_| sender.go::<Sent>().with(receiver.next::<Arrived>())).collect();
    drop(sender);
    driver.join().unwrap().unwrap();
    slices
}

#[test]
fn one_way_traffic_is_counted_where_it_arrives() {
    let slices = one_way(17103, oneway::count_datagrams, oneway::blast);
    assert!(slices.iter().all(|slice| slice.per_second > 0.0), "{slices:?}");
    let slices = one_way(17104, oneway::count_bits, oneway::pour);
    assert!(slices.iter().all(|slice| slice.per_second > 0.0), "{slices:?}");
}

#[test]
fn connections_are_opened_one_after_another() {
    let (at, _server) = serve(17105, connections::serve);
    let measured = slice::transactions(SLICE, || connections::open(at)).unwrap();
    assert!(measured.per_second > 0.0, "{measured:?}");
}

#[test]
fn paced_datagrams_come_in_order_and_not_faster_than_their_rate() {
    let (at, server) = serve(17106, |at| paced::record(at, SLICE));
    paced::send(at, SLICE, 1000).unwrap();
    let Recorded { arrivals } = server.join().unwrap().unwrap();
    assert!(arrivals.is_sorted(), "{arrivals:?}");
    assert!((1..=250).contains(&arrivals.len()), "{}", arrivals.len());
}
