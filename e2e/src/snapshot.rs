//! What pods leave on nodes and in databases, to compare before and after.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::ovn_kubernetes_parity as golden;
use testbed::cluster::Bed;
use testbed::exec;

/// Names of things by the place where they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot(BTreeMap<String, BTreeSet<String>>);

/// Directories of a node whose files pods may leave.
const DIRECTORIES: &[&str] = &[
    "/run/netns",
    "/run/testbed/pods",
    "/run/slipstream",
    "/var/lib/slipstream",
    "/sys/fs/bpf",
    "/etc/cni/net.d",
];

impl Snapshot {
    /// Looks everywhere.
    pub(crate) fn take(bed: &Bed) -> Result<Self> {
        let mut all = BTreeMap::new();
        all.insert("northbound database".to_owned(), northbound(bed)?);
        for node in bed.config().node_names() {
            all.insert(format!("{node}: links"), links(bed, &node)?);
            all.insert(
                format!("{node}: OVS interfaces"),
                interfaces(bed, &node)?.into_iter().map(|(n, _)| n).collect(),
            );
            let entries = bed.agent(&node).page("/debug/entries")?;
            all.insert(
                format!("{node}: interfaces in the eBPF maps"),
                BTreeSet::from([entries.trim().to_owned()]),
            );
            for directory in DIRECTORIES {
                let mut files = BTreeSet::new();
                let root = bed.host(&node).path(directory)?;
                collect(&root, &root, &mut files);
                all.insert(format!("{node}: {directory}"), files);
            }
        }
        Ok(Self(all))
    }

    /// Fails with the differences.
    pub(crate) fn equals(&self, other: &Self) -> Result<()> {
        let mut found = Vec::new();
        let empty = BTreeSet::new();
        for (place, before) in &self.0 {
            let after = other.0.get(place).unwrap_or(&empty);
            found.extend(after.difference(before).map(|x| format!("{place}: left: {x}")));
            found.extend(before.difference(after).map(|x| format!("{place}: gone: {x}")));
        }
        ensure!(
            found.is_empty(),
            "{} differences: {}",
            found.len(),
            found.iter().take(20).cloned().collect::<Vec<_>>().join("; ")
        );
        Ok(())
    }
}

fn northbound(bed: &Bed) -> Result<BTreeSet<String>> {
    let tables = golden::northbound(bed)?;
    let mut rows = BTreeSet::new();
    for (table, list) in tables.as_object().context("no tables")? {
        rows.extend(list.as_array().into_iter().flatten().map(|row| format!("{table} {row}")));
    }
    Ok(rows)
}

pub(crate) fn links(bed: &Bed, node: &str) -> Result<BTreeSet<String>> {
    let out = exec::output(bed.host(node).network_command("ip")?.args(["-o", "link"]))?;
    Ok(out
        .lines()
        .filter_map(|l| l.split(": ").nth(1))
        .map(|n| n.split('@').next().unwrap_or(n).to_owned())
        .collect())
}

/// Name and `iface-id` of every interface of a node's OVS.
pub(crate) fn interfaces(bed: &Bed, node: &str) -> Result<Vec<(String, String)>> {
    let out = bed.vsctl(node, &["--format=json", "--columns=name,external_ids", "list", "Interface"])?;
    let table: Value = serde_json::from_str(&out).context("interfaces")?;
    Ok(table["data"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|row| {
            let ids = row[1][1].as_array().into_iter().flatten();
            let id = ids.filter(|p| p[0] == "iface-id").find_map(|p| p[1].as_str()).unwrap_or_default();
            (row[0].as_str().unwrap_or_default().to_owned(), id.to_owned())
        })
        .collect())
}

/// The logical ports that are plugged in on a node, without the node's own.
pub(crate) fn pod_ports(bed: &Bed, node: &str) -> Result<Vec<String>> {
    let all = interfaces(bed, node)?;
    Ok(all.into_iter().map(|(_, id)| id).filter(|id| !id.is_empty() && !id.starts_with("k8s-")).collect())
}

/// How many logical ports a namespace's pods have.
pub(crate) fn logical_ports(bed: &Bed, namespace: &str) -> Result<usize> {
    let out = bed.nbctl(&[
        "--bare",
        "--columns=name",
        "find",
        "Logical_Switch_Port",
        &format!("external_ids:namespace={namespace}"),
    ])?;
    Ok(out.lines().filter(|l| !l.is_empty()).count())
}

fn collect(root: &Path, directory: &Path, files: &mut BTreeSet<String>) {
    // What is not there has no files.
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(root, &path, files);
        } else {
            files.insert(path.strip_prefix(root).unwrap_or(&path).display().to_string());
        }
    }
}
