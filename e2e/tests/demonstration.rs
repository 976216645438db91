//! Test program of suite `demonstration`: the demonstration's table as a test. Code in `e2e/src/demonstration.rs`.

use std::process::ExitCode;

fn main() -> ExitCode {
    e2e::demonstration::main()
}
