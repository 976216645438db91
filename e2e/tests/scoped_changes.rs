//! See `e2e/src/scoped_changes`.

use std::process::ExitCode;

fn main() -> ExitCode {
    e2e::scoped_changes::main()
}
