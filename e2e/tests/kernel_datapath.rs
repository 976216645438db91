//! Test program of suite `kernel_datapath`: a cluster on OVS's kernel module. Code in `e2e/src/kernel_datapath`.

use std::process::ExitCode;

fn main() -> ExitCode {
    e2e::kernel_datapath::main()
}
