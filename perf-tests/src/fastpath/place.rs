//! Network namespaces: those of a cluster, and those that we make, which last as long as their keeper.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use testbed::cluster::Bed;
use testbed::exec;
use testbed::host::HostHandle;
use testbed::nodes::record::{DIRECTORY, PodRecord};

/// A network namespace, by the file that represents it.
#[derive(Debug, Clone)]
pub(super) struct Place(PathBuf);

impl Place {
    /// A pod, and its IPv4 address.
    pub(super) fn pod(bed: &Bed, node: &str, namespace: &str, pod: &str) -> Result<(Self, String)> {
        let host = bed.host(node);
        let record = PodRecord::find(&host.path(DIRECTORY)?, namespace, pod)?;
        let netns = record.netns.with_context(|| format!("pod {pod} is in its node's network"))?;
        let address = record.addresses.iter().find(|a| !a.contains(':'));
        let address = address.with_context(|| format!("pod {pod} has no IPv4 address"))?;
        Ok((Self(host.path(netns)?), address.clone()))
    }

    /// A host's own network.
    pub(super) fn host(bed: &Bed, host: &str) -> Result<Self> {
        Ok(Self(format!("/proc/{}/ns/net", bed.host(host).init()?.pid).into()))
    }

    /// A program inside it, with the machine's files.
    pub(super) fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = exec::command("nsenter");
        command.arg(format!("--net={}", self.0.display())).arg("--").arg(program.as_ref());
        command
    }

    /// Lines of `ip -batch`.
    pub(super) fn ip(&self, lines: &str) -> Result<()> {
        exec::input_output(self.command("ip").args(["-batch", "-"]), lines).map(drop)
    }

    /// A setting of the namespace's network.
    pub(super) fn set(&self, key: &str, value: &str) -> Result<()> {
        exec::output(self.command("sysctl").args(["-qw", &format!("{key}={value}")])).map(drop)
    }
}

/// All processes of the machine with this name, kernel threads among them.
pub(super) fn processes(name: &str) -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            // One that has ended meanwhile has no name.
            let comm = fs::read_to_string(entry.path().join("comm")).ok()?;
            (comm.trim_end() == name).then_some(pid)
        })
        .collect()
}

/// Processes called `name` that run on a host of a cluster, each with a number of its own in the host's PID namespace.
pub(super) fn processes_of(host: &HostHandle<'_>, name: &str) -> Result<Vec<i32>> {
    let namespace = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/pid"));
    let own = namespace(host.init()?.pid).context("PID namespace of a host")?;
    Ok(processes(name).into_iter().filter(|pid| namespace(*pid).is_ok_and(|one| one == own)).collect())
}

/// A process that ends when it is dropped, or when its standard input does: so also when we are killed.
#[derive(Debug)]
pub(super) struct Keeper(Child);

impl Keeper {
    /// Starts it and waits for its first line, by which it says that all is in place.
    pub(super) fn start(command: &mut Command, greeting: &str) -> Result<Self> {
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        let mut keeper = Self(child);
        let mut stdin = keeper.0.stdin.as_ref().context("no pipe")?;
        // What ends at once does not read; the missing line tells.
        let _ = stdin.write_all(greeting.as_bytes());
        let mut line = String::new();
        BufReader::new(keeper.0.stdout.as_mut().context("no pipe")?).read_line(&mut line)?;
        if line.is_empty() {
            let status = keeper.0.wait()?;
            anyhow::bail!("{command:?}: {status}");
        }
        Ok(keeper)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A namespace of ours.
#[derive(Debug)]
pub(super) struct Namespace {
    keeper: Keeper,
}

impl Namespace {
    /// A new one with `lo` up.
    pub(super) fn new() -> Result<Self> {
        let keeper = Keeper::start(exec::command("unshare").args(["--net", "--", "cat"]), "there\n")?;
        let namespace = Self { keeper };
        let place = namespace.place();
        place.ip("link set lo up\n")?;
        for scope in ["all", "default"] {
            place.set(&format!("net.ipv4.conf.{scope}.rp_filter"), "0")?;
        }
        Ok(namespace)
    }

    /// Number of its keeper, by which `ip` finds the namespace.
    pub(super) fn pid(&self) -> u32 {
        self.keeper.0.id()
    }

    pub(super) fn place(&self) -> Place {
        Place(format!("/proc/{}/ns/net", self.pid()).into())
    }

    pub(super) fn ip(&self, lines: &str) -> Result<()> {
        self.place().ip(lines)
    }
}
