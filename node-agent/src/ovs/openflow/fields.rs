//! Parser of the OXM fields of a match or `set_field` (OpenFlow 1.5, section 7.2.3) that identify the port a flow applies to.
//! Unreadable fields count as absent.

use super::u32_at;

/// A logical port of OVN: tunnel keys of its datapath and of the port (`tunnel_key` in the southbound database).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LogicalPort {
    /// Datapath key, `metadata` in OVN's flows.
    pub datapath: u64,
    /// Port key: register 14 (ingress port) or 15 (egress port) in OVN's flows (OVN, include/ovn/logical-fields.h).
    pub port: u32,
}

/// Exactly matched fields; masked ones are absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fields {
    /// OpenFlow ingress port.
    pub in_port: Option<u32>,
    /// Key of OVN's logical datapath.
    pub datapath: Option<u64>,
    /// Key of OVN's logical ingress port.
    pub from: Option<u32>,
    /// Key of OVN's logical egress port.
    pub to: Option<u32>,
    /// Id of the conjunction matched (`conj_id`).
    pub conjunction: Option<u32>,
    /// Matches a field that differs between packets of one connection: TCP flags, ECN, TTL or flow label. False for matches on
    /// ICMP, or on a TTL of 0 or 1, as such packets always take the slow path.
    pub per_packet: bool,
    /// Says something of VLAN tags.
    pub vlan: bool,
}

/// Class and field number of an OXM header, without mask bit and length.
const IN_PORT: u32 = 0x8000 << 7;
const METADATA: u32 = 0x8000 << 7 | 2;
const REGISTER_14: u32 = 0x0001 << 7 | 14;
const REGISTER_15: u32 = 0x0001 << 7 | 15;
/// Registers 14 and 15 as one 64-bit field (OXM class 0x8001), as in OpenFlow 1.5 matches.
const REGISTERS_14_15: u32 = 0x8001 << 7 | 7;
const CONJUNCTION: u32 = 0x0001 << 7 | 37;
const IP_PROTO: u32 = 0x8000 << 7 | 10;
/// ECN, TCP flags and flow label, in the OXM and NXM classes (ovs-fields(7)).
const IP_ECN: [u32; 2] = [0x8000 << 7 | 9, 0x0001 << 7 | 28];
const TCP_FLAGS: [u32; 2] = [0x8000 << 7 | 42, 0x0001 << 7 | 34];
const FLOW_LABEL: [u32; 2] = [0x8000 << 7 | 28, 0x0001 << 7 | 27];
/// VLAN number (OXM), and tag control information (NXM).
const VLAN: [u32; 2] = [0x8000 << 7 | 6, 4];
const IP_TTL: u32 = 0x0001 << 7 | 29;
/// ICMP and ICMPv6 (IANA's protocol numbers).
const ICMP: [u8; 2] = [1, 58];

impl Fields {
    /// Parses a list of fields; stops at the first malformed one.
    pub fn read(mut bytes: &[u8]) -> Self {
        let (mut fields, mut other) = (Self::default(), false);
        while let Some(header) = u32_at(bytes, 0) {
            let length = usize::from(header.to_be_bytes()[3]);
            let Some((one, rest)) = bytes.get(4..).and_then(|after| after.split_at_checked(length)) else {
                break;
            };
            let masked = header & 0x100 != 0;
            let (value, mask) = one.split_at(if masked { length / 2 } else { length });
            // A 32-bit word of the value, if it is not masked.
            let word = |at: usize| {
                let counts = !masked || u32_at(mask, at) == Some(u32::MAX);
                u32_at(value, at).filter(|_| counts)
            };
            match header >> 9 {
                IN_PORT => fields.in_port = word(0),
                METADATA => {
                    fields.datapath = word(0).zip(word(4)).map(|(h, l)| u64::from(h) << 32 | u64::from(l));
                }
                REGISTER_14 => fields.from = word(0),
                REGISTER_15 => fields.to = word(0),
                REGISTERS_14_15 => (fields.from, fields.to) = (word(0), word(4)),
                CONJUNCTION => fields.conjunction = word(0),
                IP_PROTO => other = value.first().is_some_and(|protocol| ICMP.contains(protocol)),
                IP_TTL => fields.per_packet |= masked || value.first().is_none_or(|ttl| *ttl > 1),
                kind if VLAN.contains(&kind) => fields.vlan = true,
                kind if [IP_ECN, TCP_FLAGS, FLOW_LABEL].iter().any(|both| both.contains(&kind)) => {
                    fields.per_packet = true;
                }
                _ => {}
            }
            bytes = rest;
        }
        fields.per_packet &= !other;
        fields
    }

