//! Programs that benchmarks compare with; an object of its own, which no agent carries. On the host this binary is empty.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(target_arch = "bpf")]
#[expect(unsafe_code, reason = "helpers and the loader's constants are C in BPF")]
mod programs {
    use aya_ebpf::{
        bindings::TC_ACT_UNSPEC,
        bindings::xdp_action::{XDP_ABORTED, XDP_DROP, XDP_PASS},
        helpers::generated::{bpf_redirect, bpf_redirect_peer},
        macros::{classifier, map, xdp},
        maps::ProgramArray,
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
