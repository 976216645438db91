//! See `e2e/src/virtual_networks`.

use std::process::ExitCode;

fn main() -> ExitCode {
    e2e::virtual_networks::main()
}
