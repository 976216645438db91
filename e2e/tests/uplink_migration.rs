//! Test program of suite `uplink_migration`: changes of a machine's uplink, and the way back. Code in `e2e/src/uplink_migration`.

use std::process::ExitCode;

fn main() -> ExitCode {
    e2e::uplink_migration::main()
}
