//! Programs that benchmarks compare with; an object of its own, which no agent carries. On the host this binary is empty.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(target_arch = "bpf")]
#[expect(unsafe_code, reason = "helpers and the loader's constants are C in BPF")]
mod programs {
    use aya_ebpf::{
        bindings::TC_ACT_UNSPEC,
        bindings::xdp_action::{XDP_ABORTED, XDP_DROP, XDP_PASS, XDP_TX},
        helpers::generated::{bpf_redirect, bpf_redirect_peer},
        macros::{classifier, map, xdp},
        maps::{PerCpuArray, ProgramArray},
        programs::{TcContext, XdpContext},
    };

    /// Interface that packets go to; the loader puts the number in.
    #[unsafe(no_mangle)]
    static TO: u32 = 0;

    /// Words of the front of a frame that [`fresh`] writes.
    const WORDS: usize = 16;

    /// The front of the frame; the loader puts it in.
    #[unsafe(no_mangle)]
    static FRAME: [u64; WORDS] = [0; WORDS];

    /// The program that gets the frame.
    #[map]
    static NEXT: ProgramArray = ProgramArray::with_max_entries(1, 0);

    /// Writes the front of the frame anew and hands it on: the kernel's live frames (`BPF_F_TEST_XDP_LIVE_FRAMES`) are used again as a
    /// program left them. Without another program the frame goes to the kernel.
    #[xdp]
    fn fresh(ctx: XdpContext) -> u32 {
        // Once: each look is a new pointer to the verifier.
        let data = ctx.data();
        if data + WORDS * 8 > ctx.data_end() {
            return XDP_ABORTED;
        }
        let mut at = 0;
        while at < WORDS {
            // SAFETY: inside the packet, as just checked; a constant that the loader replaces, see `to`.
            unsafe {
                *((data + at * 8) as *mut u64) = core::ptr::read_volatile(&raw const FRAME[at]);
            }
            at += 1;
        }
        // SAFETY: a map of programs, and the context of this one.
        unsafe { NEXT.tail_call(&ctx, 0) };
        XDP_PASS
    }

    /// How [`flood`] makes frames differ; the loader puts it in. Words of the frame's front that are written; the offset of a source port; how many
    /// ports are taken in turn, and the first; offset of the checksum that covers the port, 0 = none; the sum that it has without the port.
    #[unsafe(no_mangle)]
    static VARY: [u32; 6] = [0; 6];

    /// Frames that [`flood`] has made.
    #[map]
    static MADE: PerCpuArray<u32> = PerCpuArray::with_max_entries(1, 0);

    #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
    fn low_half(word: u32) -> u16 {
        word as u16
    }

    fn vary(at: usize) -> u32 {
        // SAFETY: a constant that the loader replaces, see `to`.
        unsafe { core::ptr::read_volatile(&raw const VARY[at]) }
    }

    /// Writes the front of the frame anew with the next source port, and sends it out of the interface at which it is.
    #[xdp]
    fn flood(ctx: XdpContext) -> u32 {
        let (data, end) = (ctx.data(), ctx.data_end());
        let mut at = 0;
        while at < WORDS {
            if at >= vary(0) as usize || data + at * 8 + 8 > end {
                break;
            }
            // SAFETY: inside the packet, as just checked; a constant that the loader replaces, see `to`.
            unsafe {
                *((data + at * 8) as *mut u64) = core::ptr::read_volatile(&raw const FRAME[at]);
            }
            at += 1;
        }
        let Some(made) = MADE.get_ptr_mut(0) else { return XDP_ABORTED };
        // SAFETY: a value of a per-CPU array, which only this CPU uses.
        let number = unsafe {
            *made = (*made).wrapping_add(1);
            *made
        };
        let ports = vary(2);
        let port = low_half(vary(3) + if ports == 0 { 0 } else { number % ports });
        let (at, sum_at) = (vary(1) as usize & 0x7f, vary(4) as usize & 0x7f);
        if data + at + 2 > end || data + sum_at + 2 > end {
            return XDP_ABORTED;
        }
        // SAFETY: inside the packet, as just checked.
        unsafe { *((data + at) as *mut u16) = port.to_be() };
        if sum_at != 0 {
            let sum = vary(5) + u32::from(port.to_be());
            let sum = (sum & 0xffff) + (sum >> 16);
            let sum = low_half(!((sum & 0xffff) + (sum >> 16)));
            // SAFETY: inside the packet, as just checked. A sum of 0 is written as all ones (RFC 768).
            unsafe { *((data + sum_at) as *mut u16) = if sum == 0 { 0xffff } else { sum } };
        }
        XDP_TX
    }

    /// Drops everything: the other end of a veth that frames are sent back by.
    #[xdp]
    fn discard(_: XdpContext) -> u32 {
        XDP_DROP
    }

    /// Lets everything pass, at such an end that is in use.
    #[xdp]
    fn let_pass(_: XdpContext) -> u32 {
        XDP_PASS
    }

    fn to() -> u32 {
        // SAFETY: a constant that the loader replaces before the program is loaded; a plain read would be folded.
        unsafe { core::ptr::read_volatile(&raw const TO) }
    }

    /// Sends everything out of another interface, as it is.
    #[classifier]
    fn send(_: TcContext) -> i32 {
        // SAFETY: a helper without pointers.
        verdict(unsafe { bpf_redirect(to(), 0) })
    }

    /// Hands everything to the other end of a veth, as if it had arrived there.
    #[classifier]
    fn deliver(_: TcContext) -> i32 {
        // SAFETY: a helper without pointers.
        verdict(unsafe { bpf_redirect_peer(to(), 0) })
    }

    /// Does nothing: what running a program costs at all.
    #[classifier]
    fn nothing(_: TcContext) -> i32 {
        TC_ACT_UNSPEC
    }

    fn verdict(answer: i64) -> i32 {
        i32::try_from(answer).unwrap_or(TC_ACT_UNSPEC)
    }

    #[panic_handler]
    fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
        // The verifier refuses a program in which this can be reached.
        loop {}
    }

    // SAFETY: a plain byte array in the section that the loader reads the licence from.
    #[unsafe(link_section = "license")]
    #[unsafe(no_mangle)]
    static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
}

#[cfg(not(target_arch = "bpf"))]
fn main() {}
