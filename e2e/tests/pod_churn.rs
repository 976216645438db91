//! Test program of suite `pod_churn`: many pods come and go, and nothing is left. Code in `e2e/src/pod_churn`.

use std::process::ExitCode;

fn main() -> ExitCode {
    e2e::pod_churn::main()
}
