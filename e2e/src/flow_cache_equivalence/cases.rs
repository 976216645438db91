//! Which packets are compared. Each case has a flow of its own, which is known to the cache before, so that what must not use
//! the cache is refused although there is an entry.

use std::net::IpAddr;

use super::frame::{ACK, CWR, Check, ECE, FIN, ICMP, ICMP6, PSH, Packet, RST, SYN, UDP, URG, Upper};
use super::scene::{FlowKey, Scene, Who, mac};
use testbed::tools::packets::Frame;

/// Protocol, IP version and place of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) udp: bool,
    pub(super) six: bool,
    /// On the other node.
    pub(super) far: bool,
}

impl Kind {
    /// All of them.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        (0..8).map(|bits| Self { udp: bits & 1 != 0, six: bits & 2 != 0, far: bits & 4 != 0 })
    }

    /// The receiver.
    pub(super) fn to(self) -> Who {
        if self.far { Who::B } else { Who::C }
    }

    pub(super) fn name(self) -> String {
        let protocol = if self.udp { "UDP" } else { "TCP" };
        let version = if self.six { 6 } else { 4 };
        let place = if self.far { "across nodes" } else { "on one node" };
        format!("{protocol} over IPv{version} {place}")
    }
}

/// How many packets of a case the caches must carry; an aggregate counts as its segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Carried {
    /// The sender's node.
    pub(super) out: u64,
    /// The receiver's node, where it is another.
    pub(super) into: u64,
}

impl Carried {
    /// All the way.
    const fn all(count: u64) -> Self {
        Self { out: count, into: count }
    }

    const NONE: Self = Self::all(0);
}

/// What must arrive in a case on every path, so that the test does not compare nothing with nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrives {
    /// So many packets on the wire.
    Exactly(usize),
    /// Whatever OVS says.
    Whatever,
}

/// One case.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) kind: Kind,
    /// Its number; IPv4 identifications and IPv6 flow labels of its packets are [`Case::ids`].
    pub(super) number: u16,
    /// In the order in which they are sent.
    pub(super) packets: Vec<(Who, Frame)>,
    pub(super) carried: Carried,
    pub(super) arrives: Arrives,
    /// What is known to be otherwise than through OVS, and why.
    pub(super) known: Option<&'static str>,
    /// Why the cluster with `--datapath=ovs` is not asked.
    pub(super) unasked: Option<&'static str>,
}

/// OVS drops what connection tracking calls invalid; the cache looks at no checksum, and the receiver's kernel drops it.
const CHECKSUM: &str = "the cache leaves checksums to the receiver";
/// `userspace-tso-enable` of OVS 3.5 knows TCP only: it drops them (lib/netdev-linux.c).
const NO_UDP: &str = "OVS's userspace datapath takes no aggregates of UDP";
/// `userspace-tso-enable` does not support TCP with CWR either.
const NO_CWR: &str = "OVS's userspace datapath takes no aggregates with CWR";
/// An effect of `userspace-tso-enable`; seen, not explained.
const NO_ANSWER: &str = "with userspace-tso-enable OVS drops it without an answer";
/// With `userspace-tso-enable`, OVS 3.5 completes the checksum of UDP over IPv6 wrongly.
const BAD_SUM: &str = "OVS's userspace datapath completes this checksum wrongly";

/// Bytes of the first one of two fragments.
const FRAGMENT: usize = 1240;
/// Identifications of one case.
const IDS: u16 = 100;
/// The receivers' port. No program listens on it.
const PORT: u16 = 30_000;
/// The senders' first port.
const FIRST: u16 = 20_000;

impl Case {
    /// A flow without packets of its own.
    pub(super) fn flow(kind: Kind, number: u16) -> Self {
        let (carried, arrives) = (Carried::NONE, Arrives::Whatever);
        Self {
            name: kind.name(),
            kind,
            number,
            packets: Vec::new(),
            carried,
            arrives,
            known: None,
            unasked: None,
        }
    }

    /// The first identification of its packets.
    pub(super) fn id(number: u16) -> u16 {
        number * IDS
    }

    /// The case that a packet's identification belongs to.
    pub(super) fn of_id(id: u16) -> u16 {
        id / IDS
    }
}

/// The flow of a case: its template in both directions.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    pub(super) there: Packet,
    pub(super) back: Packet,
}

