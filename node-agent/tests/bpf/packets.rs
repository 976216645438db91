//! Packets for the programs.

use etherparse::PacketBuilder;

pub(crate) const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub(crate) const NEAR: [u8; 4] = [172, 18, 0, 2];
pub(crate) const FAR: [u8; 4] = [172, 18, 0, 3];
pub(crate) const NEAR6: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
pub(crate) const FAR6: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3];

/// TCP from one pod to another, with `payload` bytes.
pub(crate) fn tcp(payload: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    PacketBuilder::ethernet2(MAC, MAC)
        .ipv4([10, 244, 0, 3], [10, 244, 1, 3], 64)
        .tcp(40000, 80, 1, 1000)
        .write(&mut bytes, &vec![7; payload])
        .unwrap();
    bytes
}

/// UDP from one pod to another.
pub(crate) fn udp(payload: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    PacketBuilder::ethernet2(MAC, MAC)
        .ipv6(NEAR6, FAR6, 64)
        .udp(40000, 53)
        .write(&mut bytes, &vec![7; payload])
        .unwrap();
    bytes
}

/// An ARP request, padded as Ethernet wants it.
pub(crate) fn arp() -> Vec<u8> {
    let mut bytes = vec![0xff; 6];
    bytes.extend(MAC);
    bytes.extend([0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1]);
    bytes.extend([0; 20]);
    bytes.resize(60, 0);
    bytes
}

/// A Geneve payload as OVN makes it: one option, an inner frame.
pub(crate) fn ovn(vni: u32, inner: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = vni.to_be_bytes();
    let mut bytes = vec![2, 0x40, 0x65, 0x58, a, b, c, 0, 0x01, 0x02, 0x80, 0x01, 0, 1, 0, 2];
    bytes.extend_from_slice(inner);
    bytes
}

/// UDP to the Geneve port over IPv4, from the peer to us.
pub(crate) fn from_peer(payload: &[u8]) -> Vec<u8> {
    outer4(FAR, NEAR, payload)
}

/// UDP to the Geneve port over IPv4, from us to the peer.
pub(crate) fn to_peer(payload: &[u8]) -> Vec<u8> {
    outer4(NEAR, FAR, payload)
}

/// UDP to the Geneve port over IPv6, from the peer to us.
pub(crate) fn from_peer6(payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    PacketBuilder::ethernet2(MAC, MAC)
        .ipv6(FAR6, NEAR6, 64)
        .udp(50000, 6081)
        .write(&mut bytes, payload)
        .unwrap();
    bytes
}

/// With a VLAN tag in the packet.
pub(crate) fn tagged(mut packet: Vec<u8>) -> Vec<u8> {
    packet.splice(12..12, [0x81, 0x00, 0, 9]);
    packet
}

/// With some bytes replaced.
pub(crate) fn patched(mut packet: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    packet[at..at + bytes.len()].copy_from_slice(bytes);
    packet
}

pub(crate) fn outer4(source: [u8; 4], destination: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    PacketBuilder::ethernet2(MAC, MAC)
        .ipv4(source, destination, 64)
        .udp(50000, 6081)
        .write(&mut bytes, payload)
        .unwrap();
    bytes
}
