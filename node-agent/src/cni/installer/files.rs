//! The two files used by the container runtime: plugin executable and network configuration.

use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::json;

use crate::cni::installer::configurations::{CONF, EXECUTABLE, NETWORK};
use crate::cni::installer::in_use::InUse;
use crate::cni::installer::multus::Multus;
use crate::kernel::atomic_file::write_atomically;

/// Version of the CNI specification in the configuration, with which runtimes make every call that there is.
const VERSION: &str = "1.1.0";
/// The one for Multus, which cannot take a default route out of a result of a later version (4.2.3, `DeleteDefaultGWCache`).
const VERSION_FOR_MULTUS: &str = "1.0.0";

/// Expected content of both files.
#[derive(Debug, Clone)]
pub struct Files {
    executable: Option<File>,
    /// Directory of the runtime's configurations.
    configurations: PathBuf,
    socket: PathBuf,
    /// Whether one of them is ours; otherwise another plugin has the cluster's network.
    default_network: bool,
}

/// Expected content of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// `executable` or `configuration`.
    pub what: &'static str,
    /// Path of the file.
    pub path: PathBuf,
    bytes: Vec<u8>,
    mode: u32,
}

impl Files {
    /// Reads the plugin executable from the directory of the agent's executable, once.
    /// Without `default_network` the executable is all.
    ///
    /// # Errors
    /// The path of the agent's own executable is not known, or the plugin's cannot be read.
    pub fn new(
        bin_dir: &Path,
        conf_dir: &Path,
        socket: &Path,
        default_network: bool,
    ) -> anyhow::Result<Self> {
        let own = std::env::current_exe().context("path of the agent's own executable")?;
        let source = own.with_file_name(EXECUTABLE);
        let target = bin_dir.join(EXECUTABLE);
        let executable = match source == target {
            true => None,
            false => {
                let bytes = std::fs::read(&source).with_context(|| format!("read {}", source.display()))?;
                Some(File { what: "executable", path: target, bytes, mode: 0o755 })
            }
        };
        Ok(Self {
            executable,
            configurations: conf_dir.to_owned(),
            socket: socket.to_owned(),
            default_network,
        })
    }

    /// Only the configuration file.
    #[cfg(test)]
    pub(super) fn configuration_only(conf_dir: &Path, socket: &Path) -> Self {
        Self {
            executable: None,
            configurations: conf_dir.to_owned(),
            socket: socket.to_owned(),
            default_network: true,
        }
    }

    /// Writes missing or differing files; returns those written.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn put_right(&self) -> anyhow::Result<Vec<File>> {
        let mut written = Vec::new();
        // The configuration comes last, as the runtime calls the plugin once it exists.
        for file in self.executable.clone().into_iter().chain(self.configuration()) {
            if !file.is_right() {
                write_atomically(&file.path, &file.bytes, file.mode)
                    .with_context(|| format!("write {}", file.path.display()))?;
                written.push(file);
            }
        }
        Ok(written)
    }

    /// The configuration as it is to be now; none where another plugin has the cluster's network.
    fn configuration(&self) -> Option<File> {
        // A directory that cannot be read is told when the file cannot be written.
        let multus = Multus::in_use(&self.configurations).unwrap_or_default();
        let version = if multus.is_some() { VERSION_FOR_MULTUS } else { VERSION };
        self.default_network.then(|| configuration(&self.configurations, &self.socket, version))
    }

    /// Removes the configuration of an agent that had the cluster's network, where another plugin has it now. True if there was one.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn remove_outdated(&self) -> anyhow::Result<bool> {
        if self.default_network {
            return Ok(false);
        }
        let path = self.configurations.join(CONF);
        match std::fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error).with_context(|| format!("remove {}", path.display())),
        }
    }

    /// Directories of the files, and that of the runtime's configurations.
    pub fn directories(&self) -> impl Iterator<Item = &Path> {
        let executable = self.executable.iter().filter_map(|file| file.path.parent());
        executable.chain([self.configurations.as_path()])
    }

    /// What the runtime's configurations are.
    ///
    /// # Errors
    /// Their directory cannot be read.
    pub fn in_use(&self) -> io::Result<InUse> {
        InUse::look(&self.configurations, self.default_network)
    }

    /// Whether one of the files has this name.
    pub fn has_name(&self, name: &OsStr) -> bool {
        let is = |file: &File| file.path.file_name() == Some(name);
        name == CONF || self.executable.as_ref().is_some_and(is)
    }
}

impl File {
    fn is_right(&self) -> bool {
        // Unreadable files are written again.
        let Ok(there) = std::fs::symlink_metadata(&self.path) else { return false };
        let same = there.is_file()
            && there.permissions().mode() & 0o7777 == self.mode
            && there.len() == u64::try_from(self.bytes.len()).unwrap_or(u64::MAX);
        same && std::fs::read(&self.path).is_ok_and(|bytes| bytes == self.bytes)
    }
}

