//! Packets as the flow cache reads them, and the decisions that are pure functions: ages, notes, tags, wiring.

use std::cell::Cell;

use ebpf::decide::age::{self, Due, Times};
use ebpf::decide::wiring::{self, Wiring};
use ebpf::decide::{Terms, note, tag};
use ebpf::layout::flow::{NOTE_VOID, Note, PROBE_FIRST, PROBE_SENT, Tuple4};
use ebpf::layout::maps::{Config, GENEVE_PORT, PORT_INTERPOSED, PORT_PRESENT, Port, mapped};
use ebpf::layout::reason::Reason;
use ebpf::packet::{self, Flow, Network, Packet, TCP, Tunnel, UDP, Window};

use crate::bytes::Bytes;

/// The front of a packet. Only bytes before an end that was checked may be read, and words only at even offsets.
struct Guarded<'a> {
    bytes: &'a [u8],
    confirmed: Cell<u32>,
}

impl<'a> Guarded<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, confirmed: Cell::new(0) }
    }

    fn check(&self, at: u32, size: u32) {
        assert!(at + size <= self.confirmed.get(), "{size} bytes at {at} of {}", self.confirmed.get());
        assert!(size == 1 || at.is_multiple_of(2), "{size} bytes at {at}");
    }
}

impl Window for Guarded<'_> {
    fn has(&self, end: u32) -> bool {
        let there = self.bytes.has(end);
        if there {
            self.confirmed.set(self.confirmed.get().max(end));
        }
        there
    }

    fn u8(&self, at: u32) -> u8 {
        self.check(at, 1);
        self.bytes.u8(at)
    }

    fn u16(&self, at: u32) -> u16 {
        self.check(at, 2);
        self.bytes.u16(at)
    }

    fn u32(&self, at: u32) -> u32 {
        self.check(at, 4);
        self.bytes.u32(at)
    }
}

/// The number of bytes of a packet that the programs can read.
const FRONT: usize = 112;

/// The first byte selects what the rest is used for.
pub fn flow(data: &[u8]) {
    let [kind, rest @ ..] = data else { return };
    match kind {
        0 => decisions(&mut Bytes::new(rest)),
        1 => frame(rest, 72),
        _ => {
            frame(rest, 14);
            outer(rest);
        }
    }
}

/// Parses a frame whose IP header is at `at`.
fn frame(packet: &[u8], at: u32) {
    let Some(length) = Packet::len(&packet).checked_sub(at) else { return };
    let front = &packet[..packet.len().min(FRONT)];
    let v4 = packet::ipv4(&Guarded::new(front), at, length);
    if let Ok(flow) = v4 {
        let addresses =
            (mapped(flow.tuple.source.to_ne_bytes()), mapped(flow.tuple.destination.to_ne_bytes()));
        let ports = (flow.tuple.source_port, flow.tuple.destination_port);
        carried(packet, at, &flow, flow.tuple.protocol, ports);
        let network = general(packet, at, 0x0800);
        assert_eq!(addresses, (network.source, network.destination));
        alike(&network, flow.tuple.protocol, at + 20, at + length);
    }
    let v6 = packet::ipv6(&Guarded::new(front), at, length);
    if let Ok(flow) = v6 {
        let address = |words: [u32; 4]| words.map(u32::to_ne_bytes).concat();
        let ports = (flow.tuple.source_port, flow.tuple.destination_port);
        carried(packet, at, &flow, flow.tuple.protocol, ports);
        let network = general(packet, at, 0x86dd);
        assert_eq!(address(flow.tuple.source), network.source);
        assert_eq!(address(flow.tuple.destination), network.destination);
        alike(&network, flow.tuple.protocol, at + 40, at + length);
    }
    assert!(v4.is_err() || v6.is_err(), "a packet of both versions");
}

/// A packet that the cache forwards must be complete TCP or UDP, with a TTL that can be lowered and headers inside the packet.
fn carried<T>(packet: &[u8], at: u32, flow: &Flow<T>, protocol: u8, (source, destination): (u16, u16)) {
    assert!(flow.ttl > 1 && flow.headers <= flow.length);
    assert!(flow.outer_ecn() < 3 && flow.dscp() | flow.ecn() == flow.tos);
    let ip = usize::try_from(at).unwrap();
    let transport = ip + if packet[ip] >> 4 == 4 { 20 } else { 40 };
    let ports = [source.to_ne_bytes(), destination.to_ne_bytes()].concat();
    assert_eq!(packet[transport..transport + 4], ports);
    match protocol {
        TCP => assert_eq!(flow.flags, packet[transport + 13]),
        UDP => assert!(flow.flags == 0 && !flow.changes_connection()),
        other => panic!("protocol {other}"),
    }
}

