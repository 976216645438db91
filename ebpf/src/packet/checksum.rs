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

/// The checksum of an IPv4 header whose TTL was lowered by `step`. `checksum` is the one before, both in wire order.
#[inline(always)]
pub const fn lowered(checksum: u16, step: u8) -> u16 {
    // TTL is the upper byte of a word of the checksum. What the data loses the checksum gains, never becoming 0xffff (RFC 1624, 3).
    let sum = checksum as u32 + u16::from_ne_bytes([step, 0]) as u32;
    let sum = if sum >= 0xffff { sum + 1 } else { sum };
    low_half(sum)
}

/// The checksum of an IPv4 header in which the word `before` becomes `after` (RFC 1624, 3). All in wire order.
#[inline(always)]
pub const fn replaced(checksum: u16, before: u32, after: u32) -> u16 {
    changed(checksum, word_sum(!before) + word_sum(after))
}

/// The checksum of an IPv4 header whose sum changes by `difference`, a one's complement sum.
#[inline(always)]
pub const fn changed(checksum: u16, difference: u32) -> u16 {
    !low_half(fold((checksum ^ 0xffff) as u32 + difference))
}

/// The checksum of TCP or UDP after a translation, step by step as `bpf_l4_csum_replace` makes it (`csum_replace_by_diff` of the
/// kernel): one's complement sums of what changes in the addresses, then in the ports. `udp`: a checksum of 0 says that there is none and
/// stays, and one that comes out as 0 is sent as 0xffff (RFC 768).
#[inline(always)]
pub const fn translated(checksum: u16, addresses: u32, ports: u32, udp: bool) -> u16 {
    step(step(checksum, addresses, udp), ports, udp)
}

#[inline(always)]
const fn step(checksum: u16, difference: u32, udp: bool) -> u16 {
    if udp && checksum == 0 {
        return 0;
    }
    // The kernel inverts all 32 bits, which adds 0xffff, a zero of one's complement: the sum is never 0, nor the checksum 0xffff.
    let sum = fold(fold((checksum ^ 0xffff) as u32 + 0xffff) + fold(difference));
    let sum = !low_half(sum);
    if udp && sum == 0 { 0xffff } else { sum }
}

/// The lower half of a number.
#[expect(clippy::cast_possible_truncation, reason = "the upper half is a carry that was added in")]
#[inline(always)]
pub const fn low_half(number: u32) -> u16 {
    number as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The checksum that a header has to carry.
    fn checksum(header: &[u8; 20]) -> u16 {
        let words = header.chunks_exact(2).map(|two| u32::from(u16::from_ne_bytes([two[0], two[1]])));
        !low_half(fold(words.sum()))
    }

    proptest! {
        #[test]
        fn the_checksum_follows_a_replaced_word(
            mut header in any::<[u8; 20]>(), word in any::<[u8; 4]>(), at in prop::sample::select(&[4_usize, 12, 16][..]),
        ) {
            header[0] = 0x45;
            header[10..12].fill(0);
            let before = checksum(&header);
            let old = u32::from_ne_bytes(header[at..at + 4].try_into().unwrap());
            header[at..at + 4].copy_from_slice(&word);
            prop_assert_eq!(replaced(before, old, u32::from_ne_bytes(word)), checksum(&header));
        }
    }

    proptest! {
        #[test]
        fn the_checksum_of_a_translated_packet_is_the_one_that_it_has_to_carry(
            before in any::<[u8; 20]>(), after in any::<[u8; 20]>(), udp in any::<bool>(),
        ) {
            // Bytes 12 to 19 stand for the addresses, 0 to 3 for the ports, and 10 and 11 for the checksum over all of it.
            let (mut before, mut after) = (before, after);
            after[4..10].copy_from_slice(&before[4..10]);
            before[10..12].fill(0);
            after[10..12].fill(0);
            let word = |bytes: &[u8; 20], at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
            let difference = |at| word_sum(!word(&before, at)) + word_sum(word(&after, at));
            let sent = |sum: u16| if udp && sum == 0 { 0xffff } else { sum };
            let right = sent(checksum(&after));
            let out = translated(sent(checksum(&before)), difference(12) + difference(16), difference(0), udp);
            prop_assert_eq!(out, right);
        }
    }

    #[test]
    fn a_datagram_without_checksum_keeps_none() {
        assert_eq!(translated(0, 0x1234, 0x4321, true), 0);
        assert_ne!(translated(0, 0x1234, 0x4321, false), 0);
    }

    #[test]
    fn zero_has_one_form_as_in_the_kernel() {
        assert_eq!(translated(0xffff, 0, 0, false), 0);
        assert_eq!(translated(0xffff, 0, 0, true), 0xffff);
        assert_eq!(translated(0x1234, 0xffff, 0x1_fffe, false), 0x1234);
    }

    proptest! {
        // One in about 500 carries.
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn the_checksum_follows_a_lowered_ttl(mut header in any::<[u8; 20]>(), step in any::<u8>()) {
            header[0] = 0x45;
            header[8] = header[8].max(step);
            header[10..12].fill(0);
            let before = checksum(&header);
            header[8] -= step;
            prop_assert_eq!(lowered(before, step), checksum(&header));
        }
    }
}
