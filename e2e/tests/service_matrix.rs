//! See `e2e/src/service_matrix`.

use std::process::ExitCode;

fn main() -> ExitCode {
    e2e::service_matrix::main()
}
