//! Test program of suite `fault_injection`: bad input and missing services. Code in `e2e/src/fault_injection`.

use std::process::ExitCode;

fn main() -> ExitCode {
    e2e::fault_injection::main()
}
