//! What the archive was made from, so that it is made again when that changes.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The recipe is code: a change of it is a change of the input.
const RECIPE: &[&str] = &[
    include_str!("catalogue.rs"),
    oci_image::RECIPE,
    include_str!("libraries.rs"),
    include_str!("mod.rs"),
    include_str!("names.rs"),
    include_str!("userland.rs"),
];
const FILE: &str = ".inputs.json";

/// The inputs of the archive.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    recipe: String,
    files: BTreeMap<PathBuf, State>,
}

/// Enough of a file to see that it was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    bytes: u64,
    /// Modification time, in seconds and nanoseconds.
    changed: (i64, i64),
}

impl Record {
    pub(super) fn new() -> Self {
        Self { recipe: recipe(), files: BTreeMap::new() }
    }

    /// Takes a file down as an input.
    pub(super) fn note(&mut self, path: &Path) -> Result<()> {
        let state = State::of(path).with_context(|| format!("cannot read {}", path.display()))?;
        self.files.insert(path.to_path_buf(), state);
        Ok(())
    }

    /// Whether the record in the directory fits this program and the machine's files.
    pub(super) fn is_current(directory: &Path) -> bool {
        let Ok(text) = fs::read_to_string(directory.join(FILE)) else { return false };
        let Ok(record) = serde_json::from_str::<Self>(&text) else { return false };
        record.recipe == recipe()
            && record.files.iter().all(|(path, state)| State::of(path).ok() == Some(*state))
    }

    /// Writes it; the last thing that is done.
    pub(super) fn save(&self, directory: &Path) -> Result<()> {
        let path = directory.join(FILE);
        fs::write(&path, serde_json::to_vec_pretty(self)?)
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

impl State {
    fn of(path: &Path) -> std::io::Result<Self> {
        let meta = fs::metadata(path)?;
        Ok(Self { bytes: meta.len(), changed: (meta.mtime(), meta.mtime_nsec()) })
    }
}

fn recipe() -> String {
    let mut hash = Sha256::new();
    for text in RECIPE {
        hash.update(text);
    }
    format!("{:x}", hash.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_current_until_an_input_changes_or_goes() {
        let dir = tempfile::tempdir().unwrap();
        let input = dir.path().join("input");
        fs::write(&input, "1").unwrap();
        assert!(!Record::is_current(dir.path()), "there is no record yet");
        let mut record = Record::new();
        record.note(&input).unwrap();
        record.save(dir.path()).unwrap();
        assert!(Record::is_current(dir.path()));
        fs::write(&input, "12").unwrap();
        assert!(!Record::is_current(dir.path()));
        fs::remove_file(&input).unwrap();
        assert!(!Record::is_current(dir.path()));
    }

    #[test]
    fn a_damaged_record_is_not_current() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(FILE), "{").unwrap();
        assert!(!Record::is_current(dir.path()));
    }
}
