//! Test program of suite `instruction_count`: instructions of a round trip by path. Code in `e2e/src/instruction_count`.

use std::process::ExitCode;

fn main() -> ExitCode {
    e2e::instruction_count::main()
}
