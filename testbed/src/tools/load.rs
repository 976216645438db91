//! Many long-lived flows in one process: numbered, time-stamped messages at a steady pace to other processes of this kind,
//! and a report of what arrives from them. Orders come on standard input, reports go to standard output, a line of JSON each.
//!
//! All times are nanoseconds of `CLOCK_MONOTONIC`, which all processes of a machine share. Nothing is ever sent in answer:
//! a reply could open a connection-tracking entry of its own after OVS has lost the one of the request.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::socket::{setsockopt, sockopt};
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, UdpSocket};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::ui;

/// `testbed probe load`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Where others' messages come in, TCP and UDP.
    #[arg(long, value_delimiter = ',', default_values_t = PORTS)]
    port: Vec<u16>,
    /// Milliseconds between two messages of a flow.
    #[arg(long, default_value_t = 10)]
    pause: u64,
}

/// The usual ports.
pub const PORTS: [u16; 2] = [PORT, PORT + 1];
/// The first of them.
pub const PORT: u16 = 7000;
/// Time between two reports.
const REPORT: Duration = Duration::from_millis(50);
/// A connection attempt that is not answered is given up for a fresh one, well before the kernel would try again (1 s).
const CONNECT: Duration = Duration::from_millis(250);
/// A connection whose data is not acknowledged for so long is given up. Longer than the bound of a policy change, so that a
/// connection is still in use when it ought to be cut.
const USER_TIMEOUT: Duration = Duration::from_millis(900);
/// Before the next connection attempt.
const AGAIN: Duration = Duration::from_millis(30);
/// Source ports. Each attempt takes the next one: connection tracking keeps a connection of whose end it has not heard, with its
/// translation, and may take an attempt from the same port a while later for more of it. Not those of services' node ports.
const SOURCES: [RangeInclusive<u16>; 2] = [10_000..=29_999, 32_768..=64_999];
/// How many are tried where others are in use.
const PORTS_TRIED: usize = 100;
/// Bytes of a message: flow, number, time of sending, time of the connection's beginning.
const MESSAGE: usize = 24;

/// What is ordered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Begin a flow, or begin it again from another port.
    Dial(Dial),
    /// End a flow.
    Drop(u32),
}

/// A flow to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dial {
    /// Its number, in every message.
    pub flow: u32,
    pub udp: bool,
    pub to: SocketAddr,
}

/// What came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrival {
    /// Number of the flow.
    pub flow: u32,
    /// Number of the message since the flow was dialled.
    pub number: u32,
    /// When it was sent.
    pub sent: u64,
    /// When its connection was begun (before its first packet), or its UDP socket made.
    pub began: u64,
    /// When it was taken from the socket: the same for all messages of one read.
    pub at: u64,
    /// The address that it came from.
    pub from: IpAddr,
    /// The port that it came to.
    pub port: u16,
}

/// `CLOCK_MONOTONIC` in nanoseconds.
#[must_use]
pub fn now() -> u64 {
    // Every Linux has this clock.
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| {
        let nanoseconds = Duration::from(time).as_nanos();
        u64::try_from(nanoseconds).unwrap_or(u64::MAX)
    })
}

type Arrivals = Arc<Mutex<Vec<Arrival>>>;

/// Records the complete messages that were read at once, and returns their length in bytes.
fn note(arrivals: &Arrivals, bytes: &[u8], from: IpAddr, port: u16) -> usize {
    let at = now();
    let (messages, _) = bytes.as_chunks::<MESSAGE>();
    let mut list = arrivals.lock().unwrap_or_else(PoisonError::into_inner);
    list.extend(messages.iter().filter_map(|message| {
        let [flow, number] = [0, 4].map(|at| word(message, at));
        let [sent, began] = [8, 16].map(|at| time(message, at));
        Some(Arrival { flow: flow?, number: number?, sent: sent?, began: began?, at, from, port })
    }));
    messages.as_flattened().len()
}

fn message(flow: u32, number: u32, began: u64) -> [u8; MESSAGE] {
    let mut bytes = [0; MESSAGE];
    bytes[..4].copy_from_slice(&flow.to_be_bytes());
    bytes[4..8].copy_from_slice(&number.to_be_bytes());
    bytes[8..16].copy_from_slice(&now().to_be_bytes());
    bytes[16..].copy_from_slice(&began.to_be_bytes());
    bytes
}

