//! See `e2e/src/uplink_migration`.

use std::process::ExitCode;

fn main() -> ExitCode {
    e2e::uplink_migration::main()
}
