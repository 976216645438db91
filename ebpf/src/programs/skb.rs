//! The packet as the kernel hands it to a program (`struct __sk_buff`), and as the library's parsers read it.

use aya_ebpf::{
    bindings::{__sk_buff, BPF_F_INGRESS, BPF_F_RECOMPUTE_CSUM},
    helpers::{
        bpf_jiffies64, bpf_redirect as kernel_redirect, bpf_redirect_peer, bpf_skb_pull_data,
        bpf_skb_store_bytes, bpf_skb_vlan_pop, bpf_skb_vlan_push,
    },
    programs::TcContext,
};
use ebpf::{
    layout::flow::{self, HEADER_LEN},
    packet::wire::Meta,
    packet::{self, Packet, Window},
};

/// EtherType of a VLAN tag (TPID of IEEE 802.1Q), in wire order.
const TAGGED: u16 = 0x8100_u16.to_be();

/// A packet at a TC hook, from its Ethernet header on. The kernel's pointer by value: a reference to the context would keep
/// it in memory, and each access would go there first.
#[derive(Clone, Copy)]
pub(super) struct Skb(*mut __sk_buff);

impl Skb {
    #[inline(always)]
    pub(super) fn new(ctx: &TcContext) -> Self {
        Self(ctx.skb.skb)
    }

    #[inline(always)]
    pub(super) fn raw(&self) -> *mut __sk_buff {
        self.0
    }

    /// Interface at which the packet is.
    #[inline(always)]
    pub(super) fn ifindex(&self) -> u32 {
        // SAFETY: the context is valid for the length of the program.
        unsafe { (*self.raw()).ifindex }
    }

    /// What the kernel knows besides the bytes.
    #[inline(always)]
    pub(super) fn meta(&self) -> Meta {
        // SAFETY: the context is valid for the length of the program.
        unsafe {
            let skb = self.raw();
            Meta { gso_size: (*skb).gso_size, vlan_beside: (*skb).vlan_present != 0 }
        }
    }

    /// VLAN tag that is held beside the packet, as [`flow::vlan`]; 0 = none, `None`: of another kind than IEEE 802.1Q's.
    #[inline(always)]
    pub(super) fn vlan(&self) -> Option<u32> {
        // SAFETY: the context is valid for the length of the program.
        let (present, kind, control) = unsafe {
            let skb = self.raw();
            ((*skb).vlan_present, (*skb).vlan_proto, (*skb).vlan_tci)
        };
        if present == 0 {
            return Some(0);
        }
        if kind != u32::from(TAGGED) {
            return None;
        }
        Some(flow::vlan((control & 0xffff) as u16))
    }

    /// Takes the tag off that is held beside the packet, if there is one, and gives it another, as [`flow::vlan`], if there is one to be.
    /// Pointers into the packet are void afterwards. False: a helper failed, and the packet is not as it should be.
    #[inline(always)]
    pub(super) fn retag(&self, tagged: bool, vlan: u32) -> bool {
        // SAFETY: the helpers check their arguments.
        unsafe {
            (!tagged || bpf_skb_vlan_pop(self.raw()) == 0)
                && (vlan == 0 || bpf_skb_vlan_push(self.raw(), TAGGED, (vlan & 0xffff) as u16) == 0)
        }
    }

    /// What our programs tell one another about the packet, see [`ebpf::decide::tag`].
    #[inline(always)]
    pub(super) fn tag(&self) -> u32 {
        // SAFETY: the context is valid for the length of the program.
        unsafe { (*self.raw()).priority }
    }

    #[inline(always)]
    pub(super) fn set_tag(&self, tag: u32) {
        // SAFETY: as in `tag`; the kernel allows TC programs to write it.
        unsafe { (*self.raw()).priority = tag }
    }

    /// The number, of which the verifier knows nothing any more. What depends on it is looked at once, and not for each way on which
    /// the number could come about.
    #[inline(always)]
    pub(super) fn forget(&self, number: u32) -> u32 {
        // SAFETY: the context is valid for the length of the program, and the control block is the programs' own.
        unsafe {
            let room = &raw mut (*self.raw()).cb[0];
            room.write_volatile(number);
            room.read_volatile()
        }
    }

    #[inline(always)]
    pub(super) fn mark(&self) -> u32 {
        // SAFETY: the context is valid for the length of the program.
        unsafe { (*self.raw()).mark }
    }

    #[inline(always)]
    pub(super) fn set_mark(&self, mark: u32) {
        // SAFETY: as in `tag`; the kernel allows TC programs to write it.
        unsafe { (*self.raw()).mark = mark }
    }

    /// Direct access to the bytes, of which the first `wanted` are made contiguous if the packet has them.
    #[inline(always)]
    pub(super) fn front(&self, wanted: u32) -> Front {
        let front = self.front_as_is();
        if front.has(wanted) {
            return front;
        }
        let len = self.len();
        // SAFETY: the helper checks its arguments. It may move the data: pointers are fetched anew.
        unsafe { bpf_skb_pull_data(self.raw(), if len < wanted { len } else { wanted }) };
        self.front_as_is()
    }

    /// The front of a packet on the uplink: of a tunnel's all headers, of others no more than theirs. What is behind them often lies
    /// in pages of its own, and to make it contiguous costs a copy of the packet's head. `port`: UDP port of Geneve.
    #[inline(always)]
    pub(super) fn front_on_uplink(&self, port: u16) -> Front {
        let front = self.front(14 + 20 + 20);
        if packet::may_be_outer(&front, port) { self.front(HEADER_LEN + 20 + 20) } else { front }
    }

