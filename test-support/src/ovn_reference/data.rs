//! What the reference run left, and the objects it was made with.

use anyhow::{Context, Result};
use serde_json::Value;

/// A state of the cluster that was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Two nodes.
    Nodes,
    /// Pods on them.
    Pods,
    /// Services of those.
    Services,
    /// Network policies.
    Policies,
}

impl Stage {
    /// In their order; each needs those before it.
    pub const ALL: [Self; 4] = [Self::Nodes, Self::Pods, Self::Services, Self::Policies];

    /// As in the list of differences.
    #[must_use]
    pub fn name(self) -> &'static str {
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
            include_str!(concat!("../../reference/1-nodes/", $file)),
            include_str!(concat!("../../reference/2-pods/", $file)),
            include_str!(concat!("../../reference/3-services/", $file)),
            include_str!(concat!("../../reference/4-policies/", $file)),
        ]
    };
}

const NORTHBOUND: [&str; 4] = files!("nb.json");
const ANNOTATIONS: [&str; 4] = files!("annotations.json");
const N1: [&str; 4] = files!("node-n1.txt");
const N2: [&str; 4] = files!("node-n2.txt");

/// The objects of the stage of pods: namespaces.
pub const NAMESPACES: &str = include_str!("../../reference/objects/10-namespaces.yaml");
/// The objects of the stage of pods.
pub const PODS: &str = include_str!("../../reference/objects/20-pods.yaml");
/// The objects of the stage of services.
pub const SERVICES: &str = include_str!("../../reference/objects/30-services.yaml");
/// The objects of the stage of policies.
pub const POLICIES: &str = include_str!("../../reference/objects/40-policies.yaml");
/// The reviewed list of deliberate differences.
pub(super) const DIFFERENCES: &str = include_str!("../../reference/differences.json");

fn index(stage: Stage) -> usize {
    Stage::ALL.iter().position(|s| *s == stage).unwrap_or(0)
}

/// The northbound database: table to rows.
///
/// # Errors
/// The reference is damaged.
pub fn northbound(stage: Stage) -> Result<Value> {
    serde_json::from_str(NORTHBOUND[index(stage)])
        .with_context(|| format!("reference database of {}", stage.name()))
}

/// Annotations in the form that [`compare`](super::compare::compare) takes: kind to rows with a name.
///
/// # Errors
/// The reference is damaged.
pub fn annotations(stage: Stage) -> Result<Value> {
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
///
/// # Errors
/// The reference has no such node.
pub fn node_state(stage: Stage, node: &str) -> Result<&'static str> {
    match node {
        "n1" => Ok(N1[index(stage)]),
        "n2" => Ok(N2[index(stage)]),
        _ => anyhow::bail!("the reference has no node {node}"),
    }
}

/// Packet checks of the reference, and what came of them there.
pub const PACKETS: &str = include_str!("../../reference/verify.txt");
