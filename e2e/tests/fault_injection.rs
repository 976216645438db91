//! See `e2e/src/fault_injection`.

use std::process::ExitCode;

fn main() -> ExitCode {
    e2e::fault_injection::main()
}