    /// Direct access to what is contiguous.
    #[inline(always)]
    pub(super) fn front_as_is(&self) -> Front {
        // SAFETY: the context is valid for the length of the program. Volatile: the pointers change under helpers, and the compiler must not keep old ones.
        unsafe {
            let skb = self.raw();
            Front {
                data: core::ptr::read_volatile(&raw const (*skb).data) as usize,
                end: core::ptr::read_volatile(&raw const (*skb).data_end) as usize,
            }
        }
    }
}

impl Skb {
    /// Writes bytes at an offset, anywhere in the packet. `recompute`: a checksum that hardware made of all of the packet is corrected.
    /// Pointers into the packet are void afterwards.
    #[inline(always)]
    pub(super) fn store<const N: usize>(&self, offset: u32, bytes: &[u8; N], recompute: bool) {
        const { assert!(N <= 16) };
        #[expect(clippy::cast_possible_truncation, reason = "a few bytes, as asserted")]
        let length = N as u32;
        let flags = if recompute { u64::from(BPF_F_RECOMPUTE_CSUM) } else { 0 };
        // SAFETY: the helper checks its arguments, and refuses what is beyond the packet.
        unsafe { bpf_skb_store_bytes(self.raw(), offset, bytes.as_ptr().cast(), length, flags) };
    }
}

impl Packet for Skb {
    #[inline(always)]
    fn len(&self) -> u32 {
        // SAFETY: the context is valid for the length of the program.
        unsafe { (*self.raw()).len }
    }

    /// A helper call rather than direct access: it also reads what is not in the linear part of the buffer, and
    /// refuses what is beyond the packet.
    #[inline(always)]
    fn read<const N: usize>(&self, offset: u32) -> Option<[u8; N]> {
        TcContext::new(self.raw()).load::<[u8; N]>(offset as usize).ok()
    }
}

/// The contiguous front of a packet. Only as long as no helper moves the packet.
#[derive(Clone, Copy)]
pub(super) struct Front {
    data: usize,
    end: usize,
}

impl Front {
    /// What is between two addresses of a packet.
    #[inline(always)]
    pub(super) fn between(data: usize, end: usize) -> Self {
        Self { data, end }
    }

    /// Bytes from the front to the end.
    #[inline(always)]
    pub(super) fn length(&self) -> usize {
        self.end.wrapping_sub(self.data)
    }

    /// Address of an offset. To be used for bytes in front of an end that [`Window::has`] confirmed: the verifier
    /// refuses the program otherwise.
    #[inline(always)]
    pub(super) fn at<T>(&self, at: u32) -> *mut T {
        (self.data + at as usize) as *mut T
    }
}

impl Front {
    /// Address of the eight bytes with this number. To be used as [`Front::at`].
    #[inline(always)]
    pub(super) fn word(&self, number: usize) -> *mut u64 {
        (self.data + number * 8) as *mut u64
    }
}

impl Window for Front {
    #[inline(always)]
    fn has(&self, end: u32) -> bool {
        self.data + end as usize <= self.end
    }

    #[inline(always)]
    fn u8(&self, at: u32) -> u8 {
        // SAFETY: inside the packet, which the verifier makes sure of.
        unsafe { *self.at::<u8>(at) }
    }

    #[inline(always)]
    fn u16(&self, at: u32) -> u16 {
        // SAFETY: inside the packet, which the verifier makes sure of. Packet data need not be aligned for the machines that have a BPF compiler.
        unsafe { *self.at::<u16>(at) }
    }

    #[inline(always)]
    fn u32(&self, at: u32) -> u32 {
        // SAFETY: the context is valid for the length of the program.
        unsafe { *self.at::<u32>(at) }
    }
}

/// Sends the packet out of an interface; the verdict to return.
#[inline(always)]
pub(super) fn redirect(ifindex: u32) -> i32 {
    // SAFETY: the helper only records the target; flags 0 = egress of that interface.
    verdict(unsafe { kernel_redirect(ifindex, 0) })
}

/// Lets the packet arrive at an interface of this network namespace; the verdict to return.
#[inline(always)]
pub(super) fn redirect_ingress(ifindex: u32) -> i32 {
    // SAFETY: the helper only records the target.
    verdict(unsafe { kernel_redirect(ifindex, BPF_F_INGRESS.into()) })
}

/// Hands the packet to the other end of a veth, as if it had arrived there; the verdict to return.
#[inline(always)]
pub(super) fn redirect_peer(ifindex: u32) -> i32 {
    // SAFETY: the helper only records the target.
    verdict(unsafe { bpf_redirect_peer(ifindex, 0) })
}

#[expect(clippy::cast_possible_truncation, reason = "helpers answer with one of the few TC_ACT_*")]
#[inline(always)]
const fn verdict(answer: i64) -> i32 {
    answer as i32
}

/// The time in ticks. Cut to 32 bits on purpose.
#[expect(clippy::cast_possible_truncation, reason = "ticks are counted in 32 bits, and wrap")]
#[inline(always)]
pub(super) fn now() -> u32 {
    // SAFETY: reads a number of the kernel, in one load since Linux 5.6.
    unsafe { bpf_jiffies64() as u32 }
}
