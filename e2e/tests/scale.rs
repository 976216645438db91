//! Test program of suite `scale`: many simulated nodes and pods on one control plane. Code in `e2e/src/scale`.

use std::process::ExitCode;

fn main() -> ExitCode {
    e2e::scale::main()
}