/// Reads the packet with the general parser.
fn general(packet: &[u8], at: u32, ethertype: u16) -> Network {
    let at = usize::try_from(at).unwrap();
    let mut packet = packet[at - 14..].to_vec();
    packet[12..14].copy_from_slice(&ethertype.to_be_bytes());
    packet::network(&packet.as_slice(), 0, false).unwrap().unwrap()
}

fn alike(network: &Network, protocol: u8, payload: u32, end: u32) {
    assert_eq!((network.protocol, network.fragment), (protocol, false));
    assert_eq!(network.end - network.payload, end - payload);
}

/// Parses the outer headers of a frame from the uplink.
fn outer(packet: &[u8]) {
    let length = Packet::len(&packet);
    let front = Guarded::new(&packet[..packet.len().min(FRONT)]);
    let found = packet::outer(&front, length, GENEVE_PORT);
    assert_eq!(packet::outer(&Guarded::new(packet), length, 0), Ok(None));
    let Ok(Some(outer)) = found else {
        assert!(matches!(found, Ok(None) | Err(Reason::OtherOptions | Reason::OddLength)));
        return;
    };
    let mut tunnel = Tunnel::default();
    assert_eq!(packet::uplink(&packet, GENEVE_PORT, false, &mut tunnel), Ok(true));
    assert_eq!((tunnel.vni, tunnel.inner), (outer.vni, 58));
    assert_eq!(tunnel.source, mapped(outer.source.to_ne_bytes()));
    assert_eq!(tunnel.destination, mapped(outer.destination.to_ne_bytes()));
    assert_eq!(outer.inner.to_be_bytes(), packet[70..72]);
    assert_eq!(outer.plain, packet[40..42] == [0, 0]);
    // RFC 1071, adding word by word.
    let words = packet[14..34].chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    assert_eq!(packet::outer_sum_is_right(&front), packet::fold(words.sum()) == 0xffff);
}

/// Checks decisions that depend only on numbers.
fn decisions(bytes: &mut Bytes<'_>) {
    let (now, deadline) = (bytes.u32(), bytes.u32());
    let times = Times { slack: bytes.u32(), overdue: bytes.u32(), early: bytes.u32() };
    let [probing, cheap] = bytes.array::<2>();
    let (probing, cheap) = (probing % (PROBE_FIRST + 1), cheap & 1 != 0);
    let due = age::due(now, deadline, probing, cheap, times);
    let early = now.wrapping_sub(deadline) > u32::MAX / 2;
    assert!(!early || due == Due::Fresh);
    assert_eq!(due == Due::Dead, probing == PROBE_SENT && !early);
    assert!(due != Due::Fresh || early || !cheap);
    assert!(!age::holds(now, now) && !age::holds(now, now.wrapping_sub(1)));
    assert!(age::holds(now, now.wrapping_add(age::LONGEST_HOLD)));

    let (generation, slot) = (bytes.u32().to_ne_bytes()[0], bytes.u32());
    let noted = tag::note(generation, slot);
    assert_eq!((tag::slot(noted), tag::generation(noted)), (Some(slot & 0xffff), generation));
    assert_eq!(tag::slot(tag::FAST), None);

    let port = Port { flags: bytes.u32(), redirect: bytes.u32(), ..Port::default() };
    match wiring::wiring(Some(&port)) {
        Wiring::Unknown => assert_eq!(port.flags & PORT_PRESENT, 0),
        Wiring::Redirect(to) => assert!(to != 0 && port.flags & PORT_INTERPOSED != 0),
        Wiring::Pass => assert!(port.flags & PORT_INTERPOSED == 0 || port.redirect == 0),
    }
    notes(bytes);
}

/// Marks of both IP versions, and slots that are used again.
fn notes(bytes: &mut Bytes<'_>) {
    let (word, slot) = (bytes.u32(), bytes.u32());
    let marked = tag::marked4(word, slot & 0xffff);
    assert_eq!(tag::slot4(marked), Some(slot & 0xffff));
    assert_eq!(tag::slot4(tag::unmarked4(marked)), None);
    let marked = tag::marked6(word, slot & 0x3fff);
    assert_eq!(tag::slot6(marked), Some(slot & 0x3fff));
    assert_eq!(tag::original6(marked, word), word);
    assert_eq!(tag::slot6(tag::unmarked6(marked)), None);

    let config = Config { note_reuse: 1 + u32::from(bytes.u8()) * 4, ..Config::default() };
    let (when, now) = (bytes.u32(), bytes.u32());
    let old = Note::<Tuple4> { when, state: bytes.u8() % 3, ..Note::default() };
    let free = note::is_free(&old, &Terms { config: &config, gate: 0, epoch: 1, change: 0, now });
    let age = now.wrapping_sub(when).cast_signed();
    let young = (0..config.note_reuse.cast_signed()).contains(&age);
    assert!(old.state == NOTE_VOID || !young || !free, "used again after {age} ticks");
}