fn word(message: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(message.get(at..at + 4)?.try_into().ok()?))
}

fn time(message: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(message.get(at..at + 8)?.try_into().ok()?))
}

impl Args {
    /// Runs until standard input ends.
    pub fn run(self) -> Result<()> {
        // One thread: there are many of these processes on one machine.
        tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(self.serve())
    }

    async fn serve(self) -> Result<()> {
        let Self { port, pause } = self;
        let pause = Duration::from_millis(pause.max(1));
        let arrivals = Arrivals::default();
        for port in port {
            let here = (Ipv4Addr::UNSPECIFIED, port);
            let udp = UdpSocket::bind(here).await.with_context(|| format!("UDP port {port}"))?;
            let tcp = TcpListener::bind(here).await.with_context(|| format!("TCP port {port}"))?;
            tokio::spawn(take_udp(udp, port, Arc::clone(&arrivals)));
            tokio::spawn(take_tcp(tcp, port, Arc::clone(&arrivals)));
        }
        tokio::spawn(report(arrivals));
        let mut flows: BTreeMap<u32, JoinHandle<()>> = BTreeMap::new();
        let (lines, mut orders) = mpsc::unbounded_channel();
        let read = move || io::stdin().lines().map_while(Result::ok).try_for_each(|line| lines.send(line));
        thread::Builder::new().name("orders".into()).spawn(read)?;
        while let Some(line) = orders.recv().await {
            let order: Order = serde_json::from_str(&line).with_context(|| format!("order {line:?}"))?;
            let flow = match &order {
                Order::Dial(dial) => dial.flow,
                Order::Drop(flow) => *flow,
            };
            if let Some(old) = flows.remove(&flow) {
                old.abort();
            }
            if let Order::Dial(dial) = order {
                flows.insert(flow, tokio::spawn(send(dial, pause)));
            }
        }
        Ok(())
    }
}

/// Prints what has arrived since the last time.
async fn report(arrivals: Arrivals) {
    let mut ticks = interval(REPORT);
    loop {
        ticks.tick().await;
        let list = std::mem::take(&mut *arrivals.lock().unwrap_or_else(PoisonError::into_inner));
        if let (false, Ok(line)) = (list.is_empty(), serde_json::to_string(&list)) {
            ui::say(line);
        }
    }
}

async fn take_udp(socket: UdpSocket, port: u16, arrivals: Arrivals) {
    let mut buffer = [0; 64];
    loop {
        // An error here is an old message's, not the socket's.
        if let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            note(&arrivals, &buffer[..length], from.ip(), port);
        }
    }
}

async fn take_tcp(listener: TcpListener, port: u16, arrivals: Arrivals) {
    loop {
        let Ok((mut stream, from)) = listener.accept().await else {
            sleep(AGAIN).await;
            continue;
        };
        let arrivals = Arc::clone(&arrivals);
        tokio::spawn(async move {
            // A retransmission brings all messages that waited for it.
            let mut buffer = [0; 256 * MESSAGE];
            let mut kept = 0;
            while let Ok(length @ 1..) = stream.read(&mut buffer[kept..]).await {
                let end = kept + length;
                let done = note(&arrivals, &buffer[..end], from.ip(), port);
                buffer.copy_within(done..end, 0);
                kept = end - done;
            }
        });
    }
}

/// Sends without end.
async fn send(dial: Dial, pause: Duration) {
    let mut number = 0;
    loop {
        // Whatever ends a connection, the next one is tried.
        let _ = if dial.udp {
            send_udp(dial, pause, &mut number).await
        } else {
            send_tcp(dial, pause, &mut number).await
        };
        sleep(AGAIN).await;
    }
}

/// The next source port.
fn next_source() -> SocketAddr {
    // A process like this one may have been here before.
    static NEXT: LazyLock<AtomicU32> =
        LazyLock::new(|| AtomicU32::new(u32::try_from(now() / 1_000 % 1_000_000).unwrap_or_default()));
    let [low, high] = &SOURCES;
    let at = usize::try_from(NEXT.fetch_add(1, Ordering::Relaxed)).unwrap_or_default();
    let port = low.clone().chain(high.clone()).nth(at % (low.len() + high.len()));
    (Ipv4Addr::UNSPECIFIED, port.unwrap_or_default()).into()
}

