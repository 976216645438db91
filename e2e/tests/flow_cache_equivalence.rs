//! Test program of suite `flow_cache_equivalence`: the flow cache against OVS, byte by byte. Code in `e2e/src/flow_cache_equivalence`.

use std::process::ExitCode;

fn main() -> ExitCode {
    e2e::flow_cache_equivalence::main()
}
