//! Services that are kept off the flow cache (`slipctl path service`), persisted under `--state-dir` across restarts of the agent.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::path::PathBuf;

use api::NamespacedName;

use crate::flow_cache::path_file::StoreError;

/// File `service-paths`: the services whose path is `ovs`, one NAMESPACE/NAME a line.
#[derive(Debug, Clone)]
pub(super) struct ServiceFile {
    file: PathBuf,
}

impl ServiceFile {
    /// The file under `state_dir`.
    pub(super) fn new(state_dir: &Path) -> Self {
        Self { file: state_dir.join("service-paths") }
    }

    /// Reads the services; none when the file does not exist.
    ///
    /// # Errors
    /// The file exists and cannot be read, or a line is no name.
    pub(super) fn load(&self) -> Result<BTreeSet<NamespacedName>, StoreError> {
        match std::fs::read_to_string(&self.file) {
            Ok(text) => {
                let names = text.lines().map(str::parse).collect::<Result<_, _>>();
                names.map_err(|problem| StoreError::Malformed { file: self.file.clone(), problem })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
            Err(source) => Err(self.failed(source)),
        }
    }

    /// Writes the services atomically (write to `service-paths.new`, then rename).
    ///
    /// # Errors
    /// The file cannot be written or renamed.
    pub(super) fn save(&self, names: &BTreeSet<NamespacedName>) -> Result<(), StoreError> {
        let write = || {
            if let Some(directory) = self.file.parent() {
                std::fs::create_dir_all(directory)?;
            }
            let fresh = self.file.with_extension("new");
            std::fs::write(&fresh, names.iter().map(|name| format!("{name}\n")).collect::<String>())?;
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
    fn services_outlive_the_agent_and_nonsense_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = || ServiceFile::new(&dir.path().join("state"));
        assert_eq!(file().load().unwrap(), BTreeSet::new());
        let names: BTreeSet<_> = ["db", "web"].map(|name| NamespacedName::new("shop", name)).into();
        file().save(&names).unwrap();
        assert_eq!(file().load().unwrap(), names);
        file().save(&BTreeSet::new()).unwrap();
        assert_eq!(file().load().unwrap(), BTreeSet::new());
        std::fs::write(dir.path().join("state/service-paths"), "shop/web\nfast\n").unwrap();
        let error = file().load().unwrap_err().to_string();
        assert!(error.contains("service-paths") && error.contains("`fast`"), "{error}");
    }
}
