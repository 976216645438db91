//! What the reference run left, and the objects it was made with.

use anyhow::{Context, Result};
use serde_json::Value;

/// A state of the cluster that was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Nodes,
    Pods,
    Services,
    Policies,
}

impl Stage {
    pub(super) const ALL: [Self; 4] = [Self::Nodes, Self::Pods, Self::Services, Self::Policies];

    /// As in the list of differences.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Nodes => "1-nodes",
            Self::Pods => "2-pods",
            Self::Services => "3-services",
            Self::Policies => "4-policies",
        }
    }
}

/// The files of one stage, by macro since their names must be known when compiling.
macro_rules! files {
    ($file:literal) => {
        [
            include_str!(concat!("../../../testbed/golden/1-nodes/", $file)),
            include_str!(concat!("../../../testbed/golden/2-pods/", $file)),
            include_str!(concat!("../../../testbed/golden/3-services/", $file)),
            include_str!(concat!("../../../testbed/golden/4-policies/", $file)),
        ]
    };
}

const NORTHBOUND: [&str; 4] = files!("nb.json");
const ANNOTATIONS: [&str; 4] = files!("annotations.json");
const N1: [&str; 4] = files!("node-n1.txt");
const N2: [&str; 4] = files!("node-n2.txt");

pub(super) const NAMESPACES: &str = include_str!("../../../testbed/golden/objects/10-namespaces.yaml");
pub(super) const PODS: &str = include_str!("../../../testbed/golden/objects/20-pods.yaml");
pub(super) const SERVICES: &str = include_str!("../../../testbed/golden/objects/30-services.yaml");
pub(super) const POLICIES: &str = include_str!("../../../testbed/golden/objects/40-policies.yaml");
pub(super) const DIFFERENCES: &str = include_str!("../../../testbed/golden/differences.json");

fn index(stage: Stage) -> usize {
    Stage::ALL.iter().position(|s| *s == stage).unwrap_or(0)
}

/// The northbound database: table to rows.
pub(super) fn northbound(stage: Stage) -> Result<Value> {
    serde_json::from_str(NORTHBOUND[index(stage)])
        .with_context(|| format!("reference database of {}", stage.name()))
}

/// Annotations in the form that [`compare`](super::compare::compare) takes: kind to rows with a name.
pub(super) fn annotations(stage: Stage) -> Result<Value> {
    let kept: Value = serde_json::from_str(ANNOTATIONS[index(stage)])
        .with_context(|| format!("reference annotations of {}", stage.name()))?;
    let mut tables = serde_json::Map::new();
    for kind in ["nodes", "pods", "namespaces"] {
        let rows: Vec<Value> = kept[kind]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, object)| {
                let mut row = object["annotations"].as_object().cloned().unwrap_or_default();
                row.insert("_name".into(), name.clone().into());
                Value::Object(row)
            })
            .collect();
        tables.insert(format!("annotations of {kind}"), Value::Array(rows));
    }
    Ok(Value::Object(tables))
}

/// Everything that was kept about a node.
pub(super) fn node_state(stage: Stage, node: &str) -> Result<&'static str> {
    match node {
        "n1" => Ok(N1[index(stage)]),
        "n2" => Ok(N2[index(stage)]),
        _ => anyhow::bail!("the reference has no node {node}"),
    }
}
