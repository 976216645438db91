//! See `e2e/src/supervision`.

use std::process::ExitCode;

fn main() -> ExitCode {
    e2e::supervision::main()
}
