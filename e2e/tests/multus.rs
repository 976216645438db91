//! Test program of suite `multus`: real nodes below Multus, in both roles. Code in `e2e/src/multus`.

use std::process::ExitCode;

fn main() -> ExitCode {
    e2e::multus::main()
}
