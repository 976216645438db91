//! Runs every committed seed through its target, so that targets and seeds are tested without libFuzzer.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

/// Runs the files of a target.
fn run(name: &str) {
    let (_, target) = fuzz::TARGETS.iter().find(|(known, _)| *known == name).unwrap();
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(name);
    let mut count = 0;
    for file in std::fs::read_dir(&directory).unwrap() {
        let path = file.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        // A truncated file is an input, too.
        for end in [bytes.len(), bytes.len() / 2, bytes.len().min(1), 0] {
            let ran = std::panic::catch_unwind(|| target(&bytes[..end]));
            assert!(ran.is_ok(), "{}, the first {end} bytes", path.display());
        }
        count += 1;
    }
    assert!(count >= 3, "{count} seeds in {}", directory.display());
}

macro_rules! seeds {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            run(stringify!($name));
        })*

        #[test]
        fn every_target_is_here_and_has_a_program() {
            assert_eq!(fuzz::TARGETS.map(|(name, _)| name), [$(stringify!($name)),*]);
            for (name, _) in fuzz::TARGETS {
                let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("targets").join(name).with_extension("rs");
                assert!(std::fs::read_to_string(program).unwrap().contains(&format!("fuzz::{name}(")), "{name}");
            }
        }
    };
}

seeds! { cni_request annotations geneve flow ovsdb_framing openflow_monitor cli_ranges virtual_network network_attachments pod_attachments traffic_protocol }
