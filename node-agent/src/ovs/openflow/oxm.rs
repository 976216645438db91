//! Headers of OXM and NXM fields (OpenFlow 1.5, section 7.2.3; ovs-fields(7)), and iteration over lists of them.

use super::u32_at;

/// Class and field number of a header, without mask bit and length.
pub(super) type Id = u32;

const fn basic(field: u32) -> Id {
    0x8000 << 7 | field
}

/// Nicira's extensions, class 1.
const fn extension(field: u32) -> Id {
    0x0001 << 7 | field
}

/// Nicira's names of OpenFlow 1.0's fields, class 0.
const fn old(field: u32) -> Id {
    field
}

pub(super) const IN_PORT: [Id; 2] = [basic(0), old(0)];
pub(super) const METADATA: Id = basic(2);
pub(super) const ETH_DST: [Id; 2] = [basic(3), old(1)];
pub(super) const ETH_SRC: [Id; 2] = [basic(4), old(2)];
pub(super) const ETH_TYPE: [Id; 2] = [basic(5), old(3)];
/// VLAN number, and Nicira's tag control information: in both the bit 0x1000 says that there is a tag.
pub(super) const VLAN: [Id; 2] = [basic(6), old(4)];
pub(super) const IP_PROTO: [Id; 2] = [basic(10), old(6)];
pub(super) const IPV4_SRC: [Id; 2] = [basic(11), old(7)];
pub(super) const IPV4_DST: [Id; 2] = [basic(12), old(8)];
/// Ports of TCP, UDP and SCTP.
pub(super) const PORT_SRC: [Id; 5] = [basic(13), basic(15), basic(17), old(9), old(11)];
pub(super) const PORT_DST: [Id; 5] = [basic(14), basic(16), basic(18), old(10), old(12)];
pub(super) const IPV6_SRC: [Id; 2] = [basic(26), extension(19)];
pub(super) const IPV6_DST: [Id; 2] = [basic(27), extension(20)];
pub(super) const IP_FRAG: Id = extension(26);
pub(super) const CONJUNCTION: Id = extension(37);
pub(super) const IP_TTL: Id = extension(29);
/// Original destination of a tracked connection (`ct_nw_dst`, `ct_ipv6_dst`).
pub(super) const CT_DST: [Id; 2] = [extension(121), extension(123)];

/// Registers that a field consists of: the first one, and how many. A 32-bit register, two as one (OXM class 0x8001), or four
/// (`xxreg`).
pub(super) fn registers(id: Id) -> Option<(usize, usize)> {
    let (class, field) = (id >> 7, usize::try_from(id & 0x7f).ok()?);
    match (class, field) {
        (0x0001, 0..=15) => Some((field, 1)),
        (0x8001, 0..=7) => Some((field * 2, 2)),
        (0x0001, 111..=114) => Some(((field - 111) * 4, 4)),
        _ => None,
    }
}

/// One field of a match or `set_field`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Field<'a> {
    pub(super) id: Id,
    pub(super) value: &'a [u8],
    /// Empty when the field is not masked.
    mask: &'a [u8],
}

impl<'a> Field<'a> {
    /// Splits the first field off a list; `None` at its end and where it is cut short.
    pub(super) fn split(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let header = u32_at(bytes, 0)?;
        let length = usize::from(header.to_be_bytes()[3]);
        let (one, rest) = bytes.get(4..)?.split_at_checked(length)?;
        let half = if header & 0x100 == 0 { length } else { length / 2 };
        let (value, mask) = one.split_at_checked(half)?;
        Some((Self { id: header >> 9, value, mask }, rest))
    }

    /// Bytes of the value that count, each with its mask.
    pub(super) fn masked(&self) -> impl Iterator<Item = (u8, u8)> + 'a {
        let (value, mask) = (self.value, self.mask);
        value.iter().enumerate().map(move |(at, byte)| {
            let mask = if mask.is_empty() { 0xff } else { mask.get(at).copied().unwrap_or(0) };
            (*byte & mask, mask)
        })
    }

    /// A 32-bit word of the value, and its mask; `at` in words.
    pub(super) fn word(&self, at: usize) -> (u32, u32) {
        let value = u32_at(self.value, at * 4).unwrap_or(0);
        let mask = if self.mask.is_empty() { u32::MAX } else { u32_at(self.mask, at * 4).unwrap_or(0) };
        (value & mask, mask)
    }

    /// The value as a number of at most 128 bits, unless it is masked.
    pub(super) fn whole(&self) -> Option<u128> {
        let all = self.mask.iter().all(|mask| *mask == 0xff) && self.value.len() <= 16;
        all.then(|| self.value.iter().fold(0, |number, byte| number << 8 | u128::from(*byte)))
    }
}
