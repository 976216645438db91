//! Room for the tunnel's headers at the front of a packet: made, and taken away.

use aya_ebpf::{
    bindings::{
        BPF_F_ADJ_ROOM_ENCAP_L2_ETH, BPF_F_ADJ_ROOM_ENCAP_L3_IPV4, BPF_F_ADJ_ROOM_ENCAP_L4_UDP,
        BPF_F_ADJ_ROOM_FIXED_GSO, bpf_adj_room_mode::BPF_ADJ_ROOM_MAC,
    },
    helpers::{bpf_skb_adjust_room, bpf_skb_change_proto},
};
use ebpf::layout::flow::OVERHEAD;

use super::{family::Family, skb::Skb};

/// `BPF_F_ADJ_ROOM_ENCAP_L2(len)` of linux/bpf.h: length of the inner Ethernet header.
const fn encap_l2(len: u64) -> u64 {
    (len & 0xff) << 56
}

const ENCAPSULATE: u64 = (BPF_F_ADJ_ROOM_FIXED_GSO
    | BPF_F_ADJ_ROOM_ENCAP_L3_IPV4
    | BPF_F_ADJ_ROOM_ENCAP_L4_UDP
    | BPF_F_ADJ_ROOM_ENCAP_L2_ETH) as u64
    | encap_l2(14);

/// `BPF_F_ADJ_ROOM_DECAP_L3_IPV6` of linux/bpf.h: the packet is IPv6 from now on. Linux 6.3.
const DECAP_L3_IPV6: u64 = 1 << 8;

/// `ETH_P_IPV6` of linux/if_ether.h, in network byte order.
const IPV6: u16 = 0x86dd_u16.to_be();
/// Bytes by which an IPv6 header is longer than an IPv4 header, which `bpf_skb_change_proto` adds.
const LONGER: i32 = 20;

/// What came of taking the outer headers away.
pub(super) enum Stripped {
    /// The outer headers are gone, and the kernel knows the packet's protocol.
    Gone,
    /// The kernel refuses, and the packet is as it was.
    Refused,
    /// The kernel refused the second step, and the packet is no good any more.
    Broken,
}

/// Makes room for the outer headers. False: the kernel refuses, and the packet is as it was.
#[inline(always)]
pub(super) fn make(skb: &Skb) -> bool {
    adjust(skb, OVERHEAD.cast_signed(), ENCAPSULATE)
}

/// Takes the room of the outer headers away. False: the kernel refuses, and the packet is as it was.
#[inline(always)]
pub(super) fn take(skb: &Skb) -> bool {
    adjust(skb, -OVERHEAD.cast_signed(), BPF_F_ADJ_ROOM_FIXED_GSO.into())
}

/// Takes the outer headers away, all but an Ethernet header, from a packet with an inner one of this IP version.
#[inline(always)]
pub(super) fn strip<F: Family>(skb: &Skb) -> Stripped {
    let (by, fixed) = (-OVERHEAD.cast_signed(), BPF_F_ADJ_ROOM_FIXED_GSO.into());
    if F::VERSION == 4 {
        return if take(skb) { Stripped::Gone } else { Stripped::Refused };
    }
    // The outer packet is IPv4, and the kernel keeps a packet's protocol beside it: one that says IPv4 of an aggregate of IPv6 is the
    // end of it where it is cut.
    if adjust(skb, by, fixed | DECAP_L3_IPV6) {
        return Stripped::Gone;
    }
    // Before Linux 6.3. It makes the packet IPv6 with a longer header, and refuses datagrams that were put together.
    if !change_to_ipv6(skb) {
        return Stripped::Refused;
    }
    if adjust(skb, by - LONGER, fixed) { Stripped::Gone } else { Stripped::Broken }
}

#[inline(always)]
fn change_to_ipv6(skb: &Skb) -> bool {
    // SAFETY: the helper checks its arguments.
    unsafe { bpf_skb_change_proto(skb.raw(), IPV6, 0) == 0 }
}

#[inline(always)]
fn adjust(skb: &Skb, by: i32, flags: u64) -> bool {
    // SAFETY: the helper checks its arguments.
    unsafe { bpf_skb_adjust_room(skb.raw(), by, BPF_ADJ_ROOM_MAC, flags) == 0 }
}
