//! Packets, byte by byte as they are on the wire, without trust in anything they say.
//!
//! Two kinds of parsers. [`network()`], [`uplink`] and [`pod`] read any packet through [`Packet`], header by header, so that each is
//! counted for its port and tunnel and the first thing wrong with it has a [`Reason`]. [`ipv4()`], [`ipv6()`] and [`outer()`] read only
//! the packets that the flow cache may carry, through [`Window`] at fixed offsets. A header is read only after the one before it said
//! that it is there.

mod checksum;
mod flow;
mod geneve;
mod network;
mod outer;
pub mod quoted;
mod window;
pub mod wire;

pub use checksum::{changed, fold, low_half, lowered, outer_sum_is_right, replaced, translated, word_sum};
pub use flow::{ACK, FIN, Flow, IPV4, IPV6, RST, SYN, ipv4, ipv6, print};
pub use geneve::{Tunnel, uplink};
pub use network::{MAX_EXTENSION_HEADERS, Network, network};
pub use outer::{Fields, Outer, fields, may_be_outer, outer};
pub use window::{Window, halves};

use crate::layout::reason::Reason;

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

/// IP protocol number of TCP (RFC 9293).
pub const TCP: u8 = 6;
/// IP protocol number of UDP (RFC 768).
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
