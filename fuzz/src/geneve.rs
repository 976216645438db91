//! Packets on the uplink: outer headers, Geneve and its options, read by the general parser.

use ebpf::layout::maps::GENEVE_PORT;
use ebpf::packet::wire::{self, Meta};
use ebpf::packet::{self, Packet, Tunnel};

/// A packet that checks the offsets at which it is read.
struct Guarded<'a>(&'a [u8]);

impl Packet for Guarded<'_> {
    fn len(&self) -> u32 {
        Packet::len(&self.0)
    }

    fn read<const N: usize>(&self, offset: u32) -> Option<[u8; N]> {
        // Six extension headers of the greatest length end before this: a larger offset is an error.
        assert!(offset < 16_384, "offset {offset}");
        (&self.0).read(offset)
    }
}

/// The first byte contains settings, the next two the size of segments; the rest is the packet.
pub fn geneve(data: &[u8]) {
    let [settings, high, low, packet @ ..] = data else { return };
    let port = if settings & 1 == 0 { GENEVE_PORT } else { 0 };
    let meta =
        Meta { gso_size: u32::from(u16::from_be_bytes([*high, *low])), vlan_beside: settings & 2 != 0 };
    for aggregate in [false, true] {
        one(packet, port, aggregate, meta);
    }
    counted(packet, 0, meta);
    if let Some(tunnel) = read(packet, port, false) {
        // Bytes after the IP packet are Ethernet's padding.
        let padded = [packet, &[0xa5; 7]].concat();
        assert_eq!(read(&padded, port, false), Some(tunnel));
    }
}

fn read(packet: &[u8], port: u16, aggregate: bool) -> Option<Tunnel> {
    let mut tunnel = Tunnel::default();
    let found = packet::uplink(&Guarded(packet), port, aggregate, &mut tunnel);
    found.is_ok_and(|is_tunnel| is_tunnel).then_some(tunnel)
}

fn one(packet: &[u8], port: u16, aggregate: bool, meta: Meta) {
    let sound = packet::pod(&Guarded(packet), aggregate).is_ok();
    let Some(tunnel) = read(packet, port, aggregate) else { return };
    assert!(sound, "a tunnel packet whose IP header does not hold together");
    assert_ne!(port, 0);
    let network = packet::network(&Guarded(packet), 0, aggregate).unwrap().unwrap();
    assert_eq!((tunnel.source, tunnel.destination), (network.source, network.destination));
    assert!(network.protocol == packet::UDP && !network.fragment);
    // Reads the same fields with plain indices.
    let udp = usize::try_from(network.payload).unwrap();
    assert_eq!(packet[udp + 2..udp + 4], port.to_be_bytes());
    let header = &packet[udp + 8..];
    assert_eq!(tunnel.vni.to_be_bytes(), [0, header[4], header[5], header[6]]);
    assert_eq!(header[2..4], [0x65, 0x58]);
    let options = usize::from(header[0]) * 4;
    let inner = usize::try_from(tunnel.inner).unwrap();
    assert_eq!(inner, udp + 16 + options, "version 0 has no upper bits");
    assert!(tunnel.inner + 14 <= network.end && network.end <= Packet::len(&packet));
    let mut rest = &header[8..8 + options];
    while let [_, _, _, length, ..] = rest {
        rest = rest.get(4 + usize::from(length & 0x1f) * 4..).unwrap_or(&[0]);
    }
    assert!(rest.is_empty(), "the options do not fill their space");
    counted(packet, tunnel.inner, meta);
}

/// The counted amount must not be less than the packet.
fn counted(packet: &[u8], inner: u32, meta: Meta) {
    let length = Packet::len(&packet);
    let headers = packet::headers(&Guarded(packet), inner);
    assert!(headers >= inner);
    let amount = wire::amount(length, headers, meta);
    assert!(amount.packets >= 1 && amount.bytes >= u64::from(length));
    assert_eq!(wire::measure(&Guarded(packet), Meta { gso_size: 0, ..meta }).packets, 1);
    let segment = u64::from(headers) + u64::from(meta.gso_size) + u64::from(wire::VLAN_TAG);
    assert!(meta.gso_size == 0 || headers > length || amount.bytes <= amount.packets * segment);
    assert_eq!(amount.with_headers(58).bytes, amount.bytes + 58 * amount.packets);
}
