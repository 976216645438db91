//! Programs that benchmarks compare with; an object of its own, which no agent carries. On the host this binary is empty.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(target_arch = "bpf")]
#[expect(unsafe_code, reason = "helpers and the loader's constants are C in BPF")]
mod programs {
    use aya_ebpf::{
        bindings::TC_ACT_UNSPEC,
        helpers::generated::{bpf_redirect, bpf_redirect_peer},
        macros::classifier,
        programs::TcContext,
    };

    /// Interface that packets go to; the loader puts the number in.
    #[unsafe(no_mangle)]
    static TO: u32 = 0;

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
