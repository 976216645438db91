//! The two IP versions: their maps, and what differs in their headers.

use aya_ebpf::maps::{Array, LruHashMap};
use ebpf::{
    layout::flow::{Conn, EgressFlow, EgressKey, IngressFlow, IngressKey, Note, Slot, Tuple4, Tuple6},
    layout::maps::Port,
    layout::reason::Reason,
    packet::{self, Flow, Window as _},
};

use super::{maps, skb::Front};

/// An IP version.
pub(super) trait Family {
    type Tuple: Copy + PartialEq + 'static;

    /// EtherType.
    const TYPE: u16;
    /// 4 or 6.
    const VERSION: u32;

    fn egress() -> &'static LruHashMap<EgressKey<Self::Tuple>, EgressFlow>;
    fn ingress() -> &'static LruHashMap<IngressKey<Self::Tuple>, IngressFlow>;
    fn conns() -> &'static LruHashMap<EgressKey<Self::Tuple>, Conn>;
    fn pending() -> &'static LruHashMap<Self::Tuple, Note>;
    fn notes() -> &'static Array<Slot<Self::Tuple>>;

    /// Reads the packet whose IP header is at `at`.
    fn parse(front: &Front, at: u32, length: u32) -> Result<Flow<Self::Tuple>, Reason>;
    /// The flow in the other direction.
    fn reverse(tuple: &Self::Tuple) -> Self::Tuple;
    fn with_direction(tuple: &Self::Tuple, direction: u8) -> Self::Tuple;
    /// Whether the source address is the one bound to the port.
    fn is_bound(tuple: &Self::Tuple, port: &Port) -> bool;
    /// IP protocol number.
    fn protocol(tuple: &Self::Tuple) -> u8;
    #[inline(always)]
    fn is_tcp(tuple: &Self::Tuple) -> bool {
        Self::protocol(tuple) == packet::TCP
    }
    /// Lowers TTL or hop limit of the header at `at`, whose first 20 bytes are known to be there.
    fn lower_ttl(front: &Front, at: u32, step: u8);
    /// For messages: addresses in mapped form.
    fn wide(tuple: &Self::Tuple) -> Tuple6;
}

pub(super) struct V4;
pub(super) struct V6;

/// `::ffff:0:0/96`, as words on the wire.
const MAPPED: [u32; 3] = [0, 0, 0xffff_u32.to_be()];

/// What is the same in both but for types and the names of maps.
macro_rules! alike {
    ($tuple:ident, $egress:ident, $ingress:ident, $conns:ident, $pending:ident, $notes:ident) => {
        #[inline(always)]
        fn egress() -> &'static LruHashMap<EgressKey<$tuple>, EgressFlow> {
            &maps::$egress
        }

        #[inline(always)]
        fn ingress() -> &'static LruHashMap<IngressKey<$tuple>, IngressFlow> {
            &maps::$ingress
        }

        #[inline(always)]
        fn conns() -> &'static LruHashMap<EgressKey<$tuple>, Conn> {
            &maps::$conns
        }

        #[inline(always)]
        fn pending() -> &'static LruHashMap<$tuple, Note> {
            &maps::$pending
        }

        #[inline(always)]
        fn notes() -> &'static Array<Slot<$tuple>> {
            &maps::$notes
        }

        #[inline(always)]
        fn reverse(tuple: &$tuple) -> $tuple {
            $tuple {
                source: tuple.destination,
                destination: tuple.source,
                source_port: tuple.destination_port,
                destination_port: tuple.source_port,
                protocol: tuple.protocol,
                direction: 0,
                _pad: 0,
            }
        }

        #[inline(always)]
        fn with_direction(tuple: &$tuple, direction: u8) -> $tuple {
            $tuple { direction, ..*tuple }
        }

        #[inline(always)]
        fn protocol(tuple: &$tuple) -> u8 {
            tuple.protocol
        }
    };
}

impl Family for V4 {
    type Tuple = Tuple4;

    const TYPE: u16 = packet::IPV4;
    const VERSION: u32 = 4;

    alike!(Tuple4, FLOW_EGRESS, FLOW_INGRESS, CONNS, PENDING, NOTES);

    #[inline(always)]
    fn parse(front: &Front, at: u32, length: u32) -> Result<Flow<Tuple4>, Reason> {
        packet::ipv4(front, at, length)
    }

    #[inline(always)]
    fn is_bound(tuple: &Tuple4, port: &Port) -> bool {
        tuple.source != 0 && tuple.source == word(&raw const port.ipv4 as *const u32, 0)
    }

    #[inline(always)]
    fn lower_ttl(front: &Front, at: u32, step: u8) {
        let checksum = packet::lowered(front.u16(at + 10), step);
        // SAFETY: inside the packet: the caller has checked, and the verifier makes sure.
        unsafe {
            *front.at::<u16>(at + 10) = checksum;
            *front.at::<u8>(at + 8) = front.u8(at + 8).wrapping_sub(step);
        }
    }

    #[inline(always)]
    fn wide(tuple: &Tuple4) -> Tuple6 {
        let [a, b, c] = MAPPED;
        Tuple6 {
            source: [a, b, c, tuple.source],
            destination: [a, b, c, tuple.destination],
            source_port: tuple.source_port,
            destination_port: tuple.destination_port,
            protocol: tuple.protocol,
            direction: 0,
            _pad: 0,
        }
    }
}

impl Family for V6 {
    type Tuple = Tuple6;

    const TYPE: u16 = packet::IPV6;
    const VERSION: u32 = 6;

    alike!(Tuple6, FLOW_EGRESS6, FLOW_INGRESS6, CONNS6, PENDING6, NOTES6);

    #[inline(always)]
    fn parse(front: &Front, at: u32, length: u32) -> Result<Flow<Tuple6>, Reason> {
        packet::ipv6(front, at, length)
    }

    #[inline(always)]
    fn is_bound(tuple: &Tuple6, port: &Port) -> bool {
        let bound = &raw const port.ipv6 as *const u32;
        let mut same = true;
        let mut any = 0;
        let mut at = 0;
        while at < 4 {
            let word = word(bound, at);
            same &= tuple.source[at] == word;
            any |= word;
            at += 1;
        }
        same && any != 0
    }

    #[inline(always)]
    fn lower_ttl(front: &Front, at: u32, step: u8) {
        // No checksum in the header, and the hop limit is not in the pseudo-header (RFC 8200, 8.1).
        // SAFETY: inside the packet: the caller has checked, and the verifier makes sure.
        unsafe { *front.at::<u8>(at + 7) = front.u8(at + 7).wrapping_sub(step) }
    }

    #[inline(always)]
    fn wide(tuple: &Tuple6) -> Tuple6 {
        *tuple
    }
}

/// A word of an address in a map value; those fields are at multiples of four.
#[inline(always)]
fn word(base: *const u32, at: usize) -> u32 {
    // SAFETY: inside the value.
    unsafe { *base.add(at) }
}
