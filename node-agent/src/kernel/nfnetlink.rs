//! Messages of netfilter's netlink subsystems (linux/netlink.h, linux/netfilter/nfnetlink.h). Pure.

/// Type bits of an attribute; the others are flags (`NLA_TYPE_MASK`).
const TYPE_MASK: u16 = 0x3fff;
/// Size of `nlmsghdr` and `nfgenmsg` in bytes.
pub(super) const HEADERS: usize = 20;

/// One message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Message<'a> {
    /// `nlmsg_type`: subsystem in the high byte, message in the low one.
    pub(super) kind: u16,
    /// Netlink port id of the sender.
    pub(super) port: u32,
    /// Address family.
    pub(super) family: u8,
    /// Attributes.
    pub(super) attributes: &'a [u8],
}

impl Message<'_> {
    /// Whether it is message `low` of `subsystem`.
    pub(super) fn is(&self, subsystem: u8, low: u8) -> bool {
        self.kind.to_le_bytes() == [low, subsystem]
    }
}

/// Messages of a datagram; stops at a truncated one.
pub(super) fn messages(datagram: &[u8]) -> impl Iterator<Item = Message<'_>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let (header, _) = rest.split_first_chunk::<16>()?;
        let number =
            |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let length = usize::try_from(number(0)).ok()?;
        let message = rest.get(..length)?;
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        let (family, attributes) =
            (message.get(16).copied().unwrap_or(0), message.get(HEADERS..).unwrap_or_default());
        rest = rest.get(length.max(16).next_multiple_of(4)..).unwrap_or_default();
        Some(Message { kind, port: number(12), family, attributes })
    })
}

/// Attributes as type and value; stops at a truncated one.
pub(super) fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (header, _) = rest.split_first_chunk::<4>()?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & TYPE_MASK;
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// Value of the first attribute of this type.
pub(super) fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(of, _)| *of == kind).map(|(_, value)| value)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// An attribute's bytes.
    pub(in crate::kernel) fn encoded(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut out = u16::try_from(4 + value.len()).unwrap().to_ne_bytes().to_vec();
        out.extend(kind.to_ne_bytes());
        out.extend(value);
        out.resize(out.len().next_multiple_of(4), 0);
        out
    }

    /// A message's bytes.
    pub(in crate::kernel) fn message(subsystem: u8, low: u8, port: u32, attributes: &[u8]) -> Vec<u8> {
        let length = u32::try_from(HEADERS + attributes.len()).unwrap();
        let mut out = length.to_ne_bytes().to_vec();
        out.extend([low, subsystem, 0, 0, 0, 0, 0, 0]);
        out.extend(port.to_ne_bytes());
        out.extend([2, 0, 0, 0]);
        out.extend(attributes);
        out
    }

    #[test]
    fn messages_and_attributes_are_read_up_to_the_first_truncated_one() {
        let mut attributes_of_one = encoded(1, b"abc");
        // A nested attribute has a flag.
        attributes_of_one.extend(encoded(0x8002, &encoded(3, &[7])));
        let mut datagram = message(1, 2, 9, &attributes_of_one);
        datagram.extend(message(1, 3, 8, &[]));
        let read: Vec<_> = messages(&datagram).collect();
        assert_eq!(read.len(), 2);
        assert!(read[0].is(1, 2) && read[1].is(1, 3) && !read[0].is(2, 1));
        assert_eq!((read[0].port, read[0].family), (9, 2));
        let nested = attribute(read[0].attributes, 2).unwrap();
        assert_eq!(attribute(nested, 3), Some(&[7][..]));
        assert_eq!(attribute(read[0].attributes, 1), Some(&b"abc"[..]));
        assert_eq!(attribute(read[0].attributes, 9), None);
        for length in 0..datagram.len() {
            let cut: Vec<_> = messages(&datagram[..length]).collect();
            assert!(cut.len() < 2);
        }
        assert_eq!(attributes(&attributes_of_one[..6]).count(), 0, "the first is cut short");
        assert_eq!(attributes(&[2, 0, 1, 0]).count(), 0, "shorter than its own header");
    }
}
