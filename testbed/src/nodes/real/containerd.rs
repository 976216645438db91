//! containerd on a node: its settings and its start.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use super::wanted;
use crate::bed::Bed;
use crate::config::Config;
use crate::exec;

pub(super) const SOCKET: &str = "/run/containerd/containerd.sock";
/// Imports images into a store that nodes copy.
pub(super) const IMPORTER: &str = "image-importer";
pub(super) const IMPORTER_SOCKET: &str = "/run/image-importer/containerd.sock";

/// Starts it and waits until it answers.
pub(super) fn start(bed: &Bed, node: &str) -> Result<()> {
    let config = bed.config();
    launch(bed, node, "containerd", SOCKET, &settings(config)?)
}

/// One without pods, whose state is below `root`.
pub(super) fn start_importer(bed: &Bed, node: &str, root: &Path) -> Result<()> {
    let text = format!(
        r#"version = 3
root = "{}"
state = "/run/image-importer"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.nri.v1.nri"]
[grpc]
  address = "{IMPORTER_SOCKET}"
"#,
        root.display()
    );
    launch(bed, node, IMPORTER, IMPORTER_SOCKET, &text)
}

fn launch(bed: &Bed, node: &str, name: &str, socket: &str, settings: &str) -> Result<()> {
    let config = bed.config();
    let host = bed.host(node);
    let file = config.host_dir(node).join(format!("{name}.toml"));
    fs::write(&file, settings).with_context(|| format!("cannot write {}", file.display()))?;
    let program = config.containerd("containerd").display().to_string();
    host.start_service(name, &[&program, "--config", &file.display().to_string()], &[])?;
    let socket = host.path(socket)?;
    exec::retry(Duration::from_secs(30), "containerd answers", || {
        host.check_running(name)?;
        UnixStream::connect(&socket).map(drop).with_context(|| format!("{}", socket.display()))
    })
}

/// The settings of a node's containerd.
fn settings(config: &Config) -> Result<String> {
    let pause = wanted::image(config, "pause")?;
    Ok(format!(
        r#"version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.internal.v1.tracing"]
[grpc]
  address = "{SOCKET}"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{pause}"
[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  # A machine may withhold CAP_SYS_RESOURCE, and then no process's score can be lowered.
  restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["/opt/cni/bin"]
  conf_dir = "/etc/cni/net.d"
  # Only our own plugin is installed, no `loopback`.
  use_internal_loopback = true
[plugins."io.containerd.cri.v1.runtime".containerd]
  default_runtime_name = "runc"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  BinaryName = "runc"
  SystemdCgroup = false
"#
    ))
}
