//! Test program of suite `flow_cache_invariants`: never more than OVS allows. Code in `e2e/src/flow_cache_invariants`.

use std::process::ExitCode;

fn main() -> ExitCode {
    e2e::flow_cache_invariants::main()
}
