//! Test program of suite `service_matrix`: who reaches what by which address of a service. Code in `e2e/src/service_matrix`.

use std::process::ExitCode;

fn main() -> ExitCode {
    e2e::service_matrix::main()
}
