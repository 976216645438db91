//! Test program of suite `supervision`: every task of agent and controller is ended in turn. Code in `e2e/src/supervision`.

use std::process::ExitCode;

fn main() -> ExitCode {
    e2e::supervision::main()
}
