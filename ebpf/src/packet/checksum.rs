//! The Internet checksum (RFC 1071), of words in wire order: the sum does not depend on the order of bytes (RFC 1071, 2.B).

use super::Window;

/// Whether the checksum of the outer IPv4 header is right.
#[inline(always)]
pub fn outer_sum_is_right<W: Window>(packet: &W) -> bool {
    let mut sum = 0;
    let mut at = 14;
    while at < 34 {
        sum += u64::from(packet.u32(at));
        at += 4;
    }
    // Five numbers of 32 bits: two halves and less than 5. They are added up to 0xffff, once or twice: 0 does not occur, as
    // the header's first byte is not 0.
    let sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    sum == 0xffff || sum == 0x1_fffe
}

/// The two halves of four bytes, added.
#[inline(always)]
pub const fn word_sum(word: u32) -> u32 {
    (word & 0xffff) + (word >> 16)
}

/// Folds carries in: the one's complement sum as 16 bits. In wire order as its parts were, which RFC 1071 (2.B) allows.
#[inline(always)]
pub const fn fold(sum: u32) -> u32 {
    let sum = (sum & 0xffff) + (sum >> 16);
    (sum & 0xffff) + (sum >> 16)
}
