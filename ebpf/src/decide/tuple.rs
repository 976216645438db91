//! Flows of either IP version, as decisions look at them.

use crate::{
    layout::{
        flow::{Entry, Tuple4, Tuple6},
        scope,
        service::ServiceKey,
    },
    packet::{fold, word_sum},
};

/// A flow of either IP version.
pub trait Tuple: Copy + PartialEq {
    /// The flow in the other direction, which enters on the side on which this one left: `side` as it is.
    #[must_use]
    fn reversed(&self) -> Self;
    /// Says on which side the packet is: `SIDE_*`.
    fn enter(&mut self, side: u8);
    /// `SIDE_*`.
    fn side(&self) -> u8;
    /// IP protocol number.
    fn protocol(&self) -> u8;
    /// Whether it is the same flow. Word by word, as the compiler would call a function that compares byte by byte.
    fn is(&self, other: &Self) -> bool;
    /// Whether source address and port are those of `other`.
    fn same_source(&self, other: &Self) -> bool;
    /// Whether destination address and port are those of `other`.
    fn same_destination(&self, other: &Self) -> bool;
    /// Whether source and destination address are equal.
    fn is_to_itself(&self) -> bool;
    /// One's complement sum that takes the checksum of `self`'s addresses to that of `after`'s.
    fn address_difference(&self, after: &Self) -> u32;
    /// Source and destination port in one word, as in the packet.
    fn ports(&self) -> u32;
    /// Whether both addresses are other ones in `after`.
    fn both_addresses_differ(&self, after: &Self) -> bool;
    /// Bucket of the source address, see [`crate::layout::scope`].
    fn source_scope(&self) -> u32;
    /// Bucket of the destination address.
    fn destination_scope(&self) -> u32;
    /// Destination port, wire order.
    fn destination_port(&self) -> u16;
    /// A hash of all of it.
    fn digest(&self) -> u64;
    /// The source as the address of a service.
    fn source_key(&self) -> ServiceKey;
    /// The destination as the address of a service.
    fn destination_key(&self) -> ServiceKey;
}

macro_rules! tuple {
    ($tuple:ident, $sum:ident, $wide:ident, $scope:path, $words:ident, $same:ident) => {
        impl Tuple for $tuple {
            #[inline(always)]
            fn reversed(&self) -> Self {
                Self {
                    source: self.destination,
                    destination: self.source,
                    source_port: self.destination_port,
                    destination_port: self.source_port,
                    ..*self
                }
            }

            #[inline(always)]
            fn enter(&mut self, side: u8) {
                self.side = side;
            }

            #[inline(always)]
            fn side(&self) -> u8 {
                self.side
            }

            #[inline(always)]
            fn protocol(&self) -> u8 {
                self.protocol
            }

            #[inline(always)]
            fn is(&self, other: &Self) -> bool {
                let rest = (self.ports() ^ other.ports())
                    | u32::from(self.protocol ^ other.protocol)
                    | u32::from(self.side ^ other.side);
                rest == 0 && $same(self.source, other.source) && $same(self.destination, other.destination)
            }

            #[inline(always)]
            fn same_source(&self, other: &Self) -> bool {
                $same(self.source, other.source) && self.source_port == other.source_port
            }

            #[inline(always)]
            fn same_destination(&self, other: &Self) -> bool {
                $same(self.destination, other.destination) && self.destination_port == other.destination_port
            }

            #[inline(always)]
            fn is_to_itself(&self) -> bool {
                $same(self.source, self.destination)
            }

            #[inline(always)]
            fn address_difference(&self, after: &Self) -> u32 {
                let before = fold($sum(self.source) + $sum(self.destination));
                (before ^ 0xffff) + $sum(after.source) + $sum(after.destination)
            }

            #[inline(always)]
            fn both_addresses_differ(&self, after: &Self) -> bool {
                !$same(self.source, after.source) && !$same(self.destination, after.destination)
            }

            #[inline(always)]
            fn source_scope(&self) -> u32 {
                $scope(self.source)
            }

            #[inline(always)]
            fn destination_scope(&self) -> u32 {
                $scope(self.destination)
            }

            #[inline(always)]
            fn destination_port(&self) -> u16 {
                self.destination_port
            }

            #[inline(always)]
            fn source_key(&self) -> ServiceKey {
                let Self { source, source_port: port, protocol, .. } = *self;
                ServiceKey { address: $wide(source), port, protocol, _pad: 0 }
            }

            #[inline(always)]
            fn destination_key(&self) -> ServiceKey {
                let Self { destination, destination_port: port, protocol, .. } = *self;
                ServiceKey { address: $wide(destination), port, protocol, _pad: 0 }
            }

            #[inline(always)]
            fn digest(&self) -> u64 {
                let ends =
                    $words(self.source).wrapping_mul(FIRST) ^ $words(self.destination).wrapping_mul(SECOND);
                let rest =
                    u64::from(self.ports()) | u64::from(self.protocol) << 32 | u64::from(self.side) << 40;
                mixed(mixed(ends) ^ rest.wrapping_mul(FIRST))
            }

            #[inline(always)]
            fn ports(&self) -> u32 {
                let ([a, b], [c, d]) = (self.source_port.to_ne_bytes(), self.destination_port.to_ne_bytes());
                u32::from_ne_bytes([a, b, c, d])
            }
        }
    };
}

tuple!(Tuple4, word_sum, mapped, scope::address4, word, same4);
tuple!(Tuple6, words_sum, as_it_is, scope::address6, words, same6);

/// Odd numbers with bits all over: the golden ratio's, and the one that `splitmix64` mixes with.
const FIRST: u64 = 0x9e37_79b9_7f4a_7c15;
const SECOND: u64 = 0xbf58_476d_1ce4_e5b9;

/// Brings the upper bits, in which all that was multiplied has a say, down into the lower ones and up again.
#[inline(always)]
const fn mixed(word: u64) -> u64 {
    (word ^ word >> 32).wrapping_mul(SECOND)
}

/// Whether two IPv4 addresses are the same.
#[inline(always)]
const fn same4(one: u32, other: u32) -> bool {
    one == other
}

/// Whether two IPv6 addresses are the same.
#[inline(always)]
const fn same6(one: [u32; 4], other: [u32; 4]) -> bool {
    let ([a, b, c, d], [e, f, g, h]) = (one, other);
    (a ^ e) | (b ^ f) | (c ^ g) | (d ^ h) == 0
}

/// An IPv4 address in one word.
#[inline(always)]
const fn word(address: u32) -> u64 {
    address as u64
}

/// What an IPv6 address comes to in one word.
#[inline(always)]
const fn words(address: [u32; 4]) -> u64 {
    let [a, b, c, d] = address;
    mixed(a as u64 | (b as u64) << 32) ^ (c as u64 | (d as u64) << 32)
}

/// An IPv4 address in mapped form.
#[inline(always)]
const fn mapped(address: u32) -> [u32; 4] {
    [0, 0, 0xffff_u32.to_be(), address]
}

/// An IPv6 address.
#[inline(always)]
const fn as_it_is(address: [u32; 4]) -> [u32; 4] {
    address
}

/// The sum of the half-words of an IPv6 address.
#[inline(always)]
const fn words_sum(address: [u32; 4]) -> u32 {
    let [a, b, c, d] = address;
    word_sum(a) + word_sum(b) + word_sum(c) + word_sum(d)
}

impl<T: Tuple> Entry<T> {
    /// The key of the other direction's entry.
    #[inline(always)]
    pub fn partner(&self) -> T {
        self.after.reversed()
    }
}
