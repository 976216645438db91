//! See `e2e/src/demonstration.rs`.

use std::process::ExitCode;

fn main() -> ExitCode {
    e2e::demonstration::main()
}
