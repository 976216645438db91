//! The JSON document of a run. Its fields are described in docs/performance-on-your-cluster.md; a change that a reader would notice raises
//! [`FORMAT`].

use std::path::{Path as FilePath, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use traffic::report::PathSeries;
use traffic::statistics::{Estimate, Goal, Pairs, Verdict};
use traffic::{Host, Test};

use crate::paths::{Client, Path};

/// Version of the document.
pub(crate) const FORMAT: u32 = 1;
/// What tells it from other documents.
pub(crate) const KIND: &str = "slipstream-perf-tests-run";
/// Names of files in the directory of a run.
pub(crate) const FILE: &str = "run.json";
pub(crate) const REPORT: &str = "report.md";
pub(crate) const PAGE: &str = "report.html";

/// A run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Document {
    pub(crate) kind: String,
    pub(crate) format: u32,
    pub(crate) version: String,
    /// Seconds since 1970.
    pub(crate) begun: u64,
    pub(crate) seconds: u64,
    pub(crate) cluster: Cluster,
    pub(crate) method: Method,
    pub(crate) rows: Vec<Row>,
    pub(crate) not_measured: Vec<NotMeasured>,
}

/// What was measured on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cluster {
    pub(crate) kubernetes: String,
    /// Network plugin, as far as it can be told.
    pub(crate) plugin: String,
    /// What says so: DaemonSets with their images, arguments about the datapath, annotations of nodes.
    pub(crate) evidence: Vec<String>,
    /// Number of nodes in the cluster.
    pub(crate) nodes: usize,
    /// Nodes that take no pods, with the reason.
    pub(crate) passed_over: Vec<String>,
    /// The client's node, and the other one where there is one.
    pub(crate) measured: Vec<Node>,
    /// The client's machine as the traffic tool sees it.
    pub(crate) client: Option<Host>,
}

/// A node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) kernel: String,
    pub(crate) os: String,
    pub(crate) architecture: String,
    pub(crate) cpus: String,
    pub(crate) memory: String,
    pub(crate) kubelet: String,
    pub(crate) runtime: String,
    pub(crate) instance_type: Option<String>,
    pub(crate) zone: Option<String>,
}

/// How it was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Method {
    pub(crate) image: String,
    pub(crate) passes: u32,
    /// Rounds of each pass.
    pub(crate) rounds: u32,
    pub(crate) slice_ms: u64,
}

/// One path in one test.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// The path's name, with `-6` for IPv6.
    pub(crate) name: String,
    pub(crate) path: Path,
    pub(crate) is_ipv6: bool,
    pub(crate) client: Client,
    pub(crate) test: Test,
    /// The main figure: transactions, bits or datagrams a second.
    pub(crate) per_second: Option<Estimate>,
    /// Median time of a transaction, in microseconds.
    pub(crate) median_us: Option<Estimate>,
    pub(crate) sent: u64,
    pub(crate) lost: u64,
    /// Slices that were left out.
    pub(crate) disturbed: usize,
    /// Against the baseline of the same client, slice by slice.
    pub(crate) against: Option<Against>,
    /// Goals of this row.
    pub(crate) goals: Vec<Judged>,
    /// What was measured, pass by pass.
    pub(crate) passes: Vec<PathSeries>,
}

/// A ratio of two paths.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Against {
    pub(crate) name: String,
    pub(crate) pairs: Pairs,
}

/// A ratio with its goal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Judged {
    pub(crate) against: Against,
    pub(crate) goal: Goal,
    pub(crate) verdict: Verdict,
}

/// What was not measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NotMeasured {
    pub(crate) path: String,
    /// None: in no test.
    pub(crate) test: Option<Test>,
    pub(crate) reason: String,
}

impl Document {
    /// Reads a file, or that of a run's directory.
    pub(crate) fn read(path: &FilePath) -> Result<Self> {
        let path = if path.is_dir() { path.join(FILE) } else { PathBuf::from(path) };
        let at = || path.display().to_string();
        Self::parse(&std::fs::read_to_string(&path).with_context(at)?).with_context(at)
    }

    fn parse(text: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Head {
            kind: String,
            format: u32,
        }
        let head: Head =
            serde_json::from_str(text).context("no result of `run`: fields kind or format are missing")?;
        if head.kind != KIND {
            bail!("kind {:?}: must be {KIND:?}", head.kind);
        }
        if head.format != FORMAT {
            bail!("format {}: this program reads format {FORMAT}", head.format);
        }
        serde_json::from_str(text).context("no result of `run`")
    }

    /// All verdicts.
    pub(crate) fn verdicts(&self) -> impl Iterator<Item = Verdict> {
        self.rows.iter().flat_map(|row| &row.goals).map(|judged| judged.verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_documents_and_formats_are_refused() {
        let error = |text: &str| format!("{:#}", Document::parse(text).unwrap_err());
        assert!(error("{}").contains("fields kind or format"));
        assert!(error(r#"{"format": 1, "kind": "x"}"#).contains("must be \"slipstream-perf-tests-run\""));
        let other = format!(r#"{{"format": 9, "kind": "{KIND}"}}"#);
        assert!(error(&other).contains("format 9: this program reads format 1"));
    }
}
