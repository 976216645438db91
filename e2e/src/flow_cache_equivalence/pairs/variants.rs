//! The packets that are sent by each way, in both directions. All are of the entry's DSCP, and of a length that every way carries, so that the
//! cache must carry each.

use super::super::frame::{ACK, Check, PSH, Packet, Upper};
use super::mark::Mark;

/// One of them, as it differs from the plainest.
struct Variant {
    /// Bytes of payload with the mark.
    length: usize,
    edit: fn(&mut Packet),
}

const fn variant(length: usize, edit: fn(&mut Packet)) -> Variant {
    Variant { length, edit }
}

/// What an IPv4 and an IPv6 sender may write where the fast path writes its numbers.
const fn words(packet: &mut Packet, id: u16, label: u32) {
    packet.id = id;
    packet.label = Some(label);
}

const VARIANTS: &[Variant] = &[
    variant(8, |packet| words(packet, 0, 0)),
    variant(9, |packet| words(packet, 1, 0xf_ffff)),
    variant(64, |packet| words(packet, 0xffff, 0xf_c000)),
    variant(777, |packet| words(packet, 0x8000, 0xf_bfff)),
    variant(1300, |packet| words(packet, 0x7fff, 0x1_2345)),
    variant(32, |packet| {
        words(packet, 0x4242, 0x8_0000);
        packet.dont_fragment = false;
    }),
    variant(32, |packet| {
        words(packet, 7, 7);
        packet.tos = 2;
    }),
    variant(32, |packet| {
        words(packet, 8, 0xf_d00d);
        packet.tos = 3;
    }),
    variant(32, |packet| {
        words(packet, 9, 9);
        packet.ttl = 255;
    }),
    variant(32, |packet| {
        words(packet, 10, 10);
        packet.ttl = 5;
    }),
    variant(500, |packet| {
        words(packet, 11, 11);
        packet.check = Check::Offloaded;
    }),
    variant(501, |packet| {
        words(packet, 12, 12);
        match &mut packet.upper {
            Upper::Tcp { flags, options, .. } => {
                *flags = ACK | PSH;
                *options = vec![1, 1, 8, 10, 0, 0, 1, 2, 0, 0, 3, 4];
            }
            // UDP over IPv6 has to have one.
            _ if packet.source.is_ipv4() => packet.check = Check::Zero,
            _ => {}
        }
    }),
];

/// How many there are.
pub(super) fn count() -> u64 {
    u64::try_from(VARIANTS.len()).unwrap_or(u64::MAX)
}

/// All packets of one direction of a flow, `plain` with its mark and what makes it a variant.
pub(super) fn of(plain: &Packet, flow: u8, back: bool) -> Vec<(Mark, Packet)> {
    let mut list = Vec::new();
    for (number, variant) in (0..).zip(VARIANTS) {
        let mark = Mark { flow, back, variant: number };
        let mut packet = plain.clone();
        packet.payload = mark.payload(variant.length);
        packet.sequence = packet.sequence.wrapping_add(2000 * u32::from(number));
        (variant.edit)(&mut packet);
        list.push((mark, packet));
    }
    list
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::header::Word;
    use super::*;

    #[test]
    fn every_packet_is_another_one_and_has_a_word_of_its_own() {
        for six in [false, true] {
            for upper in [Upper::Udp, Upper::Tcp { flags: ACK, options: Vec::new(), urgent: 0 }] {
                let ip = |last: u8| if six { format!("fd00::{last}") } else { format!("10.0.0.{last}") };
                let plain = Packet::new(
                    [[2; 6], [4; 6]],
                    ip(1).parse().unwrap(),
                    ip(2).parse().unwrap(),
                    [1, 2],
                    upper,
                );
                let list = of(&plain, 3, true);
                assert_eq!(u64::try_from(list.len()).unwrap(), count());
                let mut words = BTreeSet::new();
                for (mark, packet) in &list {
                    assert_eq!(Mark::find(&packet.frame().bytes), Some(*mark));
                    assert!(packet.ip().len() <= 1400 && packet.tos < 4);
                    words.insert(format!("{:?}", Word::sent(packet).unwrap()));
                }
                assert_eq!(words.len(), list.len());
            }
        }
    }
}
