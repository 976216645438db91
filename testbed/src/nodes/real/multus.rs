//! Multus on real nodes: it is what the container runtime calls, and calls the plugin of the cluster's network and those of further
//! networks in turn. Thin: an executable for each call, and no process of its own.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::bed::Bed;
use crate::bed::pki::MULTUS;
use crate::config::{Config, Multus, node_index, node_ip, node_name};
use crate::exec;
use crate::nodes::cni::{BIN_DIR, CONF_DIR};

/// Its executable and those of other networks, as `cargo xtask setup` makes them.
const PROGRAMS: &[&str] =
    &["multus", "passthru", "bridge", "macvlan", "ptp", "host-local", "static", "tuning"];
/// The first file by name, so the one that runtimes read.
const FIRST: &str = "00-multus.conf";
/// The other plugin's; runtimes would not read it after ours, if ours were there.
/// It is no list: of one that it calls by its file, Multus 4.2.3 forgets at DEL what the plugin's address management was told.
const OTHER: &str = "20-other.conf";
/// What our agent writes.
const OURS: &str = "10-slipstream.conf";
/// How long our agent may take to write it.
const READY: Duration = Duration::from_secs(60);

/// Fails early if an executable is not there.
pub(super) fn check(config: &Config) -> Result<()> {
    if config.multus.is_none() {
        return Ok(());
    }
    match PROGRAMS.iter().map(|name| config.cni(name)).find(|program| !program.exists()) {
        Some(missing) => bail!("{} is not there; run `cargo xtask setup`", missing.display()),
        None => Ok(()),
    }
}

/// Puts the executables on a node and, where another plugin has the cluster's network, both configurations.
pub(super) fn install(bed: &Bed, node: &str) -> Result<()> {
    let config = bed.config();
    let Some(role) = config.multus else { return Ok(()) };
    let directory = bed.host(node).path(BIN_DIR)?;
    for name in PROGRAMS {
        link(&config.cni(name), &directory.join(name))?;
    }
    if role == Multus::Secondary {
        write(bed, node, OTHER, &other(node)?)?;
        write(bed, node, FIRST, &first(config, OTHER))?;
    }
    Ok(())
}

/// Where our plugin has the cluster's network: Multus' configuration, once ours is there, as Multus' own installer waits for one.
pub(super) fn install_before_ours(bed: &Bed) -> Result<()> {
    let config = bed.config();
    if config.multus != Some(Multus::Default) || !config.plugin {
        return Ok(());
    }
    for node in config.node_names() {
        let ours = bed.host(&node).path(CONF_DIR)?.join(OURS);
        exec::retry(READY, "the agent writes its configuration", || {
            bed.host(&node).check_running("node-agent")?;
            fs::metadata(&ours).map(drop).with_context(|| format!("{}", ours.display()))
        })?;
        write(bed, &node, FIRST, &first(config, OURS))?;
    }
    Ok(())
}

/// Ways between the nodes to the pods of the other plugin, which has none of its own.
pub(super) fn connect(bed: &Bed) -> Result<()> {
    let config = bed.config();
    if config.multus != Some(Multus::Secondary) {
        return Ok(());
    }
    for node in config.node_names() {
        if config.plugin {
            // No kubelet waits for it, and the routes are to be on the bridge that it makes of the uplink.
            exec::retry(READY, "the agent is ready", || bed.agent(&node).page("/readyz"))?;
        }
        // Packets between pods and other nodes pass the node itself.
        exec::output(bed.host(&node).command("sysctl")?.args(["-qw", "net.ipv4.ip_forward=1"]))?;
        for index in (1..=config.nodes).filter(|index| node_name(*index) != node) {
            let (range, via) = (format!("{}/24", range(index)), node_ip(index).to_string());
            let mut command = bed.host(&node).command("ip")?;
            exec::output(command.args(["route", "replace", &range, "via", &via]))?;
        }
    }
    Ok(())
}

/// The pods of the other plugin on a node: apart from our own ranges.
fn range(index: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 245, index, 0)
}

fn first(config: &Config, default: &str) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "multus-cni-network",
        "type": "multus",
        "kubeconfig": config.kubeconfig(MULTUS),
        "clusterNetwork": Path::new(CONF_DIR).join(default),
        "confDir": CONF_DIR,
        "binDir": BIN_DIR,
        "cniDir": "/var/lib/cni/multus",
        "logLevel": "verbose",
        "logFile": "/var/log/multus.log",
    })
}

fn other(node: &str) -> Result<Value> {
    let index = node_index(node).with_context(|| format!("{node} is no node"))?;
    Ok(json!({
        "cniVersion": "1.0.0",
        "name": "other",
        "type": "ptp",
        "mtu": 1400,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": format!("{}/24", range(index))}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": "/run/cni-ipam",
        },
    }))
}

fn write(bed: &Bed, node: &str, name: &str, content: &Value) -> Result<()> {
    let directory = bed.host(node).path(CONF_DIR)?;
    let file = directory.join(name);
    // A runtime reads whatever is there, also half of a file.
    let new = directory.join(format!(".{name}.new"));
    fs::write(&new, content.to_string()).with_context(|| format!("cannot write {}", new.display()))?;
    fs::rename(&new, &file).with_context(|| format!("cannot write {}", file.display()))
}

fn link(program: &Path, at: &Path) -> Result<()> {
    // A node that was rebooted has it already.
    if at.is_symlink() {
        return Ok(());
    }
    symlink(program, at).with_context(|| format!("cannot make {}", at.display()))
}
