//! Checks that no release contains code of the programs that only tests need: there the feature `test-hooks` is off.

use anyhow::{Result, bail};

use crate::exec;

/// The programs of a release.
const PROGRAMS: [&str; 2] = ["controller", "node-agent"];
const FEATURE: &str = "test-hooks";

/// Queries cargo for the features of a build of only the programs.
pub(super) fn check() -> Result<()> {
    for program in PROGRAMS {
        let tree = exec::output(exec::cargo().args([
            "tree",
            "--package",
            program,
            "--edges=features,no-dev",
            "--invert=supervision",
        ]))?;
        if has(&tree) {
            bail!("a release of {program} would have the feature {FEATURE}:\n{tree}");
        }
    }
    Ok(())
}

fn has(tree: &str) -> bool {
    tree.contains(&format!("feature \"{FEATURE}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_alone_have_no_hooks_of_tests() {
        check().unwrap();
    }

    #[test]
    fn hooks_are_seen_where_they_are() {
        let tree = exec::output(exec::cargo().args([
            "tree",
            "--package=perf-tests",
            "--edges=features,no-dev",
            "--invert=supervision",
        ]));
        assert!(has(&tree.unwrap()), "the benchmarks' programs have them");
    }
}
