#![cfg_attr(target_arch = "bpf", no_std, no_main)]
#[cfg(not(target_arch = "bpf"))]
fn main() {}
#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! { loop {} }
