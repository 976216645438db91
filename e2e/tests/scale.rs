//! See `e2e/src/scale`.

use std::process::ExitCode;

fn main() -> ExitCode {
    e2e::scale::main()
}
