//! See `e2e/src/ovn_kubernetes_parity`.

use std::process::ExitCode;

fn main() -> ExitCode {
    e2e::ovn_kubernetes_parity::main()
}
