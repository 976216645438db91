//! A packet in front of a driver.

use aya_ebpf::{bindings::xdp_md, helpers::bpf_xdp_load_bytes};
use ebpf::packet::Packet;

use super::skb::Front;

/// A packet in front of a driver (`struct xdp_md`).
#[derive(Clone, Copy)]
pub(super) struct Frame {
    raw: *mut xdp_md,
    length: u32,
}

impl Frame {
    #[inline(always)]
    pub(super) fn new(raw: *mut xdp_md) -> Self {
        Self { raw, length: length(raw) }
    }

    #[inline(always)]
    pub(super) fn raw(self) -> *mut xdp_md {
        self.raw
    }

    /// Interface at which the packet is.
    #[inline(always)]
    pub(super) fn ifindex(self) -> u32 {
        // SAFETY: the context is valid for the length of the program.
        unsafe { (*self.raw).ingress_ifindex }
    }

    /// Direct access to the bytes, all of which are contiguous: the program says of itself that it takes no others.
    #[inline(always)]
    pub(super) fn front(self) -> Front {
        front(self.raw)
    }
}

/// Bytes of the frame. A function of its own: where registers are few the compiler would keep the pointers as numbers of 32 bits, which
/// the verifier refuses.
#[expect(clippy::cast_possible_truncation, reason = "a page at most")]
#[inline(never)]
fn length(raw: *mut xdp_md) -> u32 {
    front(raw).length() as u32
}

/// Direct access to the bytes.
#[inline(always)]
pub(super) fn front(raw: *mut xdp_md) -> Front {
    // SAFETY: the context is valid for the length of the program. Volatile, as in `Skb::front_as_is`.
    unsafe {
        Front::between(
            core::ptr::read_volatile(&raw const (*raw).data) as usize,
            core::ptr::read_volatile(&raw const (*raw).data_end) as usize,
        )
    }
}

impl Packet for Frame {
    #[inline(always)]
    fn len(&self) -> u32 {
        self.length
    }

    #[inline(always)]
    fn read<const N: usize>(&self, offset: u32) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        #[expect(clippy::cast_possible_truncation, reason = "a header's field")]
        // SAFETY: the helper checks its arguments, and refuses what is beyond the packet.
        let answer = unsafe { bpf_xdp_load_bytes(self.raw, offset, bytes.as_mut_ptr().cast(), N as u32) };
        if answer == 0 { Some(bytes) } else { None }
    }
}
