//! The one setting of the machine that real nodes need changed, and putting it back. Several clusters may run at
//! once: the first one keeps what was there, the last one puts it back.
//!
//! All of it is kept where a reboot of the machine clears it, as that clears the setting too.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Instances of inotify that one user may have: a kubelet and a runtime take some dozens for each node, and every
/// follower of a log one.
const SETTING: &str = "/proc/sys/fs/inotify/max_user_instances";
const WANTED: u64 = 8192;

const DIRECTORY: &str = "/run/slipstream-testbed";

/// Where the state is, to be tried elsewhere too.
struct Store {
    directory: PathBuf,
    setting: PathBuf,
}

/// Raises the setting for a cluster. It is written down before anything is changed.
pub fn take(cluster: &str) -> Result<()> {
    Store::machine().take(cluster)
}

/// Ends a cluster's claim; the last one puts the setting back.
pub fn give_back(cluster: &str) -> Result<()> {
    Store::machine().give_back(cluster)
}

/// What has not been put back, if this cluster should have.
#[must_use]
pub fn leftovers(cluster: &str) -> Vec<String> {
    Store::machine().leftovers(cluster)
}

impl Store {
    fn machine() -> Self {
        Self { directory: DIRECTORY.into(), setting: SETTING.into() }
    }

    fn original(&self) -> PathBuf {
        self.directory.join("inotify-instances")
    }

    fn claims(&self) -> PathBuf {
        self.directory.join("clusters")
    }

    fn lock(&self) -> Result<File> {
        let path = self.directory.join("lock");
        let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
        Ok(file)
    }

    fn take(&self, cluster: &str) -> Result<()> {
        fs::create_dir_all(self.claims()).with_context(|| format!("cannot create {DIRECTORY}"))?;
        let _lock = self.lock()?;
        let now = read(&self.setting)?;
        if !self.original().exists() {
            write_whole(&self.original(), &now.to_string())?;
        }
        let claim = self.claims().join(cluster);
        File::create(&claim).with_context(|| format!("cannot create {}", claim.display()))?;
        if now < WANTED { write(&self.setting, WANTED) } else { Ok(()) }
    }

    fn give_back(&self, cluster: &str) -> Result<()> {
        if !self.directory.exists() {
            return Ok(());
        }
        let _lock = self.lock()?;
        remove(&self.claims().join(cluster))?;
        if self.claimed() || !self.original().exists() {
            return Ok(());
        }
        let original = read(&self.original())?;
        if read(&self.setting)? != original {
            write(&self.setting, original)?;
        }
        remove(&self.original())
    }

    fn claimed(&self) -> bool {
        fs::read_dir(self.claims()).is_ok_and(|mut entries| entries.next().is_some())
    }

    fn leftovers(&self, cluster: &str) -> Vec<String> {
        let unclaimed = self.original().exists() && !self.claimed();
        if self.claims().join(cluster).exists() || unclaimed {
            vec![format!("changed setting {}", self.setting.display())]
        } else {
            Vec::new()
        }
    }
}

fn read(path: &Path) -> Result<u64> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    text.trim().parse().with_context(|| format!("{} holds {text:?}, which is no number", path.display()))
}

fn write(path: &Path, value: u64) -> Result<()> {
    fs::write(path, value.to_string()).with_context(|| format!("cannot write {}", path.display()))
}

/// Never half of it, also when we are killed meanwhile.
fn write_whole(path: &Path, text: &str) -> Result<()> {
    let new = path.with_file_name("new");
    fs::write(&new, text).with_context(|| format!("cannot write {}", new.display()))?;
    fs::rename(&new, path).with_context(|| format!("cannot write {}", path.display()))
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(dir: &Path, value: u64) -> Store {
        let store = Store { directory: dir.join("state"), setting: dir.join("setting") };
        write(&store.setting, value).unwrap();
        store
    }

    #[test]
    fn the_last_of_several_clusters_puts_back_what_the_first_found() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path(), 128);
        store.take("a").unwrap();
        store.take("b").unwrap();
        assert_eq!(read(&store.setting).unwrap(), WANTED);
        store.give_back("a").unwrap();
        assert_eq!(read(&store.setting).unwrap(), WANTED);
        assert!(store.leftovers("a").is_empty());
        assert_eq!(store.leftovers("b").len(), 1);
        store.give_back("b").unwrap();
        assert_eq!(read(&store.setting).unwrap(), 128);
        assert!(store.leftovers("b").is_empty());
        // Once more, as `down` does after a crash.
        store.give_back("b").unwrap();
        assert_eq!(read(&store.setting).unwrap(), 128);
    }

    #[test]
    fn a_crash_before_the_claim_is_healed_by_the_next_down() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path(), WANTED);
        fs::create_dir_all(store.claims()).unwrap();
        write(&store.original(), 128).unwrap();
        assert_eq!(store.leftovers("a").len(), 1);
        store.give_back("a").unwrap();
        assert_eq!(read(&store.setting).unwrap(), 128);
        assert!(store.leftovers("a").is_empty());
    }

    #[test]
    fn a_machine_with_more_keeps_it() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path(), 65536);
        store.take("a").unwrap();
        assert_eq!(read(&store.setting).unwrap(), 65536);
        store.give_back("a").unwrap();
        assert_eq!(read(&store.setting).unwrap(), 65536);
    }
}
