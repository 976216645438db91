//! Trial of suite `node_lifecycle`: a kubelet of another version than the API server.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use anyhow::{Result, ensure};

use super::world::World;
use testbed::exec;

/// Many minor versions ago.
const OLD: &str = "v1.20.4";

pub(super) fn run(world: &World<'_>) -> Result<String> {
    let config = world.bed.config();
    // The cache with another kubelet in it, in the cluster's own directory.
    let cache = config.dir.join("conf/old-cache");
    fs::create_dir_all(cache.join("k8s"))?;
    for (from, to) in [(config.cache.clone(), cache.clone()), (config.cache.join("k8s"), cache.join("k8s"))] {
        for entry in fs::read_dir(&from)?.flatten() {
            let name = entry.file_name();
            let own = ["k8s", "kubelet", "run", "logs"].iter().any(|kept| name == *kept);
            if !own {
                symlink(entry.path(), to.join(name))?;
            }
        }
    }
    let kubelet = cache.join("k8s/kubelet");
    fs::write(&kubelet, format!("#!/bin/sh\necho Kubernetes {OLD}\n"))?;
    fs::set_permissions(&kubelet, fs::Permissions::from_mode(0o755))?;
    let mut up = exec::command(config.program("testbed"));
    up.args(["up", "--name", "old-kubelet", "--runtime", "containerd"]);
    let ended = exec::capture(up.env("SLIPSTREAM_CACHE", &cache), "")?;
    fs::remove_dir_all(&cache)?;
    ensure!(!ended.status.success(), "a cluster with a kubelet {OLD} came up");
    let said = ended.stdout + &ended.stderr;
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    let api = exec::output(exec::command(config.kubernetes("kube-apiserver")).arg("--version"))?;
    let api = api.trim().trim_start_matches("Kubernetes ");
    ensure!(said.contains(OLD) && said.contains(api), "{OLD} and {api} are not both named: {said}");
    let reason = said.find("the kubelet is").and_then(|at| said.get(at..)).unwrap_or(&said);
    Ok(format!("refused: {reason}"))
}
