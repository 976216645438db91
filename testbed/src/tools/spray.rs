//! Many flows of one packet each, as in a scan: half of them TCP SYN, half UDP, no two alike. And the other end, which counts what
//! arrives on each port, whether or not a program listens there.
//!
//! Both use raw IPv4 sockets: the kernel neither keeps a socket for each flow nor answers what it does not know of.

use std::collections::BTreeMap;
use std::fs;
use std::io::IoSliceMut;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use etherparse::PacketBuilder;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, recvmsg, sendto, setsockopt,
    socket, sockopt,
};
use serde::{Deserialize, Serialize};

use crate::ui;

/// First destination port of a spray.
pub const FIRST_PORT: u16 = 9000;
/// It goes to so many, one after another.
pub const PORTS: u16 = 8;
/// Source ports begin here.
const FIRST_SOURCE: u16 = 1024;
/// Bytes of a packet's headers: IPv4, and the longer one of TCP and UDP.
const ROOM: usize = 40;
const TTL: u8 = 64;
/// Receive window of the SYNs, in bytes.
const WINDOW: u16 = 0xffff;
/// Time between two batches of packets.
const BATCH: Duration = Duration::from_millis(2);
/// Time between two reports.
const REPORT: Duration = Duration::from_millis(250);
/// Room for what has arrived and was not read yet.
const BUFFER: usize = 64 << 20;

/// `testbed probe spray`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// This pod's address.
    #[arg(long)]
    from: Ipv4Addr,
    /// So many flows in all, evenly to every destination.
    #[arg(long, default_value_t = 1_000_000)]
    flows: u32,
    /// So many packets a second at most.
    #[arg(long, default_value_t = 20_000)]
    rate: u32,
    /// Two packets of each UDP flow: the flow cache learns from the second one.
    #[arg(long)]
    twice: bool,
    /// Where to.
    #[arg(required = true)]
    to: Vec<Ipv4Addr>,
}

/// What a spray ends with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sprayed {
    /// Flows all of whose packets the kernel took.
    pub sent: u64,
    /// Flows of which it did not take all.
    pub refused: u64,
    pub seconds: f64,
}

/// `testbed probe tally`.
#[derive(Clone, Debug, clap::Args)]
pub struct TallyArgs {}

/// What has arrived so far, at ports of a spray.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// TCP packets by destination port.
    pub tcp: BTreeMap<u16, u64>,
    /// UDP packets by destination port.
    pub udp: BTreeMap<u16, u64>,
    /// Packets that arrived and found no room in the sockets.
    pub missed: u64,
}

/// One flow of a spray.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Flow {
    to: Ipv4Addr,
    udp: bool,
    source_port: u16,
    port: u16,
}

impl Flow {
    /// The flow of that number; none when there are no more. Destinations, protocols and ports change from one to the next.
    fn number(number: u32, to: &[Ipv4Addr]) -> Option<Self> {
        let places = u32::try_from(to.len()).ok()?;
        let (rest, place) = (number.checked_div(places)?, number.checked_rem(places)?);
        let (rest, udp) = (rest / 2, rest % 2 == 1);
        let (rest, port) = (rest / u32::from(PORTS), rest % u32::from(PORTS));
        Some(Self {
            to: *to.get(usize::try_from(place).ok()?)?,
            udp,
            source_port: FIRST_SOURCE.checked_add(u16::try_from(rest).ok()?)?,
            port: FIRST_PORT + u16::try_from(port).ok()?,
        })
    }

    /// The packet, with its checksums.
    fn packet(self, from: Ipv4Addr) -> Result<Vec<u8>> {
        let ip = PacketBuilder::ipv4(from.octets(), self.to.octets(), TTL);
        let mut packet = Vec::with_capacity(ROOM);
        if self.udp {
            ip.udp(self.source_port, self.port).write(&mut packet, &[])?;
        } else {
            ip.tcp(self.source_port, self.port, 0, WINDOW).syn().write(&mut packet, &[])?;
        }
        Ok(packet)
    }
}

fn raw(protocol: SockProtocol) -> Result<OwnedFd> {
    socket(AddressFamily::Inet, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol).context("raw socket")
}

impl Args {
    /// Sends everything, and says how much that was.
    pub fn run(self) -> Result<()> {
        let Self { from, flows, rate, twice, to } = self;
        ensure!(rate > 0, "--rate must not be 0");
        let last = flows.checked_sub(1).context("--flows must not be 0")?;
        ensure!(
            Flow::number(last, &to).is_some(),
            "there are fewer than {flows} flows to {} places",
            to.len()
        );
        let socket = raw(SockProtocol::Raw)?;
        let start = Instant::now();
        let mut said = Sprayed::default();
        let mut number = 0;
        while number < flows {
            let due = start.elapsed().as_secs_f64() * f64::from(rate);
            while number < flows && f64::from(number) <= due {
                if let Some(flow) = Flow::number(number, &to) {
                    let packet = flow.packet(from)?;
                    let place = SockaddrIn::from(SocketAddrV4::new(flow.to, 0));
                    let packets = if twice && flow.udp { 2 } else { 1 };
                    let send = || sendto(socket.as_raw_fd(), &packet, &place, MsgFlags::empty()).is_ok();
                    if (0..packets).all(|_| send()) {
                        said.sent += 1;
                    } else {
                        said.refused += 1;
                    }
                }
                number += 1;
            }
            thread::sleep(BATCH);
        }
        said.seconds = start.elapsed().as_secs_f64();
        ui::say(serde_json::to_string(&said)?);
        Ok(())
    }
}

