//! The frames of a node port with a backend on another node: UDP of a client outside, to the node's address and port, which OVN's gateway
//! router sends to a pod with both addresses translated; and the answer.

use etherparse::{Ipv4Header, PacketBuilder};

pub(super) const UPLINK: [u8; 6] = [2, 0x42, 0xac, 0x12, 0, 2];
const FAR_UPLINK: [u8; 6] = [2, 0x42, 0xac, 0x12, 0, 3];
pub(super) const GATEWAY: [u8; 6] = [2, 0x42, 0xac, 0x12, 0, 1];
const ROUTER: [u8; 6] = [0x0a, 0x58, 100, 64, 0, 2];
const FAR_ROUTER: [u8; 6] = [0x0a, 0x58, 100, 64, 0, 3];
pub(super) const NODE: [u8; 4] = [172, 18, 0, 2];
pub(super) const FAR_NODE: [u8; 4] = [172, 18, 0, 3];
const JOIN: [u8; 4] = [100, 64, 0, 2];
const POD: [u8; 4] = [10, 244, 1, 3];
pub(super) const CLIENT: [u8; 4] = [192, 0, 2, 10];
pub(super) const NODE_PORT: u16 = 30_080;
/// Payload: the frame of the client has 128 bytes.
const PAYLOAD: usize = 128 - 42;

type Macs = ([u8; 6], [u8; 6]);
type End = ([u8; 4], u16);

/// What the client sends.
pub(super) fn asked() -> Vec<u8> {
    udp((GATEWAY, UPLINK), (CLIENT, 40_000), (NODE, NODE_PORT), 64)
}

/// The same as OVS puts it on the wire.
pub(super) fn asked_in_tunnel() -> Vec<u8> {
    let inner = udp((ROUTER, FAR_ROUTER), (JOIN, 40_000), (POD, 8_080), 62);
    geneve((UPLINK, FAR_UPLINK), (NODE, FAR_NODE), 7, [0, 3, 0, 5], &inner)
}

/// The pod's answer, as it comes from its node.
pub(super) fn answered_in_tunnel() -> Vec<u8> {
    let inner = udp((FAR_ROUTER, ROUTER), (POD, 8_080), (JOIN, 40_000), 63);
    geneve((FAR_UPLINK, UPLINK), (FAR_NODE, NODE), 9, [0, 5, 0, 3], &inner)
}

/// The same as OVS gives it to the client.
pub(super) fn answered() -> Vec<u8> {
    udp((UPLINK, GATEWAY), (NODE, NODE_PORT), (CLIENT, 40_000), 62)
}

fn udp(macs: Macs, from: End, to: End, ttl: u8) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2(macs.0, macs.1).ipv4(from.0, to.0, ttl).udp(from.1, to.1);
    let mut bytes = Vec::new();
    // Writing a few bytes to memory.
    let _ = builder.write(&mut bytes, &[7; PAYLOAD]);
    bytes
}

/// As OVN has it: one option of 4 bytes with the ports' keys; not to be fragmented, without a UDP checksum.
fn geneve(macs: Macs, nodes: ([u8; 4], [u8; 4]), vni: u8, keys: [u8; 4], inner: &[u8]) -> Vec<u8> {
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
