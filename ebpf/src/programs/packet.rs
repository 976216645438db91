//! The packet buffer as the library's parser wants it.

use aya_ebpf::programs::TcContext;
use ebpf::{parse::Packet, wire::Meta};

/// A packet at a TC hook, from its Ethernet header on.
pub(super) struct Skb<'a> {
    ctx: &'a TcContext,
}

impl<'a> Skb<'a> {
    #[inline(always)]
    pub(super) fn new(ctx: &'a TcContext) -> Self {
        Self { ctx }
    }

    /// Interface at which the packet is.
    #[inline(always)]
    pub(super) fn ifindex(&self) -> u32 {
        // SAFETY: the context is valid for the length of the program.
        unsafe { (*self.ctx.skb.skb).ifindex }
    }

    /// What the kernel knows besides the bytes.
    #[inline(always)]
    pub(super) fn meta(&self) -> Meta {
        // SAFETY: as above.
        unsafe {
            let skb = self.ctx.skb.skb;
            Meta { gso_size: (*skb).gso_size, vlan_beside: (*skb).vlan_present != 0 }
        }
    }
}

impl Packet for Skb<'_> {
    #[inline(always)]
    fn len(&self) -> u32 {
        self.ctx.len()
    }

    /// A helper call rather than direct access: it also reads what is not in the linear part of the buffer, and
    /// refuses what is beyond the packet.
    #[inline(always)]
    fn read<const N: usize>(&self, offset: u32) -> Option<[u8; N]> {
        self.ctx.load::<[u8; N]>(offset as usize).ok()
    }
}
