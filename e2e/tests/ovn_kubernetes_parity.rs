//! Test program of suite `ovn_kubernetes_parity`: rows against those of ovn-kubernetes. Code in `e2e/src/ovn_kubernetes_parity`.

use std::process::ExitCode;

fn main() -> ExitCode {
    e2e::ovn_kubernetes_parity::main()
}
