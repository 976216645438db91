//! Counting of packets and bytes as they are on the wire.
//!
//! *Packets* are packets on the wire: an aggregate (GSO on the way out, GRO on the way in) counts as the segments it
//! stands for.
//!
//! *Bytes* are Ethernet bytes on the wire, from the destination MAC to the last payload byte, a VLAN tag held beside
//! the packet included, without preamble and checksum (FCS). An aggregate has one set of headers in memory, but each
//! segment has its own on the wire: those are added. So the figures do not depend on how the kernel batched, and
//! agree with what a switch port would show, less 4 bytes of FCS a packet.
//!
//! The kernel's `gso_segs` is not used: it is 0 for packets that came from a packet socket or that a program grew.

use super::{Packet, headers};

/// Bytes of a VLAN tag.
pub const VLAN_TAG: u32 = 4;

/// What the kernel knows about a packet besides its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Payload bytes of one segment, 0 if the packet is no aggregate (`skb->gso_size`).
    pub gso_size: u32,
    /// A VLAN tag is held beside the packet (`skb->vlan_present`).
    pub vlan_beside: bool,
}

/// Packets and bytes to count for one packet or aggregate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount {
    /// Packets on the wire.
    pub packets: u64,
    /// Ethernet bytes on the wire.
    pub bytes: u64,
}

impl Amount {
    /// Amount of the same packets with `bytes` more in front of each.
    #[inline(always)]
    #[must_use]
    pub const fn with_headers(self, bytes: u32) -> Self {
        Self { packets: self.packets, bytes: self.bytes + self.packets * bytes as u64 }
    }
}

/// What `len` bytes count for. `headers`: bytes in front of the TCP or UDP payload that is segmented.
#[inline(always)]
pub fn amount(len: u32, headers: u32, meta: Meta) -> Amount {
    let tag = if meta.vlan_beside { VLAN_TAG } else { 0 };
    if meta.gso_size == 0 {
        return Amount { packets: 1, bytes: u64::from(len + tag) };
    }
    let payload = len.saturating_sub(headers);
    let segments = payload.div_ceil(meta.gso_size).max(1);
    let repeated = u64::from(segments - 1) * u64::from(headers);
    Amount {
        packets: u64::from(segments),
        bytes: u64::from(len) + repeated + u64::from(segments) * u64::from(tag),
    }
}

/// What a packet counts for; looks for the headers only in aggregates.
#[inline(always)]
pub fn measure<P: Packet>(packet: &P, meta: Meta) -> Amount {
    let front = if meta.gso_size == 0 { 0 } else { headers(packet, 0) };
    amount(packet.len(), front, meta)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_packet_counts_as_itself() {
        assert_eq!(amount(60, 54, Meta::default()), Amount { packets: 1, bytes: 60 });
    }

    #[test]
    fn a_tag_beside_the_packet_is_on_the_wire() {
        let meta = Meta { vlan_beside: true, ..Meta::default() };
        assert_eq!(amount(60, 54, meta), Amount { packets: 1, bytes: 64 });
    }

    #[test]
    fn every_segment_of_an_aggregate_has_its_own_headers() {
        // 3 segments: 1000 + 1000 + 500 bytes of payload behind 54 bytes of headers each.
        let meta = Meta { gso_size: 1000, vlan_beside: false };
        assert_eq!(amount(54 + 2500, 54, meta), Amount { packets: 3, bytes: 2500 + 3 * 54 });
    }

    #[test]
    fn an_aggregate_of_exact_segments_is_not_rounded_up() {
        let meta = Meta { gso_size: 1000, vlan_beside: true };
        assert_eq!(amount(54 + 2000, 54, meta), Amount { packets: 2, bytes: 2000 + 2 * (54 + 4) });
    }

    #[test]
    fn nonsense_sizes_count_as_one_packet() {
        let meta = Meta { gso_size: u32::MAX, vlan_beside: false };
        assert_eq!(amount(10, 54, meta), Amount { packets: 1, bytes: 10 });
    }
}
