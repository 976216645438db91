//! Control groups: every cluster has a directory of its own in each hierarchy, and in it one for each node, which
//! its kubelet takes for the root.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use crate::exec;

const ROOT: &str = "/sys/fs/cgroup";

/// The path for the kubelet's configuration: relative to the root of each hierarchy.
#[must_use]
pub fn node_root(cluster: &str, node: &str) -> String {
    format!("/{}/{node}", directory(cluster))
}

fn directory(cluster: &str) -> String {
    format!("slipstream-bed-{cluster}")
}

/// The mounted hierarchies: one with version 2, else each controller's.
fn hierarchies() -> Vec<PathBuf> {
    let root = Path::new(ROOT);
    if root.join("cgroup.controllers").exists() {
        return vec![root.to_path_buf()];
    }
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    // Links are other names of hierarchies with several controllers.
    entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()).collect()
}

/// Makes the directories of a node.
pub fn create(cluster: &str, node: &str) -> Result<()> {
    for hierarchy in hierarchies() {
        let cluster_dir = hierarchy.join(directory(cluster));
        let node_dir = cluster_dir.join(node);
        fs::create_dir_all(&node_dir).with_context(|| format!("cannot create {}", node_dir.display()))?;
        if hierarchy.join("cpuset.cpus").exists() {
            // A new cpuset of version 1 has neither cores nor memory, and nothing can run in it.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                let all = fs::read_to_string(hierarchy.join(file))?;
                for dir in [&cluster_dir, &node_dir] {
                    fs::write(dir.join(file), all.trim())
                        .with_context(|| format!("{file} of {}", dir.display()))?;
                }
            }
        }
        if hierarchy == Path::new(ROOT) {
            for dir in [&hierarchy, &cluster_dir, &node_dir] {
                delegate(dir);
            }
        }
    }
    Ok(())
}

/// Version 2: lets children have the controllers that `dir` has. What cannot be had, the kubelet will name.
fn delegate(dir: &Path) {
    let controllers = fs::read_to_string(dir.join("cgroup.controllers")).unwrap_or_default();
    for controller in controllers.split_whitespace() {
        // One at a time: a single rejected controller must not prevent the others.
        let _ = fs::write(dir.join("cgroup.subtree_control"), format!("+{controller}"));
    }
}

/// Removes what is there of a cluster, or of one of its nodes. Their processes must have ended.
pub fn remove(cluster: &str, node: Option<&str>) -> Result<()> {
    exec::retry(Duration::from_secs(10), "the cluster's control groups go", || {
        let trees = trees(cluster, node);
        trees.iter().for_each(|tree| remove_tree(tree));
        match trees.iter().find(|tree| tree.exists()) {
            None => Ok(()),
            Some(tree) => Err(anyhow!("{} is still there", tree.display())),
        }
    })
}

fn trees(cluster: &str, node: Option<&str>) -> Vec<PathBuf> {
    let tree = |hierarchy: PathBuf| hierarchy.join(directory(cluster)).join(node.unwrap_or_default());
    hierarchies().into_iter().map(tree).filter(|tree| tree.exists()).collect()
}

/// Deepest first, as only empty ones go. What is left is looked for afterwards.
fn remove_tree(tree: &Path) {
    for entry in fs::read_dir(tree).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            remove_tree(&entry.path());
        }
    }
    match fs::remove_dir(tree) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            tracing::debug!("{}: {error}", tree.display());
        }
        _ => {}
    }
}

/// The directories that are still there.
#[must_use]
pub fn leftovers(cluster: &str) -> Vec<String> {
    trees(cluster, None).into_iter().map(|tree| format!("control group {}", tree.display())).collect()
}
