//! Test program of suite `scoped_changes`: scopes cover every flow that a change concerns. Code in `e2e/src/scoped_changes`.

use std::process::ExitCode;

fn main() -> ExitCode {
    e2e::scoped_changes::main()
}
