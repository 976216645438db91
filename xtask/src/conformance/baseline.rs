//! The specs that must pass, and the comparison of a run with them.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use super::report::{Spec, State};

/// Name of each spec and the least number of nodes on which it runs.
#[derive(Debug)]
pub(super) struct Baseline {
    nodes: BTreeMap<String, u8>,
}

impl Baseline {
    /// Reads `NODES NAME` lines.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut nodes = BTreeMap::new();
        for line in text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
            let (count, name) = line
                .split_once(' ')
                .and_then(|(count, name)| Some((count.parse().ok()?, name.trim())))
                .with_context(|| format!("{line:?} is not NODES NAME"))?;
            nodes.insert(name.to_owned(), count);
        }
        Ok(Self { nodes })
    }

    /// Whether the spec must pass on a cluster with this number of nodes.
    #[cfg(test)]
    pub(super) fn expects(&self, name: &str, nodes: u8) -> bool {
        self.nodes.get(name).is_some_and(|least| *least <= nodes)
    }

    #[cfg(test)]
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.nodes.keys().map(String::as_str)
    }

    /// Specs that should have passed and did not, with what happened instead. With `whole` this includes specs that did not run.
    pub(super) fn broken(&self, specs: &[Spec], nodes: u8, whole: bool) -> Vec<(String, &'static str)> {
        let states: BTreeMap<&str, State> = specs.iter().map(|s| (s.name.as_str(), s.state)).collect();
        self.nodes
            .iter()
            .filter(|(_, least)| **least <= nodes)
            .filter_map(|(name, _)| match states.get(name.as_str()) {
                Some(State::Passed) => None,
                Some(State::Failed) => Some((name.clone(), "failed")),
                Some(State::Skipped) => Some((name.clone(), "skipped itself")),
                None => whole.then(|| (name.clone(), "did not run")),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str, state: State) -> Spec {
        Spec { name: name.into(), state, seconds: 1.0, message: String::new(), log: String::new() }
    }

    #[test]
    fn a_spec_of_the_baseline_that_failed_or_skipped_itself_is_broken() {
        let baseline = Baseline::parse("# c\n2 a\n2 b\n2 c\n3 d\n").unwrap();
        let run = [spec("a", State::Passed), spec("b", State::Failed), spec("c", State::Skipped)];
        let broken = baseline.broken(&run, 2, false);
        assert_eq!(broken, [("b".to_owned(), "failed"), ("c".to_owned(), "skipped itself")]);
    }

    #[test]
    fn what_did_not_run_is_broken_only_in_a_run_of_everything_and_only_with_enough_nodes() {
        let baseline = Baseline::parse("2 a\n3 b\n").unwrap();
        assert_eq!(baseline.broken(&[], 3, false), []);
        assert_eq!(baseline.broken(&[], 2, true), [("a".to_owned(), "did not run")]);
        assert_eq!(baseline.broken(&[], 3, true).len(), 2);
    }

    #[test]
    fn a_line_without_a_number_of_nodes_is_an_error() {
        assert!(Baseline::parse("[sig-network] x\n").is_err());
    }
}
