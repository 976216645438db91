//! The eBPF object. On the host this binary is empty: the library half is what host code uses.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(target_arch = "bpf")]
mod programs;

#[cfg(not(target_arch = "bpf"))]
fn main() {}

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // The verifier refuses a program in which this can be reached.
    loop {}
}

/// `Dual`: the helpers used are GPL only.
#[cfg(target_arch = "bpf")]
#[expect(unsafe_code, reason = "link_section is how the kernel finds the licence")]
// SAFETY: a plain byte array in the section that the loader reads the licence from.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
