//! See `e2e/src/multus`.

use std::process::ExitCode;

fn main() -> ExitCode {
    e2e::multus::main()
}
