//! Whether the metrics named in documents are registered.

use std::collections::BTreeSet;

use anyhow::{Context, Result};

use super::tree::Tree;
use crate::paths;

/// Prefix of a program's metrics, and the directory of its sources.
const PROGRAMS: &[(&str, &str)] =
    &[("slipstream_node_", "node-agent/src/"), ("slipstream_controller_", "controller/src/")];

/// The string literals in the programs' sources that may be the name of a metric, with the program's prefix.
#[derive(Debug, Default)]
pub(super) struct Metrics(BTreeSet<String>);

impl Metrics {
    /// Reads the sources.
    pub(super) fn read(tree: &Tree) -> Result<Self> {
        let mut names = BTreeSet::new();
        for (prefix, directory) in PROGRAMS {
            for file in tree.files().filter(|f| f.starts_with(directory) && f.ends_with(".rs")) {
                let text =
                    std::fs::read_to_string(paths::root().join(file)).with_context(|| file.to_owned())?;
                names.extend(literals(&text).map(|name| format!("{prefix}{name}")));
            }
        }
        Ok(Self(names))
    }

    /// The problem with a code span, if it is a metric's full name, with or without labels.
    pub(super) fn problem(&self, text: &str) -> Option<String> {
        let name = text.split('{').next().unwrap_or(text);
        let ours = PROGRAMS.iter().any(|(prefix, _)| name.starts_with(prefix));
        let complete = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        // The library appends `_total` to the names of counters.
        let registered = name.strip_suffix("_total").unwrap_or(name);
        let known = self.0.contains(registered) || name.ends_with('_');
        (ours && complete && !known).then(|| format!("no program registers the metric {name}"))
    }
}

fn literals(text: &str) -> impl Iterator<Item = &str> {
    text.split('"').filter(|s| {
        !s.is_empty() && s.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_registered_by_its_name_without_prefix_and_total() {
        let source = r#"registry.register("path_changes", "Changes of the path", x.clone())"#;
        let metrics = Metrics(literals(source).map(|n| format!("slipstream_node_{n}")).collect());
        for good in [
            "slipstream_node_path_changes_total{path=\"ovs\"}",
            "slipstream_node_path_changes",
            "slipstream_node_",
            "kube_pod_info",
            "slipstream_node_*",
        ] {
            assert_eq!(metrics.problem(good), None, "{good}");
        }
        assert!(metrics.problem("slipstream_node_gone_total").is_some());
        assert!(metrics.problem("slipstream_controller_path_changes").is_some(), "of the other program");
    }
}