/// Addresses of the pods.
#[derive(Clone, Debug)]
pub(super) struct Addresses {
    /// IPv4 and IPv6 of a, b and c.
    pub(super) ips: [[IpAddr; 2]; 3],
    /// MACs, and those of the routers' ports.
    macs: [[u8; 6]; 3],
    routers: [[u8; 6]; 3],
}

impl Addresses {
    /// Those of a scene.
    pub(super) fn of(scene: &Scene<'_>) -> Self {
        let ipv4 = Who::ALL.map(|who| scene.member(who).ipv4);
        let gateway = |ip: std::net::Ipv4Addr| {
            let [a, b, c, _] = ip.octets();
            mac([a, b, c, 1].into())
        };
        Self {
            ips: Who::ALL.map(|who| [scene.member(who).ipv4.into(), scene.member(who).ipv6]),
            macs: ipv4.map(mac),
            routers: ipv4.map(gateway),
        }
    }

    fn index(who: Who) -> usize {
        Who::ALL.iter().position(|&one| one == who).unwrap_or_default()
    }

    /// A packet from one pod to another, as the sender's stack would address it.
    pub(super) fn packet(&self, from: Who, to: Who, six: bool, ports: [u16; 2], upper: Upper) -> Packet {
        let (f, t) = (Self::index(from), Self::index(to));
        let near = (from == Who::B) == (to == Who::B);
        let next = if near { self.macs[t] } else { self.routers[f] };
        let family = usize::from(six);
        Packet::new([next, self.macs[f]], self.ips[f][family], self.ips[t][family], ports, upper)
    }

    /// MACs of a packet that a router of OVN has sent on to the receiver.
    pub(super) fn delivered(&self, kind: Kind) -> [[u8; 6]; 2] {
        let to = Self::index(kind.to());
        [self.macs[to], self.routers[to]]
    }

    /// The flow of a case.
    pub(super) fn pair(&self, kind: Kind, number: u16) -> Pair {
        let ports = [FIRST + number, PORT];
        let upper = || if kind.udp { Upper::Udp } else { tcp(ACK) };
        let there = self.packet(Who::A, kind.to(), kind.six, ports, upper());
        let mut back = self.packet(kind.to(), Who::A, kind.six, [ports[1], ports[0]], upper());
        (back.sequence, back.acknowledged) = (there.acknowledged, there.sequence);
        Pair { there, back }
    }

    /// What the caches know the flow by: out of the sender, and into the receiver where it is on another node.
    pub(super) fn keys(&self, kind: Kind, number: u16) -> [FlowKey; 2] {
        let Pair { there, .. } = self.pair(kind, number);
        let key = |delivers| FlowKey {
            udp: kind.udp,
            source: (there.source, there.ports[0]).into(),
            destination: (there.destination, there.ports[1]).into(),
            delivers,
        };
        [key(false), key(true)]
    }
}

/// TCP with these flags.
pub(super) fn tcp(flags: u8) -> Upper {
    Upper::Tcp { flags, options: Vec::new(), urgent: 0 }
}

/// Collects the cases of one kind.
struct Table<'a> {
    addresses: &'a Addresses,
    kind: Kind,
    number: u16,
    cases: Vec<Case>,
}