/// Binds to a source port that nobody else has.
fn bound<T>(bind: impl Fn(SocketAddr) -> io::Result<T>) -> io::Result<T> {
    let mut tries = PORTS_TRIED;
    loop {
        match bind(next_source()) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && tries > 0 => tries -= 1,
            done => return done,
        }
    }
}

async fn send_udp(dial: Dial, pause: Duration, number: &mut u32) -> Result<()> {
    let began = now();
    let socket = bound(|source| {
        let socket = std::net::UdpSocket::bind(source)?;
        socket.set_nonblocking(true)?;
        UdpSocket::from_std(socket)
    })?;
    socket.connect(dial.to).await?;
    let mut ticks = interval(pause);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        *number = number.wrapping_add(1);
        // There may be no listener for a moment; the flow keeps its port.
        let _ = socket.send(&message(dial.flow, *number, began)).await;
    }
}

async fn send_tcp(dial: Dial, pause: Duration, number: &mut u32) -> Result<()> {
    let began = now();
    let socket = bound(|source| {
        let socket = TcpSocket::new_v4()?;
        socket.bind(source).map(|()| socket)
    })?;
    let mut stream = timeout(CONNECT, socket.connect(dial.to)).await??;
    // A process that got no processor may see its connection come up much later: then the time of its beginning would say nothing.
    ensure!(now().saturating_sub(began) <= CONNECT.as_nanos().try_into()?, "the connection came up late");
    stream.set_nodelay(true)?;
    setsockopt(&stream, sockopt::TcpUserTimeout, &u32::try_from(USER_TIMEOUT.as_millis())?)?;
    // Once given up, nothing of it is sent any more.
    setsockopt(&stream, sockopt::Linger, &nix::libc::linger { l_onoff: 1, l_linger: 0 })?;
    let mut ticks = interval(pause);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        *number = number.wrapping_add(1);
        stream.write_all(&message(dial.flow, *number, began)).await?;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const FROM: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn a_message_tells_its_flow_number_and_times() {
        let arrivals = Arrivals::default();
        let before = now();
        assert_eq!(note(&arrivals, &message(7, 0x0102_0304, 5), FROM, 9), MESSAGE);
        let arrival = arrivals.lock().unwrap()[0];
        assert_eq!((arrival.flow, arrival.number, arrival.began), (7, 0x0102_0304, 5));
        assert_eq!((arrival.from, arrival.port), (FROM, 9));
        assert!(before <= arrival.sent && arrival.sent <= arrival.at);
        assert_eq!(note(&arrivals, &[0; MESSAGE - 1], FROM, 9), 0);
    }

    #[test]
    fn messages_of_one_read_arrive_at_one_time() {
        let arrivals = Arrivals::default();
        let mut bytes = [message(1, 1, 0), message(1, 2, 0)].concat();
        bytes.extend([0; 5]);
        assert_eq!(note(&arrivals, &bytes, FROM, 1), 2 * MESSAGE, "the third one is not whole");
        assert_eq!(note(&arrivals, &message(1, 3, 0), FROM, 1), MESSAGE);
        let list = arrivals.lock().unwrap();
        let numbers: Vec<u32> = list.iter().map(|arrival| arrival.number).collect();
        assert_eq!(numbers, [1, 2, 3]);
        assert_eq!(list[0].at, list[1].at);
        assert!(list[1].at < list[2].at);
    }

    #[test]
    fn no_source_port_is_taken_twice_in_a_round() {
        let [low, high] = &SOURCES;
        let all: BTreeSet<u16> = (0..low.len() + high.len()).map(|_| next_source().port()).collect();
        assert!(all.iter().copied().eq(low.clone().chain(high.clone())));
        let taken = bound(std::net::UdpSocket::bind).unwrap();
        let port = taken.local_addr().unwrap().port();
        assert!(all.contains(&port), "{port}");
    }

    #[test]
    fn orders_are_lines_of_json() {
        let order = Order::Dial(Dial { flow: 1, udp: true, to: "10.0.0.1:7000".parse().unwrap() });
        let text = serde_json::to_string(&order).unwrap();
        assert_eq!(text, r#"{"dial":{"flow":1,"udp":true,"to":"10.0.0.1:7000"}}"#);
        assert_eq!(serde_json::from_str::<Order>(&text).unwrap(), order);
    }
}
