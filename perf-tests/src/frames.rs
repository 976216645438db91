//! Frames that programs get without a cluster.

use etherparse::{Ipv4Header, PacketBuilder};

/// MAC addresses of sender and receiver.
type Macs = ([u8; 6], [u8; 6]);
/// Address and port.
type End = ([u8; 4], u16);

/// UDP over IPv4 with so many bytes of payload.
pub(crate) fn udp(macs: Macs, from: End, to: End, ttl: u8, payload: usize) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2(macs.0, macs.1).ipv4(from.0, to.0, ttl).udp(from.1, to.1);
    let mut bytes = Vec::new();
    // Writing a few bytes to memory.
    let _ = builder.write(&mut bytes, &vec![7; payload]);
    bytes
}

/// A Geneve frame as OVN makes it: one option of 4 bytes with the ports' keys; not to be fragmented, without a UDP checksum.
pub(crate) fn geneve(macs: Macs, nodes: ([u8; 4], [u8; 4]), vni: u8, keys: [u8; 4], inner: &[u8]) -> Vec<u8> {
    let mut payload = vec![2, 0x40, 0x65, 0x58, 0, 0, vni, 0, 0x01, 0x02, 0x80, 0x01];
    payload.extend(keys);
    payload.extend(inner);
    let mut ip = Ipv4Header { time_to_live: 64, dont_fragment: true, ..Ipv4Header::default() };
    (ip.source, ip.destination, ip.identification) = (nodes.0, nodes.1, 0);
    let builder = PacketBuilder::ethernet2(macs.0, macs.1)
        .ip(etherparse::IpHeaders::Ipv4(ip, Default::default()))
        .udp(51_000, 6081);
    let mut bytes = Vec::new();
    // As above.
    let _ = builder.write(&mut bytes, &payload);
    if let Some(checksum) = bytes.get_mut(40..42) {
        checksum.fill(0);
    }
    bytes
}
