//! Test program of suite `node_lifecycle`: restarts, crashes, drain, reboot, full disks. Code in `e2e/src/node_lifecycle`.

use std::process::ExitCode;

fn main() -> ExitCode {
    e2e::node_lifecycle::main()
}
