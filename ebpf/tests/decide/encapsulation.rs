//! The outer header that an entry keeps, and the fields that are put into it for each packet.

use ebpf::{
    decide::learn::{template, template_sum},
    layout::flow::{HEADER, HEADER_WORDS},
    packet::{fields, outer_sum_is_right},
};
use proptest::prelude::*;

fn bytes(header: &[u64; HEADER_WORDS]) -> Vec<u8> {
    header.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

proptest! {
    /// Whatever the header and the fields: the packet's IPv4 checksum is right, and everything else is as OVS wrote it.
    #[test]
    fn a_header_from_the_template_is_one_that_ovs_could_have_written(
        mut ovs in prop::array::uniform9(any::<u64>()), ecn in 0_u8..4, total in 58_u32..65_536,
    ) {
        // Version 4 and five words; a header of zeros only has no checksum.
        let second = ovs[1].to_ne_bytes();
        ovs[1] = u64::from_ne_bytes([second[0], second[1], second[2], second[3], second[4], second[5], 0x45, second[7]]);
        let mut kept = ovs;
        template(&mut kept);
        let fields = fields(template_sum(&kept), total, ecn);
        let mut packet = bytes(&kept);
        packet[15] |= ecn;
        packet[16..18].copy_from_slice(&fields.length.to_ne_bytes());
        packet[24..26].copy_from_slice(&fields.checksum.to_ne_bytes());
        packet[38..40].copy_from_slice(&fields.datagram.to_ne_bytes());
        prop_assert_eq!(packet.len(), HEADER);
        prop_assert!(outer_sum_is_right(&packet.as_slice()));
        prop_assert_eq!(u32::from(u16::from_be_bytes([packet[16], packet[17]])), total);
        prop_assert_eq!(u32::from(u16::from_be_bytes([packet[38], packet[39]])), total - 20);
        prop_assert_eq!(packet[15] & 3, ecn);
        // Identification and the UDP checksum are 0.
        prop_assert_eq!([&packet[18..20], &packet[40..42]], [[0; 2]; 2]);
        let mut wanted = bytes(&ovs);
        for (at, byte) in wanted.iter_mut().enumerate() {
            match at {
                15 => *byte = *byte & !3 | ecn,
                16..20 | 24..26 | 38..42 => *byte = packet[at],
                _ => {}
            }
        }
        prop_assert_eq!(packet, wanted);
    }
}