impl Table<'_> {
    /// A case of any packets; they get their identifications here, unless they have their own.
    fn packets(
        &mut self,
        name: &str,
        carried: Carried,
        arrives: Arrives,
        make: impl FnOnce(&Pair) -> Vec<(Who, Packet)>,
    ) {
        let number = self.number;
        self.number += 1;
        let mut pair = self.addresses.pair(self.kind, number);
        pair.there.id = number * IDS;
        pair.back.id = number * IDS + IDS / 2;
        let packets = make(&pair);
        let frames = packets.iter().map(|(who, packet)| (*who, packet.frame())).collect();
        self.cases.push(Case {
            name: format!("{}: {name}", self.kind.name()),
            kind: self.kind,
            number,
            packets: frames,
            carried,
            arrives,
            known: None,
            unasked: None,
        });
    }

    /// Of the case that was added last: what is known to be otherwise.
    fn known(&mut self, why: &'static str) {
        if let Some(case) = self.cases.last_mut() {
            case.known = Some(why);
            case.arrives = Arrives::Whatever;
        }
    }

    /// Of the case that was added last: why the second cluster is not asked.
    fn unasked(&mut self, why: &'static str) {
        if let Some(case) = self.cases.last_mut() {
            case.unasked = Some(why);
        }
    }

    /// One packet from the sender.
    fn one(&mut self, name: &str, carried: Carried, arrives: Arrives, edit: impl FnOnce(&mut Packet)) {
        self.packets(name, carried, arrives, |pair| {
            let mut packet = pair.there.clone();
            edit(&mut packet);
            vec![(Who::A, packet)]
        });
    }

    /// One packet that the cache carries.
    fn fast(&mut self, name: &str, edit: impl FnOnce(&mut Packet)) {
        self.one(name, Carried::all(1), Arrives::Exactly(1), edit);
    }

    /// One packet that goes through OVS.
    fn slow(&mut self, name: &str, arrives: Arrives, edit: impl FnOnce(&mut Packet)) {
        self.one(name, Carried::NONE, arrives, edit);
    }

    fn lengths(&mut self) {
        let headers = self.headers();
        for length in [0, 1, 2, 17, 18, 64, 511, 1000] {
            self.fast(&format!("payload of {length} bytes"), |packet| packet.payload = bytes(length));
        }
        self.fast("1400 bytes of IP, not to be fragmented", |packet| packet.payload = bytes(1400 - headers));
        // OVN's router answers, or OVS drops them before the pod; the veth lets 4 bytes more through.
        for length in [1401, 1404] {
            let name = format!("{length} bytes of IP, not to be fragmented");
            self.slow(&name, Arrives::Whatever, |packet| packet.payload = bytes(length - headers));
            self.unasked(NO_ANSWER);
        }
        self.fast("may be fragmented", |packet| packet.dont_fragment = false);
        self.slow("a longer frame than the packet in it", Arrives::Exactly(1), |packet| {
            packet.trailer = b"tail".to_vec();
        });
    }

    fn headers(&self) -> usize {
        (if self.kind.six { 40 } else { 20 }) + (if self.kind.udp { 8 } else { 20 })
    }

    fn classes(&mut self) {
        for (name, tos) in [("ECT(1)", 1), ("ECT(0)", 2), ("CE", 3)] {
            self.fast(name, |packet| packet.tos = tos);
        }
        // The entries were taught without a DSCP, and OVS may decide by it.
        for (name, tos) in [("DSCP EF", 0xb8), ("DSCP CS1 and ECT(0)", 0x22), ("DSCP EF and CE", 0xbb)] {
            self.slow(name, Arrives::Exactly(1), |packet| packet.tos = tos);
        }
    }

    fn hops(&mut self) {
        for ttl in [255, 128, 3] {
            self.fast(&format!("TTL {ttl}"), |packet| packet.ttl = ttl);
        }
        if self.kind.far {
            self.slow("TTL 2", Arrives::Exactly(1), |packet| packet.ttl = 2);
            // OVN's router answers.
            self.slow("TTL 1", Arrives::Whatever, |packet| packet.ttl = 1);
        } else {
            self.fast("TTL 2", |packet| packet.ttl = 2);
            self.slow("TTL 1", Arrives::Exactly(1), |packet| packet.ttl = 1);
        }
        self.slow("TTL 0", Arrives::Whatever, |packet| packet.ttl = 0);
    }

    fn checksums(&mut self) {
        self.fast("checksum left to the device", |packet| packet.check = Check::Offloaded);
        self.fast("checksum left to the device, odd length", |packet| {
            packet.check = Check::Offloaded;
            packet.payload = bytes(777);
        });
        if self.kind.udp && self.kind.six {
            self.cases.iter_mut().rev().take(2).for_each(|case| case.unasked = Some(BAD_SUM));
        }
        self.fast("wrong checksum", |packet| packet.check = Check::Wrong);
        self.known(CHECKSUM);
        if self.kind.udp {
            self.fast("no checksum", |packet| packet.check = Check::Zero);
            if self.kind.six {
                self.known(CHECKSUM);
            }
        }
    }

    fn aggregates(&mut self) {
        let headers = self.headers();
        let largest = u16::try_from(1400 - headers).unwrap_or(u16::MAX);
        for (name, length, size, count) in [
            ("aggregate of 5 full segments", 5000, 1000, 5),
            ("aggregate whose last segment has one byte", 2001, 1000, 3),
            ("aggregate of 45 segments of the MTU", 45 * usize::from(largest), largest, 45),
        ] {
            self.one(
                name,
                Carried::all(count),
                Arrives::Exactly(usize::try_from(count).unwrap_or_default()),
                |packet| {
                    aggregate(packet, length, size);
                    if let Upper::Tcp { flags, .. } = &mut packet.upper {
                        *flags |= PSH;
                    }
                },
            );
            if self.kind.udp {
                self.unasked(NO_UDP);
            }
        }
        // The pod thinks that its network carries more than it does.
        // What is left for the last segment is short enough.
        let last = Carried { out: 0, into: u64::from(self.kind.far) };
        self.one("aggregate of segments above the MTU", last, Arrives::Whatever, |packet| {
            aggregate(packet, 4290, 1430 - u16::try_from(headers).unwrap_or_default());
        });
        self.unasked(NO_ANSWER);
        if !self.kind.udp {
            self.one("aggregate with CWR", Carried::all(3), Arrives::Exactly(3), |packet| {
                aggregate(packet, 3000, 1000);
                packet.upper = tcp(ACK | CWR);
                packet.tos = 2;
            });
            self.unasked(NO_CWR);
        }
    }

    fn shapes(&mut self) {
        if self.kind.six {
            // Options that are only filled up (PadN; RFC 8200, 4.2).
            for (name, protocol) in [("hop-by-hop options", 0), ("destination options", 60)] {
                self.slow(name, Arrives::Whatever, |packet| {
                    packet.options = vec![0, 0, 1, 4, 0, 0, 0, 0];
                    packet.extension = protocol;
                });
            }
        } else {
            for (name, options) in [
                ("IP options that say nothing", vec![1, 1, 1, 0]),
                ("IP option router alert", vec![0x94, 4, 0, 0]),
                ("IP option record route", vec![7, 7, 4, 0, 0, 0, 0, 0]),
            ] {
                self.slow(name, Arrives::Whatever, |packet| packet.options = options);
            }
        }
        // OVS's connection tracking takes no fragment below 1200 bytes of IPv4 or 1280 of IPv6, but for the last one.
        self.packets("two fragments", Carried::NONE, Arrives::Exactly(2), |pair| {
            let mut whole = pair.there.clone();
            whole.payload = bytes(1500);
            let upper = whole.upper();
            let protocol = if whole.upper == Upper::Udp { UDP } else { super::frame::TCP };
            let part = |from: usize, to: usize, more| {
                let mut part = whole.clone();
                part.upper = Upper::Bare(protocol);
                part.payload = upper[from..to].to_vec();
                part.fragment = Some((u16::try_from(from).unwrap_or_default(), more));
                (Who::A, part)
            };
            vec![part(0, FRAGMENT, true), part(FRAGMENT, upper.len(), false)]
        });
        self.slow("VLAN tag", Arrives::Whatever, |packet| packet.tags = vec![100]);
        self.slow("two VLAN tags", Arrives::Whatever, |packet| packet.tags = vec![100, 200]);
        self.slow("priority tag", Arrives::Whatever, |packet| packet.tags = vec![0xe000]);
    }

    fn errors(&mut self) {
        // Destination unreachable: port; fragmentation needed, or packet too big; time exceeded.
        let (six, to) = (self.kind.six, self.kind.to());
        let list: [(&str, u8, u8, [u8; 4]); 3] = if six {
            [
                ("port unreachable", 1, 4, [0; 4]),
                ("packet too big", 2, 0, [0, 0, 5, 0]),
                ("time exceeded", 3, 0, [0; 4]),
            ]
        } else {
            [
                ("port unreachable", 3, 3, [0; 4]),
                ("fragmentation needed", 3, 4, [0, 0, 5, 0]),
                ("time exceeded", 11, 0, [0; 4]),
            ]
        };
        for (name, kind, code, rest) in list {
            let name = format!("a packet of the flow, then ICMP {name} in answer");
            self.packets(&name, Carried::all(1), Arrives::Exactly(2), |pair| {
                let mut answer = pair.back.clone();
                answer.upper = Upper::Icmp { kind, code, rest };
                answer.payload = pair.there.ip();
                vec![(Who::A, pair.there.clone()), (to, answer)]
            });
        }
    }

    fn tcp(&mut self) {
        if self.kind.udp {
            return;
        }
        self.fast("PSH", |packet| packet.upper = tcp(ACK | PSH));
        self.fast("URG", |packet| {
            packet.upper = Upper::Tcp { flags: ACK | URG, options: Vec::new(), urgent: 5 }
        });
        self.fast("ECE and CWR", |packet| packet.upper = tcp(ACK | ECE | CWR));
        self.fast("timestamps", |packet| {
            let options = vec![1, 1, 8, 10, 0, 0, 1, 2, 0, 0, 3, 4];
            packet.upper = Upper::Tcp { flags: ACK, options, urgent: 0 };
        });
        self.fast("selective acknowledgement", |packet| {
            let options = vec![1, 1, 5, 10, 0, 0, 1, 2, 0, 0, 3, 4];
            packet.upper = Upper::Tcp { flags: ACK, options, urgent: 0 };
        });
        for (name, flags) in [("no ACK", PSH), ("SYN", SYN), ("FIN", FIN | ACK), ("RST", RST)] {
            self.slow(name, Arrives::Whatever, |packet| {
                packet.upper = tcp(flags);
                // Behind what was said before: of a RST nothing else is taken.
                packet.sequence += u32::try_from(packet.payload.len()).unwrap_or_default();
            });
        }
    }

    fn others(&mut self) {
        let six = self.kind.six;
        self.slow("another protocol", Arrives::Exactly(1), |packet| packet.upper = Upper::Bare(253));
        self.slow("echo request", Arrives::Exactly(1), |packet| {
            let kind = if six { 128 } else { 8 };
            packet.upper = Upper::Icmp { kind, code: 0, rest: [0, 1, 0, 1] };
        });
    }
}