type Shared = Arc<Mutex<Tally>>;

impl TallyArgs {
    /// Counts until it is killed, and prints a line of JSON whenever there is something new.
    pub fn run(self) -> Result<()> {
        let tally = Shared::default();
        for udp in [false, true] {
            let socket = raw(if udp { SockProtocol::Udp } else { SockProtocol::Tcp })?;
            setsockopt(&socket, sockopt::RcvBufForce, &BUFFER).context("receive buffer")?;
            let tally = Arc::clone(&tally);
            thread::Builder::new().name("tally".into()).spawn(move || count(&socket, udp, &tally))?;
        }
        let mut last = None;
        loop {
            let now = Tally {
                missed: missed(&fs::read_to_string("/proc/thread-self/net/raw").context("/proc/net/raw")?),
                ..tally.lock().unwrap_or_else(PoisonError::into_inner).clone()
            };
            if last.as_ref() != Some(&now) {
                ui::say(serde_json::to_string(&now)?);
                last = Some(now);
            }
            thread::sleep(REPORT);
        }
    }
}

fn count(socket: &impl AsFd, udp: bool, tally: &Shared) {
    let mut buffer = [0; 128];
    loop {
        let mut room = [IoSliceMut::new(&mut buffer)];
        let fd = socket.as_fd().as_raw_fd();
        let length = match recvmsg::<()>(fd, &mut room, None, MsgFlags::empty()) {
            Ok(message) => message.bytes.min(128),
            Err(Errno::EINTR) => continue,
            Err(_) => return,
        };
        let Some(port) = port(&buffer[..length]) else { continue };
        let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
        *(if udp { &mut tally.udp } else { &mut tally.tcp }).entry(port).or_default() += 1;
    }
}

/// Destination port of an IPv4 packet, if a spray goes there.
fn port(packet: &[u8]) -> Option<u16> {
    let at = usize::from(packet.first()? & 15) * 4 + 2;
    let port = u16::from_be_bytes(packet.get(at..at + 2)?.try_into().ok()?);
    (FIRST_PORT..FIRST_PORT + PORTS).contains(&port).then_some(port)
}

/// Sum of the last column of `/proc/net/raw`: packets dropped for want of room, of each socket.
fn missed(table: &str) -> u64 {
    let drops = |line: &str| line.split_whitespace().next_back().and_then(|last| last.parse::<u64>().ok());
    table.lines().skip(1).filter_map(drops).sum()
}

#[cfg(test)]
mod tests {
    use etherparse::{NetHeaders, PacketHeaders, TransportHeader};

    use super::*;

    fn places() -> [Ipv4Addr; 2] {
        [Ipv4Addr::new(10, 244, 0, 3), Ipv4Addr::new(10, 244, 1, 3)]
    }

    #[test]
    fn a_million_flows_are_all_different_and_half_are_udp() {
        let flows: Vec<_> = (0..1_000_000).map(|n| Flow::number(n, &places()).unwrap()).collect();
        let different: std::collections::BTreeSet<_> = flows.iter().copied().collect();
        assert_eq!(different.len(), flows.len());
        assert_eq!(flows.iter().filter(|flow| flow.udp).count(), 500_000);
        for port in FIRST_PORT..FIRST_PORT + PORTS {
            assert_eq!(flows.iter().filter(|flow| flow.port == port).count(), 125_000);
        }
    }

    #[test]
    fn flows_that_do_not_fit_into_source_ports_are_none() {
        assert_eq!(Flow::number(u32::MAX, &places()), None);
        assert_eq!(Flow::number(0, &[]), None);
    }

    #[test]
    fn a_packet_is_of_its_flow_and_its_checksum_is_right() {
        let from = Ipv4Addr::new(10, 244, 0, 9);
        for number in 0..64 {
            let flow = Flow::number(number, &places()).unwrap();
            let packet = flow.packet(from).unwrap();
            let headers = PacketHeaders::from_ip_slice(&packet).unwrap();
            let Some(NetHeaders::Ipv4(ip, _)) = headers.net else { panic!("{flow:?}: no IPv4") };
            assert_eq!((ip.source, ip.destination), (from.octets(), flow.to.octets()));
            let (source, destination) = match headers.transport {
                Some(TransportHeader::Udp(udp)) if flow.udp => {
                    assert_eq!(udp.calc_checksum_ipv4(&ip, &[]).unwrap(), udp.checksum);
                    (udp.source_port, udp.destination_port)
                }
                Some(TransportHeader::Tcp(tcp)) if !flow.udp => {
                    assert_eq!(tcp.calc_checksum_ipv4(&ip, &[]).unwrap(), tcp.checksum);
                    assert!(tcp.syn && !tcp.ack);
                    (tcp.source_port, tcp.destination_port)
                }
                other => panic!("{flow:?}: {other:?}"),
            };
            assert_eq!((source, destination), (flow.source_port, flow.port));
            assert_eq!(port(&packet), Some(flow.port));
        }
        assert_eq!(port(&[0x45; 20]), None);
    }

    #[test]
    fn packets_that_found_no_room_are_the_last_column() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n   \
             6: 00000000:0006 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 71 2 0000 3\n  \
             17: 00000000:0011 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 72 2 0000 4\n";
        assert_eq!(missed(table), 7);
    }
}
