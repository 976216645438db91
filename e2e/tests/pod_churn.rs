//! See `e2e/src/pod_churn`.

use std::process::ExitCode;

fn main() -> ExitCode {
    e2e::pod_churn::main()
}
