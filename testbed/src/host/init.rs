//! The first process of a host: lays out the host's mounts, then starts, ends and reaps its processes.
//!
//! Everything that a host has (processes, mounts, interfaces) is in namespaces that end with this process.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::mount::{MsFlags, mount};

use super::mounts::bind_path;
use super::{machine, supervisor};
use crate::exec;
use crate::host::identity::Identity;

/// Directories of the machine that a host sees with changes of its own.
const OVERLAID: &[&str] = &["etc", "var", "opt"];

/// Becomes the first process of `host`; never returns but with an error. With `disk`, what it writes outlives it.
pub fn run(host: &str, bed: &Path, disk: bool) -> Result<()> {
    let dir = bed.join("hosts").join(host);
    // /proc is still the machine's, so this is our number there.
    let own = fs::read_link("/proc/self").context("/proc/self")?;
    let pid: i32 = own.to_str().and_then(|s| s.parse().ok()).context("/proc/self is no number")?;
    fs::write(dir.join("init.json"), serde_json::to_vec(&Identity::of(pid)?)?)?;
    fs::write("/proc/sys/kernel/hostname", host).context("host name")?;
    mounts(host, bed, &dir, disk)?;
    settings()?;
    exec::output(exec::command("ip").args(["link", "set", "lo", "up"]))?;
    let socket = dir.join("ctl.sock");
    if socket.exists() {
        // Of this host before it was rebooted.
        fs::remove_file(&socket)?;
    }
    supervisor::run(&socket)
}

fn mounts(host: &str, bed: &Path, dir: &Path, disk: bool) -> Result<()> {
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).context("private mounts")?;
    // Kept open: the mounts below cover the ways to them.
    let cgroups = File::open("/sys/fs/cgroup").ok();
    let bed_dir = File::open(bed).with_context(|| format!("cannot open {}", bed.display()))?;
    mount(Some("proc"), "/proc", Some("proc"), MsFlags::empty(), none).context("/proc")?;
    mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), none).context("/sys")?;
    if let Some(cgroups) = cgroups {
        bind(&cgroups, Path::new("/sys/fs/cgroup"))?;
    }
    mount(Some("bpf"), "/sys/fs/bpf", Some("bpf"), MsFlags::empty(), none).context("/sys/fs/bpf")?;
    let changes = if disk { machine::disk(dir) } else { dir.join("changes") };
    fs::create_dir_all(&changes)?;
    if !disk {
        // In memory: an overlay's upper directory cannot be on an overlay, and nothing is left on disk.
        mount(Some("tmpfs"), &changes, Some("tmpfs"), MsFlags::empty(), Some("mode=755"))
            .context("tmpfs for changes")?;
    }
    for name in OVERLAID {
        let (upper, inner) = (changes.join(name), changes.join(format!("work-{name}")));
        fs::create_dir_all(&upper)?;
        fs::create_dir_all(&inner)?;
        let target = format!("/{name}");
        let options = format!("lowerdir={target},upperdir={},workdir={}", upper.display(), inner.display());
        mount(Some("overlay"), target.as_str(), Some("overlay"), MsFlags::empty(), Some(options.as_str()))
            .with_context(|| format!("overlay over {target}"))?;
    }
    mount(Some("tmpfs"), "/run", Some("tmpfs"), MsFlags::empty(), Some("mode=755")).context("/run")?;
    if OVERLAID.iter().chain(&["run"]).any(|name| bed.starts_with(Path::new("/").join(name))) {
        fs::create_dir_all(bed)?;
        bind(&bed_dir, bed)?;
    }
    for made in ["/run/netns", "/run/lock", "/run/openvswitch", "/run/ovn"].iter().chain(INSTALLED_INTO) {
        fs::create_dir_all(made).with_context(|| format!("cannot create {made}"))?;
    }
    if !machine::is_installed() {
        for directory in INSTALLED_INTO {
            empty(Path::new(directory))?;
        }
    }
    fs::write("/etc/hosts", format!("127.0.0.1 localhost {host}\n"))?;
    fs::write("/etc/hostname", format!("{host}\n"))?;
    if disk { machine::furnish(host, dir) } else { Ok(()) }
}

/// Where a plugin and its switch leave files. What the machine has there is nothing of the host's.
const INSTALLED_INTO: &[&str] = &["/opt/cni/bin", "/etc/cni/net.d", "/etc/openvswitch", "/etc/kubernetes"];

fn empty(directory: &Path) -> Result<()> {
    for entry in fs::read_dir(directory)?.flatten() {
        let path = entry.path();
        if entry.file_type()?.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) }
            .with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}

/// Makes an open directory appear at `target` too, with what is mounted below it.
fn bind(directory: &File, target: &Path) -> Result<()> {
    bind_path(&PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())), target)
}

/// What a network namespace inherits from the machine differs between machines: set it.
fn settings() -> Result<()> {
    for (key, value) in [
        ("ipv4/conf/all/rp_filter", "0"),
        ("ipv4/conf/default/rp_filter", "0"),
        ("ipv4/ip_forward", "0"),
        ("ipv4/ping_group_range", "0 2147483647"),
    ] {
        fs::write(format!("/proc/sys/net/{key}"), value).with_context(|| format!("sysctl {key}"))?;
    }
    Ok(())
}
