//! See `e2e/src/node_lifecycle`.

use std::process::ExitCode;

fn main() -> ExitCode {
    e2e::node_lifecycle::main()
}
