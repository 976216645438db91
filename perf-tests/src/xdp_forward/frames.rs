//! The frames of a node port with a backend on another node: UDP of a client outside, to the node's address and port, which OVN's gateway
//! router sends to a pod with both addresses translated; and the answer.

use crate::frames::{geneve, udp};

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

/// What the client sends.
pub(super) fn asked() -> Vec<u8> {
    udp((GATEWAY, UPLINK), (CLIENT, 40_000), (NODE, NODE_PORT), 64, PAYLOAD)
}

/// What the client sends, as OVS puts it on the wire.
pub(super) fn asked_in_tunnel() -> Vec<u8> {
    let inner = udp((ROUTER, FAR_ROUTER), (JOIN, 40_000), (POD, 8_080), 62, PAYLOAD);
    geneve((UPLINK, FAR_UPLINK), (NODE, FAR_NODE), 7, [0, 3, 0, 5], &inner)
}

/// The pod's answer, as it comes from its node.
pub(super) fn answered_in_tunnel() -> Vec<u8> {
    let inner = udp((FAR_ROUTER, ROUTER), (POD, 8_080), (JOIN, 40_000), 63, PAYLOAD);
    geneve((FAR_UPLINK, UPLINK), (FAR_NODE, NODE), 9, [0, 5, 0, 3], &inner)
}

/// The pod's answer, as OVS gives it to the client.
pub(super) fn answered() -> Vec<u8> {
    udp((UPLINK, GATEWAY), (NODE, NODE_PORT), (CLIENT, 40_000), 62, PAYLOAD)
}
