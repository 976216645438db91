//! What makes a host look like a machine to a kubelet and a container runtime: a disk that outlives its first
//! process, directories that are no overlays, settings of its own, and mounts that are seen by containers.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::mount::{MsFlags, mount};

use super::mounts::bind_path;

/// Directories that hold upper directories of overlays, or are measured as file systems: an overlay cannot do either.
const DATA: &[&str] =
    &["var/lib/containerd", "var/lib/kubelet", "var/lib/cni", "var/log/pods", "var/log/containers"];

/// Settings of the machine itself that a kubelet changes when it starts, with the values it wants
/// (`kubelet/pkg/cm/container_manager_linux.go`, `setupKernelTunables`). A node shows files with these values in their place, so that
/// nothing is changed.
const SETTINGS: &[(&str, &str)] = &[
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// The disk of a host, as the machine sees it.
#[must_use]
pub fn disk(host_dir: &Path) -> PathBuf {
    host_dir.join("disk")
}

/// Where a directory of [`DATA`] lies on the machine.
#[must_use]
pub fn data(host_dir: &Path, directory: &str) -> PathBuf {
    disk(host_dir).join("data").join(directory)
}

/// Mounts what a host needs beside the usual. Its own `/etc`, `/var`, `/run` and `/proc` are there already.
pub(super) fn furnish(host: &str, host_dir: &Path) -> Result<()> {
    for directory in DATA {
        let source = data(host_dir, directory);
        let target = Path::new("/").join(directory);
        for made in [&source, &target] {
            fs::create_dir_all(made).with_context(|| format!("cannot create {}", made.display()))?;
        }
        bind_path(&source, &target)?;
    }
    let shown = Path::new("/run/testbed/settings");
    for (key, value) in SETTINGS {
        let (file, target) = (shown.join(key), Path::new("/proc/sys").join(key));
        // A kernel without the setting has none to be changed.
        if !target.exists() {
            continue;
        }
        fs::create_dir_all(file.parent().context("a setting has a directory")?)?;
        fs::write(&file, format!("{value}\n"))?;
        bind_path(&file, &target)?;
    }
    boot_identity(shown)?;
    fs::create_dir_all("/etc/kubernetes/manifests")?;
    // The node itself has no name server. A link would lead to the machine's own file.
    replace("/etc/resolv.conf", "nameserver 127.0.0.1\n")?;
    if !Path::new(INSTALLED).exists() {
        replace("/etc/machine-id", &format!("{}\n", uuid::Uuid::new_v4().simple()))?;
        fs::write(INSTALLED, format!("{host}\n"))?;
    }
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SHARED, none).context("shared mounts")
}

/// Each start of a host is a boot of its own: whoever compares boots must see a new one after a reboot.
fn boot_identity(shown: &Path) -> Result<()> {
    let file = shown.join("boot_id");
    fs::create_dir_all(shown)?;
    fs::write(&file, format!("{}\n", uuid::Uuid::new_v4()))?;
    bind_path(&file, Path::new("/proc/sys/kernel/random/boot_id"))
}

/// Whether the host was there before, and has its disk from then.
pub(super) fn is_installed() -> bool {
    Path::new(INSTALLED).exists()
}

/// Written at a host's first start; unique enough that no machine has it.
const INSTALLED: &str = "/etc/slipstream-testbed-host";

fn replace(path: &str, text: &str) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot replace {path}"));
        }
        _ => {}
    }
    fs::write(path, text).with_context(|| format!("cannot write {path}"))
}