/// Makes a packet one that the device is to segment.
fn aggregate(packet: &mut Packet, length: usize, size: u16) {
    packet.payload = bytes(length);
    packet.check = Check::Offloaded;
    packet.segment = Some(size);
}

/// A payload that is not the same anywhere.
fn bytes(length: usize) -> Vec<u8> {
    (0..u8::MAX).cycle().take(length).collect()
}

/// All cases.
pub(super) fn all(addresses: &Addresses) -> Vec<Case> {
    let mut cases = Vec::new();
    // 0 is for what is no case.
    let mut number = 1;
    for kind in Kind::all() {
        let mut table = Table { addresses, kind, number, cases: Vec::new() };
        table.lengths();
        table.classes();
        table.hops();
        table.checksums();
        table.aggregates();
        table.shapes();
        table.errors();
        table.tcp();
        table.others();
        number = table.number;
        cases.extend(table.cases);
    }
    cases
}

/// The case that a frame belongs to, by the identification of the packet or of the one that an ICMP error is about.
pub(super) fn number(frame: &[u8]) -> Option<u16> {
    let mut at = 12;
    while frame.get(at..at + 2)? == [0x81, 0x00] {
        at += 4;
    }
    let ip = frame.get(at + 2..)?;
    let inside = match frame.get(at..at + 2)? {
        [0x08, 0x00] => {
            let header = usize::from(ip.first()? & 0xf) * 4;
            let error = *ip.get(9)? == ICMP && matches!(ip.get(header)?, 3 | 11 | 12);
            error.then(|| ip.get(header + 8..)).flatten()
        }
        [0x86, 0xdd] => {
            let error = *ip.get(6)? == ICMP6 && matches!(ip.get(40)?, 1..=4);
            error.then(|| ip.get(48..)).flatten()
        }
        _ => return None,
    };
    let ip = inside.unwrap_or(ip);
    let id = match ip.first()? >> 4 {
        4 => u16::from_be_bytes([*ip.get(4)?, *ip.get(5)?]),
        6 => u16::from_be_bytes([*ip.get(2)?, *ip.get(3)?]),
        _ => return None,
    };
    let number = Case::of_id(id);
    (number > 0).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses() -> Addresses {
        let ips = |n: u8| [IpAddr::from([10, 244, 0, n]), format!("fd00::{n}").parse().unwrap()];
        Addresses { ips: [ips(3), ips(4), ips(5)], macs: [[2; 6]; 3], routers: [[4; 6]; 3] }
    }

    #[test]
    fn every_packet_of_every_case_says_which_one_it_is() {
        let cases = all(&addresses());
        assert!(cases.len() > 300, "{}", cases.len());
        for case in &cases {
            for (_, frame) in &case.packets {
                assert_eq!(number(&frame.bytes), Some(case.number), "{}", case.name);
            }
        }
    }

    #[test]
    fn numbers_and_identifications_do_not_run_over() {
        let last = all(&addresses()).pop().unwrap().number;
        assert!(u32::from(last + 1) * u32::from(IDS) <= 0xffff, "{last}");
    }
}