fn configuration(conf_dir: &Path, socket: &Path, version: &str) -> File {
    let conf = json!({
        "cniVersion": version,
        "name": NETWORK,
        "type": EXECUTABLE,
        "socket": socket,
    });
    let bytes = format!("{conf}\n").into_bytes();
    File { what: "configuration", path: conf_dir.join(CONF), bytes, mode: 0o644 }
}

/// Removes configuration and executable; missing files are ignored. Returns all errors.
pub fn uninstall(conf_dir: &Path, bin_dir: &Path) -> Vec<anyhow::Error> {
    let files = [conf_dir.join(CONF), bin_dir.join(EXECUTABLE)];
    let remove = |file: PathBuf| match std::fs::remove_file(&file) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            Some(anyhow::Error::new(e).context(format!("remove {}", file.display())))
        }
        _ => None,
    };
    files.into_iter().filter_map(remove).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(dir: &Path, socket: &str) -> Files {
        let executable = File {
            what: "executable",
            path: dir.join("bin").join(EXECUTABLE),
            bytes: b"#!program".to_vec(),
            mode: 0o755,
        };
        let (configurations, socket) = (dir.join("conf"), socket.into());
        Files { executable: Some(executable), configurations, socket, default_network: true }
    }

    fn written(files: &Files) -> Vec<&'static str> {
        files.put_right().unwrap().iter().map(|file| file.what).collect()
    }

    #[test]
    fn the_configuration_names_version_type_and_socket_and_nothing_else_is_left() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(written(&files(dir.path(), "/run/x.sock")), ["executable", "configuration"]);
        assert_eq!(written(&files(dir.path(), "/run/y.sock")), ["configuration"]);
        let (bin, conf) = (dir.path().join("bin"), dir.path().join("conf"));
        let text = std::fs::read_to_string(conf.join(CONF)).unwrap();
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        let want = json!({ "cniVersion": "1.1.0", "name": "slipstream", "type": "slipstream-cni", "socket": "/run/y.sock" });
        assert_eq!(read, want);
        assert_eq!(std::fs::read_dir(&conf).unwrap().count(), 1);
        assert!(uninstall(&conf, &bin).is_empty());
        assert!(uninstall(&conf, &bin).is_empty());
        assert_eq!(std::fs::read_dir(&conf).unwrap().count(), 0);
    }

    #[test]
    fn only_what_somebody_changed_is_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path(), "/run/x.sock");
        written(&files);
        assert!(written(&files).is_empty());
        let (executable, conf) =
            (&files.executable.as_ref().unwrap().path, &dir.path().join("conf").join(CONF));
        std::fs::write(conf, "{").unwrap();
        assert_eq!(written(&files), ["configuration"]);
        std::fs::remove_file(executable).unwrap();
        assert_eq!(written(&files), ["executable"]);
        std::fs::set_permissions(executable, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(written(&files), ["executable"]);
        std::fs::remove_file(conf).unwrap();
        std::os::unix::fs::symlink(executable, conf).unwrap();
        assert_eq!(written(&files), ["configuration"]);
        assert_eq!(std::fs::read(executable).unwrap(), b"#!program");
        std::fs::remove_dir_all(dir.path().join("conf")).unwrap();
        assert_eq!(written(&files), ["configuration"]);
        assert!(written(&files).is_empty());
    }

    #[test]
    fn the_version_is_one_that_multus_can_change_while_multus_is_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path(), "/run/x.sock");
        let version = || {
            let text = std::fs::read_to_string(dir.path().join("conf").join(CONF)).unwrap();
            serde_json::from_str::<serde_json::Value>(&text).unwrap()["cniVersion"].clone()
        };
        written(&files);
        assert_eq!(version(), "1.1.0");
        let multus = dir.path().join("conf/00-multus.conf");
        std::fs::write(&multus, r#"{"type": "multus"}"#).unwrap();
        assert_eq!((written(&files), version()), (vec!["configuration"], json!("1.0.0")));
        assert!(written(&files).is_empty());
        std::fs::remove_file(&multus).unwrap();
        assert_eq!((written(&files), version()), (vec!["configuration"], json!("1.1.0")));
    }

    #[test]
    fn where_another_plugin_has_the_clusters_network_there_is_no_configuration_of_ours() {
        let dir = tempfile::tempdir().unwrap();
        let default = files(dir.path(), "/run/x.sock");
        written(&default);
        let secondary = Files { default_network: false, ..default };
        assert!(written(&secondary).is_empty());
        assert!(secondary.remove_outdated().unwrap() && !secondary.remove_outdated().unwrap());
        assert_eq!(std::fs::read_dir(dir.path().join("conf")).unwrap().count(), 0);
        assert!(secondary.directories().any(|watched| watched == dir.path().join("conf")));
    }

    #[test]
    fn a_file_in_the_way_of_the_directory_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("conf"), "").unwrap();
        let error = files(dir.path(), "/x").put_right().unwrap_err();
        assert!(format!("{error:#}").contains(CONF), "{error:#}");
    }
}
