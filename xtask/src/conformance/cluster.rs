//! The cluster on which specs run, through the test bed's command line.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{exec, paths};

/// Parameters of a cluster to create.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) nodes: u8,
    pub(super) datapath: String,
    pub(super) dual_stack: bool,
    pub(super) ipv6_only: bool,
    pub(super) without_policy: bool,
}

/// A running cluster.
#[derive(Debug)]
pub(super) struct Cluster {
    name: String,
    /// Started by this run, and stopped at its end.
    ours: bool,
}

impl Cluster {
    /// Starts a cluster. It replaces one of the same name that an earlier run has left.
    pub(super) fn up(name: &str, shape: &Shape) -> Result<Self> {
        let cluster = Self { name: name.to_owned(), ours: true };
        exec::output(cluster.testbed().arg("down"))?;
        let mut up = cluster.testbed();
        up.args(["up", "--runtime", "containerd", "--nodes", &shape.nodes.to_string()]);
        up.args(["--datapath", &shape.datapath]);
        if shape.dual_stack {
            up.arg("--dual-stack");
        }
        if shape.ipv6_only {
            up.arg("--ipv6-only");
        }
        if shape.without_policy {
            up.arg("--without-policy");
        }
        exec::run(&mut up)?;
        Ok(cluster)
    }

    /// Uses a running cluster that was started before.
    pub(super) fn open(name: &str) -> Result<Self> {
        let cluster = Self { name: name.to_owned(), ours: false };
        exec::output(cluster.testbed().arg("kubeconfig"))
            .with_context(|| format!("there is no cluster {name}"))?;
        Ok(cluster)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Names of the nodes.
    pub(super) fn node_names(&self) -> Result<Vec<String>> {
        let nodes = self.kubectl(&["get", "nodes", "-o", "name"])?;
        Ok(nodes.lines().map(|line| line.trim_start_matches("node/").to_owned()).collect())
    }

    /// Output of `slipctl` on a node, as JSON.
    pub(super) fn slipctl(&self, node: &str, args: &[&str]) -> Result<Value> {
        let mut command = self.testbed();
        command.args(["exec", node, "--"]).arg(paths::target().join("debug/slipctl"));
        let said = exec::output(command.args(["--output", "json"]).args(args))?;
        serde_json::from_str(&said).with_context(|| format!("slipctl {args:?} on {node}: {said}"))
    }

    /// Number of nodes.
    pub(super) fn nodes(&self) -> Result<u8> {
        match u8::try_from(self.node_names()?.len()) {
            Ok(count) if count > 0 => Ok(count),
            _ => bail!("cluster {} has no nodes", self.name),
        }
    }

    /// Whether its nodes have pod ranges of both families.
    pub(super) fn is_dual_stack(&self) -> Result<bool> {
        let addresses =
            self.kubectl(&["get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}"])?;
        let nodes = self.kubectl(&[
            "get",
            "nodes",
            "-o",
            "jsonpath={.items[0].status.addresses[?(@.type==\"InternalIP\")].address}",
        ])?;
        Ok(nodes.split_whitespace().any(|a| a.contains(':') != addresses.contains(':')))
    }

    /// The administrator's kubeconfig.
    pub(super) fn kubeconfig(&self) -> Result<PathBuf> {
        let path = exec::output(self.testbed().arg("kubeconfig"))?;
        Ok(PathBuf::from(path.trim()))
    }

    /// A command in the network namespace of the control plane's host, with this machine's files.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = self.testbed();
        command.args(["exec", "--network", "central", "--"]).arg(program);
        command
    }

    /// Applies a file of objects, and waits until its deployments are available and its virtual networks ready.
    pub(super) fn apply(&self, file: &Path) -> Result<()> {
        let file = fs::canonicalize(file).with_context(|| format!("cannot read {}", file.display()))?;
        let name = file.to_str().with_context(|| format!("{} is no UTF-8", file.display()))?;
        let applied = self.kubectl(&["apply", "-f", name])?;
        for (kind, condition) in [("deployment", "Available"), ("virtualnetwork", "Ready")] {
            if applied.lines().any(|line| line.starts_with(kind)) {
                let condition = format!("--for=condition={condition}");
                self.kubectl(&["wait", &condition, "--timeout=120s", "--all", "-A", kind])?;
            }
        }
        exec::say(format_args!("applied {name}"));
        Ok(())
    }

    fn kubectl(&self, args: &[&str]) -> Result<String> {
        exec::output(self.testbed().arg("kubectl").args(args))
    }

    /// Saves what helps to find the cause of a failure: the logs of every process, events, and the state of all objects.
    pub(super) fn dump(&self, to: &Path) -> Result<()> {
        let logs = to.join("logs");
        fs::create_dir_all(&logs).with_context(|| format!("cannot create {}", logs.display()))?;
        let kubeconfig = self.kubeconfig()?;
        let bed = kubeconfig.parent().and_then(Path::parent).context("the kubeconfig has no directory")?;
        for entry in fs::read_dir(bed.join("log")).context("logs of the cluster")?.flatten() {
            fs::copy(entry.path(), logs.join(entry.file_name()))?;
        }
        let questions: [(&str, &[&str]); 3] = [
            ("status.txt", &["status"]),
            ("events.txt", &["kubectl", "get", "events", "-A", "--sort-by=.lastTimestamp"]),
            (
                "objects.yaml",
                &["kubectl", "get", "nodes,pods,services,endpointslices,networkpolicies", "-A", "-o", "yaml"],
            ),
        ];
        for (file, args) in questions {
            // A cluster that does not answer: the error is recorded as well.
            let said = exec::output(self.testbed().args(args)).unwrap_or_else(|e| format!("{e:#}\n"));
            fs::write(to.join(file), said).with_context(|| format!("cannot write {file}"))?;
        }
        Ok(())
    }

    /// Fails unless the northbound database is as the controller wants it.
    pub(super) fn verified(&self) -> Result<String> {
        exec::output(self.testbed().arg("verify"))
    }

    /// Stops the cluster, if this run started it.
    pub(super) fn down(&self) -> Result<()> {
        if self.ours { exec::run(self.testbed().arg("down")) } else { Ok(()) }
    }

    fn testbed(&self) -> Command {
        let mut command = exec::command(paths::target().join("debug/testbed"));
        command.args(["--name", &self.name]);
        command
    }
}
