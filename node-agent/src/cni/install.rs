//! The two files by which the container runtime finds us: the executable and the network configuration.

use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::json;

/// Name of the executable, and the configuration's `type`.
pub const EXECUTABLE: &str = "slipstream-cni";
/// Name of the configuration file. Runtimes take the first by name.
pub const CONF: &str = "10-slipstream.conf";

/// Copies the executable from the agent's own directory. By rename, so that a runtime never runs half of it.
pub fn install_executable(bin_dir: &Path) -> anyhow::Result<()> {
    let own = std::env::current_exe().context("path of the agent's own executable")?;
    let source = own.with_file_name(EXECUTABLE);
    let target = bin_dir.join(EXECUTABLE);
    if source == target {
        return Ok(());
    }
    let bytes = std::fs::read(&source).with_context(|| format!("read {}", source.display()))?;
    write_atomically(&target, &bytes, 0o755).with_context(|| format!("install {}", target.display()))
}

/// Writes the configuration: from now on the runtime calls us.
pub fn write_conf(conf_dir: &Path, socket: &Path) -> anyhow::Result<()> {
    let conf = json!({
        "cniVersion": "1.1.0",
        "name": "slipstream",
        "type": EXECUTABLE,
        "socket": socket,
    });
    let target = conf_dir.join(CONF);
    write_atomically(&target, format!("{conf}\n").as_bytes(), 0o644)
        .with_context(|| format!("write {}", target.display()))
}

/// Removes the configuration and the executable; `Ok` when they are not there.
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

/// Writes a file so that readers see the old one or the new one, never a part, also after a crash.
pub fn write_atomically(target: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let directory = target.parent().ok_or_else(|| io::Error::other("a file name is needed"))?;
    std::fs::create_dir_all(directory)?;
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    // Runtimes go by the ending: a name with another one is not taken for a configuration.
    let new = directory.join(format!(".{name}.{}", std::process::id()));
    let write = || {
        let mut file = std::fs::File::create(&new)?;
        file.write_all(bytes)?;
        file.set_permissions(std::fs::Permissions::from_mode(mode))?;
        file.sync_all()?;
        std::fs::rename(&new, target)
    };
    write().inspect_err(|_| drop(std::fs::remove_file(&new)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_names_version_type_and_socket_and_nothing_else_is_left() {
        let dir = tempfile::tempdir().unwrap();
        write_conf(dir.path(), Path::new("/run/x.sock")).unwrap();
        write_conf(dir.path(), Path::new("/run/y.sock")).unwrap();
        let text = std::fs::read_to_string(dir.path().join(CONF)).unwrap();
        let conf: serde_json::Value = serde_json::from_str(&text).unwrap();
        let want = json!({ "cniVersion": "1.1.0", "name": "slipstream", "type": "slipstream-cni", "socket": "/run/y.sock" });
        assert_eq!(conf, want);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(uninstall(dir.path(), dir.path()).is_empty());
        assert!(uninstall(dir.path(), dir.path()).is_empty());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_directory_in_the_way_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        let error = write_conf(&dir.path().join("file"), Path::new("/x")).unwrap_err();
        assert!(format!("{error:#}").contains(CONF), "{error:#}");
    }
}
