//! How much the kernel's verifier has to look at before it takes the programs.

use aya::programs::loaded_programs;
use node_agent::bpf::Programs;

use crate::sandbox::Node;

/// Instructions of one program at most, counted as often as they are looked at. The verifier gives up at a million
/// (BPF_COMPLEXITY_LIMIT_INSNS), and other kernels than this one look at more: the distance is for them.
const ONE: u32 = 200_000;

/// Instructions of all programs together: a node waits for the verifier at each start of its agent.
const ALL: u32 = 600_000;

#[test]
fn the_verifier_is_done_long_before_it_would_give_up() {
    let node = Node::new();
    let dir = node.pins();
    node.run(move || {
        let ids = || loaded_programs().filter_map(Result::ok);
        let newest = ids().map(|program| program.id()).max().unwrap_or_default();
        let programs = Programs::load(&dir).unwrap();
        // Others may load programs meanwhile, and a program has the same name everywhere.
        let mut counts = std::collections::BTreeMap::new();
        for program in ids().filter(|program| program.id() > newest) {
            let name = program.name_as_str().unwrap_or_default().to_owned();
            counts.insert(name, program.verified_instruction_count().unwrap());
        }
        drop(programs);
        println!("{counts:?}, all {}", counts.values().sum::<u32>());
        let ways = ["pod", "uplink", "host", "physical"];
        for name in ways.iter().flat_map(|way| [format!("from_{way}"), format!("to_{way}")]) {
            assert!(counts.contains_key(&name), "{name}: {counts:?}");
        }
        assert!(counts.values().all(|count| *count <= ONE), "{counts:?}");
        assert!(counts.values().sum::<u32>() <= ALL, "{counts:?}");
    });
}
