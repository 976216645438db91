//! Test program of suite `virtual_networks`: pods with several interfaces. Code in `e2e/src/virtual_networks`.

use std::process::ExitCode;

fn main() -> ExitCode {
    e2e::virtual_networks::main()
}
