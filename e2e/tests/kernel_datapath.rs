//! See `e2e/src/kernel_datapath`.

use std::process::ExitCode;

fn main() -> ExitCode {
    e2e::kernel_datapath::main()
}
