//! Images without a registry: archives in the cache, imported once into a containerd of its own. What that one wrote
//! is kept beside the archives, and every node begins with a copy of it, made of hard links.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::containerd;
use crate::bed::Bed;
use crate::config::Config;
use crate::exec;
use crate::host::machine;
use crate::images;

/// Makes the images if need be, and fails early if that cannot be or the runtime is not there.
pub(super) fn check(config: &Config) -> Result<()> {
    images::ensure(&config.cache).context("container images")?;
    let programs = ["containerd", "ctr", "containerd-shim-runc-v2"].map(|p| config.containerd(p));
    let kubernetes = ["kubelet", "kube-scheduler"].map(|p| config.kubernetes(p));
    match programs.iter().chain(&kubernetes).find(|path| !path.exists()) {
        Some(path) => bail!("{} is missing; run `cargo xtask setup`", path.display()),
        None => Ok(()),
    }
}

/// Gives a node the images, before its containerd starts. A node that has some already keeps them.
pub(super) fn fill(bed: &Bed, node: &str) -> Result<()> {
    let config = bed.config();
    let target = machine::data(&config.host_dir(node), "var/lib/containerd");
    if fs::read_dir(&target).with_context(|| format!("{}", target.display()))?.next().is_some() {
        return Ok(());
    }
    let stores = config.cache.join("image-store");
    fs::create_dir_all(&stores).with_context(|| format!("cannot create {}", stores.display()))?;
    let lock = File::create(stores.join("lock"))?;
    lock.lock().context("lock of the image store")?;
    let store = stores.join(key(config)?);
    if !store.exists() {
        make(bed, node, &stores, &store)?;
    }
    copy(&store, &target)
}

/// Imports all archives with a containerd that runs on `node` for this only.
fn make(bed: &Bed, node: &str, stores: &Path, store: &Path) -> Result<()> {
    for old in fs::read_dir(stores)?.flatten() {
        if old.file_type()?.is_dir() {
            fs::remove_dir_all(old.path())
                .with_context(|| format!("cannot remove {}", old.path().display()))?;
        }
    }
    let fresh = stores.join("new");
    fs::create_dir_all(&fresh)?;
    let host = bed.host(node);
    containerd::start_importer(bed, node, &fresh)?;
    for archive in archives(bed.config())? {
        let mut import = host.command(bed.config().containerd("ctr"))?;
        import.args([
            "--address",
            containerd::IMPORTER_SOCKET,
            "-n",
            "k8s.io",
            "image",
            "import",
            "--local",
            "--no-unpack=false",
        ]);
        exec::output(import.arg(&archive)).with_context(|| format!("image {}", archive.display()))?;
    }
    host.stop(containerd::IMPORTER, Duration::from_secs(10))?;
    fs::rename(&fresh, store).with_context(|| format!("cannot keep {}", store.display()))
}

/// Everything by hard link but the databases, which a runtime writes to. Blobs and layers are never written to again.
fn copy(store: &Path, target: &Path) -> Result<()> {
    let from = store.join(".");
    let linked = exec::output(exec::command("cp").arg("-al").arg(&from).arg(target));
    if linked.is_err() {
        // Another file system.
        exec::output(exec::command("cp").args(["-a", "--reflink=auto"]).arg(&from).arg(target))?;
        return Ok(());
    }
    let mut databases = Vec::new();
    find_databases(store, Path::new(""), &mut databases)?;
    for database in databases {
        let (from, to) = (store.join(&database), target.join(&database));
        fs::remove_file(&to)?;
        fs::copy(&from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    Ok(())
}

/// The databases of containerd's plugins: `PLUGIN/*.db`.
fn find_databases(store: &Path, below: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(store.join(below))?.flatten() {
        let path = below.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            if below.as_os_str().is_empty() {
                find_databases(store, &path, found)?;
            }
        } else if path.extension().is_some_and(|e| e == "db") {
            found.push(path);
        }
    }
    Ok(())
}

fn archives(config: &Config) -> Result<Vec<PathBuf>> {
    let dir = config.images();
    let Ok(entries) = fs::read_dir(&dir) else { return Ok(Vec::new()) };
    let mut files: Vec<_> =
        entries.flatten().map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "tar")).collect();
    files.sort();
    Ok(files)
}

/// Changes with every archive and with containerd.
fn key(config: &Config) -> Result<String> {
    let mut hasher = DefaultHasher::new();
    for file in archives(config)?.iter().chain([&config.containerd("containerd")]) {
        let data = fs::metadata(file).with_context(|| format!("{}", file.display()))?;
        (file, data.len(), data.modified()?).hash(&mut hasher);
    }
    Ok(format!("{:016x}", hasher.finish()))
}
