//! The node's path as somebody set it, kept under `--state-dir` for the next agent.

use std::io;
use std::path::{Path, PathBuf};

use api::admin::NodePath;

/// The path cannot be kept or read.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file system refuses.
    #[error("node path in {file}: {source}")]
    Io {
        /// The file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file says something else.
    #[error("node path in {file}: {problem}")]
    Malformed {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

/// The file with the node's path.
#[derive(Debug, Clone)]
pub(super) struct Store {
    file: PathBuf,
}

impl Store {
    /// The file under `state_dir`.
    pub(super) fn new(state_dir: &Path) -> Self {
        Self { file: state_dir.join("node-path") }
    }

    /// What was set; `auto` when nothing was.
    ///
    /// # Errors
    /// The file is there and cannot be read, or says something unknown.
    pub(super) fn load(&self) -> Result<NodePath, StoreError> {
        match std::fs::read_to_string(&self.file) {
            Ok(text) => text
                .trim()
                .parse()
                .map_err(|problem| StoreError::Malformed { file: self.file.clone(), problem }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(NodePath::Auto),
            Err(source) => Err(self.failed(source)),
        }
    }

    /// Keeps it, whole or not at all.
    ///
    /// # Errors
    /// The file system refuses.
    pub(super) fn save(&self, path: NodePath) -> Result<(), StoreError> {
        let write = || {
            if let Some(directory) = self.file.parent() {
                std::fs::create_dir_all(directory)?;
            }
            let fresh = self.file.with_extension("new");
            std::fs::write(&fresh, format!("{}\n", path.name()))?;
            std::fs::rename(&fresh, &self.file)
        };
        write().map_err(|source| self.failed(source))
    }

    fn failed(&self, source: io::Error) -> StoreError {
        StoreError::Io { file: self.file.clone(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_outlives_the_agent_and_nonsense_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(&dir.path().join("state"));
        assert_eq!(store.load().unwrap(), NodePath::Auto);
        store.save(NodePath::Ovs).unwrap();
        assert_eq!(Store::new(&dir.path().join("state")).load().unwrap(), NodePath::Ovs);
        std::fs::write(dir.path().join("state/node-path"), "fast").unwrap();
        assert!(store.load().unwrap_err().to_string().contains("path `fast`"));
    }
}
