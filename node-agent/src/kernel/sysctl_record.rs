//! Record of kernel settings that the agent changed, with the values that they had, so that `cleanup --all` can put them back.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::kernel::atomic_file::write_atomically;

/// Name of the file in the state directory.
const FILE: &str = "sysctls.json";

/// A setting that was changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Change {
    before: String,
    set: String,
}

type Changes = BTreeMap<PathBuf, Change>;

/// File of the record of this process, if there is one.
static RECORD: OnceLock<PathBuf> = OnceLock::new();
/// One writer at a time.
static WRITING: Mutex<()> = Mutex::new(());

/// Records changes in this state directory from now on. Later calls have no effect.
pub fn keep_in(state_dir: &Path) {
    let _ = RECORD.set(state_dir.join(FILE));
}

/// Writes a setting, and before that its present value into the record.
///
/// # Errors
/// The setting or the record cannot be read or written.
pub fn change(path: &Path, value: &str) -> io::Result<()> {
    match RECORD.get() {
        Some(record) => change_in(record, path, value),
        None => std::fs::write(path, value),
    }
}

fn change_in(record: &Path, path: &Path, value: &str) -> io::Result<()> {
    let _writing = WRITING.lock();
    let now = std::fs::read_to_string(path)?.trim_end().to_owned();
    let mut changes = load(record)?;
    let change = changes.entry(path.to_owned()).or_insert(Change { before: now, set: String::new() });
    if change.set != value {
        value.clone_into(&mut change.set);
        write_atomically(record, &serde_json::to_vec_pretty(&changes)?, 0o600)?;
    }
    std::fs::write(path, value)
}

/// Puts back what is recorded, except what others have changed since, or what is gone, such as an interface. Removes the record.
///
/// # Errors
/// The record cannot be read or removed, or settings cannot be written; the others are put back all the same.
pub fn restore(state_dir: &Path) -> io::Result<()> {
    let record = state_dir.join(FILE);
    let mut failed = Vec::new();
    for (path, Change { before, set }) in load(&record)? {
        let is_ours = std::fs::read_to_string(&path).is_ok_and(|now| now.trim_end() == set);
        if is_ours && let Err(error) = std::fs::write(&path, before) {
            failed.push(format!("{}: {error}", path.display()));
        }
    }
    if !failed.is_empty() {
        return Err(io::Error::other(failed.join("; ")));
    }
    match std::fs::remove_file(&record) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn load(record: &Path) -> io::Result<Changes> {
    match std::fs::read(record) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Changes::default()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_put_back_unless_somebody_else_changed_them() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name);
        let record = file(FILE);
        for name in ["a", "b", "c"] {
            std::fs::write(file(name), "1\n").unwrap();
            change_in(&record, &file(name), "2").unwrap();
        }
        change_in(&record, &file("a"), "3").unwrap();
        std::fs::write(file("b"), "9").unwrap();
        std::fs::remove_file(file("c")).unwrap();
        restore(dir.path()).unwrap();
        assert_eq!(std::fs::read_to_string(file("a")).unwrap(), "1", "the value before all changes");
        assert_eq!(std::fs::read_to_string(file("b")).unwrap(), "9", "not ours any more");
        assert!(!file("c").exists() && !record.exists());
        restore(dir.path()).unwrap();
    }
}
