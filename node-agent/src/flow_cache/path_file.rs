//! Requested path of the node (`slipctl path node`), persisted under `--state-dir` across restarts of the agent.

use std::io;
use std::path::{Path, PathBuf};

use api::admin::NodePath;

/// A file with requested paths cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// I/O error.
    #[error("requested path in {file}: {source}")]
    Io {
        /// Path of the file.
        file: PathBuf,
        /// Error of the file system.
        source: io::Error,
    },
    /// Unknown content.
    #[error("requested path in {file}: {problem}")]
    Malformed {
        /// Path of the file.
        file: PathBuf,
        /// The error, with the accepted values.
        problem: String,
    },
}

/// File `node-path` with the requested path of the node.
#[derive(Debug, Clone)]
pub(super) struct Store {
    file: PathBuf,
}

impl Store {
    /// The file under `state_dir`.
    pub(super) fn new(state_dir: &Path) -> Self {
        Self { file: state_dir.join("node-path") }
    }

    /// Reads the requested path; `auto` when the file does not exist.
    ///
    /// # Errors
    /// The file exists and cannot be read, or its content is unknown.
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

    /// Writes the requested path atomically (write to `node-path.new`, then rename).
    ///
    /// # Errors
    /// The file cannot be written or renamed.
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