    /// Logical ingress port.
    pub fn source(&self) -> Option<LogicalPort> {
        self.datapath.zip(self.from).map(|(datapath, port)| LogicalPort { datapath, port })
    }

    /// Logical egress port.
    pub fn destination(&self) -> Option<LogicalPort> {
        self.datapath.zip(self.to).map(|(datapath, port)| LogicalPort { datapath, port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_register_that_is_masked_says_nothing_and_its_neighbour_still_does() {
        // Registers 14 and 15 with a mask, of which 15 counts whole; then metadata.
        let mut bytes =
            vec![0x80, 0x01, 0x0f, 16, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff];
        bytes.extend([0x80, 0, 0x04, 8, 0, 0, 0, 0, 0, 0, 0, 9]);
        let fields = Fields::read(&bytes);
        assert_eq!(
            (fields.source(), fields.destination()),
            (None, Some(LogicalPort { datapath: 9, port: 3 }))
        );
        assert_eq!(
            Fields::read(&bytes[..20]).destination(),
            None,
            "without a datapath a number names no port"
        );
    }

    #[test]
    fn what_packets_of_one_flow_differ_in_is_told_from_what_they_do_not() {
        let nxm = |field: u8, value: &[u8]| {
            let mut bytes = vec![0, 1, field << 1, u8::try_from(value.len()).unwrap()];
            bytes.extend(value);
            bytes
        };
        let oxm = |field: u8, value: &[u8]| {
            let mut bytes = nxm(field, value);
            bytes[..2].copy_from_slice(&[0x80, 0]);
            bytes
        };
        let per_packet = |fields: &[Vec<u8>]| Fields::read(&fields.concat()).per_packet;
        for matched in [nxm(29, &[7]), nxm(28, &[3]), oxm(9, &[3]), nxm(34, &[0, 4]), oxm(42, &[0, 4])] {
            assert!(per_packet(std::slice::from_ref(&matched)), "{matched:?}");
            assert!(per_packet(&[oxm(10, &[6]), matched.clone()]), "{matched:?}");
            assert!(!per_packet(&[oxm(10, &[58]), matched.clone()]), "{matched:?}");
        }
        // The eBPF programs distinguish packets by DSCP.
        for matched in [nxm(29, &[0]), nxm(29, &[1]), oxm(8, &[46]), oxm(10, &[17])] {
            assert!(!per_packet(std::slice::from_ref(&matched)), "{matched:?}");
        }
    }

    #[test]
    fn a_match_on_vlan_tags_is_seen_in_both_classes_and_of_no_tag_as_well() {
        let in_port = [0x80, 0, 0, 4, 0, 0, 0, 7];
        for vlan in [[0x80, 0, 0x0c, 2, 0x10, 100].as_slice(), &[0, 0, 0x09, 4, 0, 0, 0x1f, 0xff]] {
            let fields = Fields::read(&[&in_port, vlan].concat());
            assert_eq!((fields.in_port, fields.vlan), (Some(7), true), "{vlan:?}");
        }
        assert!(!Fields::read(&in_port).vlan);
    }

    #[test]
    fn what_is_cut_short_ends_the_reading() {
        assert_eq!(Fields::read(&[0x80, 0, 0, 4, 0, 0]), Fields::default());
        assert_eq!(Fields::read(&[0x80, 0, 0, 4, 0, 0, 0, 7, 0, 0]).in_port, Some(7));
        assert_eq!(Fields::read(&[0; 12]), Fields::default());
    }
}
