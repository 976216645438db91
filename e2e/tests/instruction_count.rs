//! See `e2e/src/instruction_count`.

use std::process::ExitCode;

fn main() -> ExitCode {
    e2e::instruction_count::main()
}
