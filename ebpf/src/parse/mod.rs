//! Parsing of packets, byte by byte as they are on the wire, without trust in anything they say.
//!
//! Order of the checks: a header is read only after the one before it said that it is there, and only inside the
//! length that one gave. The first thing wrong is the [`Reason`].

mod flow;
mod geneve;
mod network;

pub use flow::{
    FIN, Flow, IPV4, IPV6, Outer, RST, SYN, Window, fold, ipv4, ipv6, outer, outer_sum_is_right, word_sum,
};
pub use geneve::{Tunnel, uplink};
pub use network::{MAX_EXTENSION_HEADERS, Network, network};

use crate::reason::Reason;

/// Access to the bytes of a packet, from its Ethernet header on. In a program this is the packet buffer, in tests a
/// slice.
pub trait Packet {
    /// Bytes in the packet.
    fn len(&self) -> u32;

    /// Whether there is not even one byte.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The `N` bytes at `offset`, or `None` if not all of them are there.
    fn read<const N: usize>(&self, offset: u32) -> Option<[u8; N]>;
}

impl Packet for &[u8] {
    fn len(&self) -> u32 {
        u32::try_from(<[u8]>::len(self)).unwrap_or(u32::MAX)
    }

    fn read<const N: usize>(&self, offset: u32) -> Option<[u8; N]> {
        let start = usize::try_from(offset).ok()?;
        self.get(start..start.checked_add(N)?)?.try_into().ok()
    }
}

/// IP protocol numbers (IANA).
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;

/// Checks a packet that a pod sent: only that Ethernet and IP headers hold together. What is above is between the
/// pod and its peer.
///
/// # Errors
/// The first thing that is wrong with it.
#[inline(always)]
pub fn pod<P: Packet>(packet: &P, aggregate: bool) -> Result<(), Reason> {
    network(packet, 0, aggregate).map(|_| ())
}

/// Bytes in front of the payload that segmentation cuts: Ethernet, IP, TCP or UDP from `offset` on, plus `offset`.
/// For a packet that is not understood, as far as it was.
#[inline(always)]
pub fn headers<P: Packet>(packet: &P, offset: u32) -> u32 {
    let Ok(Some(network)) = network(packet, offset, true) else { return offset };
    match network.protocol {
        TCP => match packet.read::<1>(network.payload.wrapping_add(12)) {
            // Data offset in 32-bit words, upper half of the byte; below 5 is nonsense.
            Some([words]) => network.payload + (u32::from(words >> 4) * 4).max(20),
            None => network.payload,
        },
        UDP => network.payload + 8,
        _ => network.payload,
    }
}
