//! What a node keeps about its pods, in files: enough to manage them again, or to remove them, after it was killed.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::host::identity::Identity;

/// Where the records are, inside the node.
pub const DIRECTORY: &str = "/run/testbed/pods";

/// One pod. Written before anything of it is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodRecord {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    /// Id of the pod's sandbox, as a runtime would make it up.
    pub sandbox: String,
    /// Path of its network namespace; none for a pod in the node's network.
    pub netns: Option<String>,
    /// Set when ADD has succeeded.
    pub addresses: Vec<String>,
    /// The server that answers on the pod's ports.
    pub server: Option<Identity>,
}

impl PodRecord {
    fn path(directory: &Path, uid: &str) -> PathBuf {
        directory.join(format!("{uid}.json"))
    }

    /// Writes the record, completely or not at all.
    pub fn save(&self, directory: &Path) -> Result<()> {
        fs::create_dir_all(directory)?;
        let path = Self::path(directory, &self.uid);
        let fresh = path.with_extension("new");
        fs::write(&fresh, serde_json::to_vec(self)?)?;
        fs::rename(&fresh, &path).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Removes the record.
    pub fn remove(&self, directory: &Path) -> Result<()> {
        let path = Self::path(directory, &self.uid);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", path.display()))
            }
            _ => Ok(()),
        }
    }

    /// All records. One that is removed while they are read is not among them.
    pub fn all(directory: &Path) -> Result<Vec<Self>> {
        fs::create_dir_all(directory)?;
        let mut records = Vec::new();
        for entry in fs::read_dir(directory)?.flatten() {
            if entry.path().extension().is_some_and(|e| e == "json") {
                let text = match fs::read(entry.path()) {
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                    read => read.with_context(|| format!("record {:?}", entry.file_name()))?,
                };
                let record = serde_json::from_slice(&text)
                    .with_context(|| format!("record {:?}", entry.file_name()))?;
                records.push(record);
            }
        }
        Ok(records)
    }

    /// The record of a pod by name; the one with addresses, if a pod of that name is just being replaced.
    pub fn find(directory: &Path, namespace: &str, name: &str) -> Result<Self> {
        let mut matching: Vec<_> = Self::all(directory)?
            .into_iter()
            .filter(|r| r.namespace == namespace && r.name == name)
            .collect();
        matching.sort_by_key(|r| r.addresses.is_empty());
        matching.into_iter().next().context("no record")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(uid: &str, addresses: &[&str]) -> PodRecord {
        PodRecord {
            uid: uid.into(),
            namespace: "ns".into(),
            name: "pod".into(),
            sandbox: "s".into(),
            netns: None,
            addresses: addresses.iter().map(|&a| a.into()).collect(),
            server: None,
        }
    }

    #[test]
    fn the_record_with_an_address_is_the_running_pod() {
        let dir = tempfile::tempdir().unwrap();
        record("1", &[]).save(dir.path()).unwrap();
        record("2", &["10.0.0.1"]).save(dir.path()).unwrap();
        assert_eq!(PodRecord::find(dir.path(), "ns", "pod").unwrap().uid, "2");
        assert!(PodRecord::find(dir.path(), "ns", "other").is_err());
    }

    #[test]
    fn a_removed_record_may_be_removed_again() {
        let dir = tempfile::tempdir().unwrap();
        let r = record("1", &[]);
        r.save(dir.path()).unwrap();
        r.remove(dir.path()).unwrap();
        r.remove(dir.path()).unwrap();
        assert!(PodRecord::all(dir.path()).unwrap().is_empty());
    }
}
