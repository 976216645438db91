//! `testbed pod`: pods without writing YAML.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::json;

use crate::bed::Bed;
use crate::exec;
use crate::nodes::PodName;
use crate::ui;

/// What to do with a pod.
#[derive(Debug, clap::Subcommand)]
pub enum Verb {
    /// Add a pod that answers on TCP and UDP port 8080, and wait until it runs.
    Add {
        /// `NAME` or `NAMESPACE/NAME`.
        pod: String,
        /// The node; without it the scheduler picks one.
        #[arg(long)]
        node: Option<String>,
    },
    /// Delete a pod and wait until it is gone.
    Del {
        /// `NAME` or `NAMESPACE/NAME`.
        pod: String,
    },
    /// Run a command in a pod's network: `testbed pod exec a -- ip addr`.
    Exec {
        /// `NAME` or `NAMESPACE/NAME`.
        pod: String,
        /// The command; `probe` is the traffic tool.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<String>,
    },
}

fn split(pod: &str) -> (&str, &str) {
    pod.split_once('/').unwrap_or(("default", pod))
}

impl Verb {
    /// Does it.
    pub fn run(self, bed: &Bed) -> Result<ExitCode> {
        match self {
            Self::Add { pod, node } => {
                let (namespace, name) = split(&pod);
                bed.apply(&with_image(bed, manifest(namespace, name, node.as_deref()))?.to_string())?;
                bed.kubectl(&[
                    "wait",
                    "-n",
                    namespace,
                    "--for=condition=Ready",
                    "--timeout=60s",
                    &format!("pod/{name}"),
                ])?;
                ui::say(bed.kubectl(&["get", "pod", "-n", namespace, name, "-o", "wide"])?.trim_end());
            }
            Self::Del { pod } => {
                let (namespace, name) = split(&pod);
                bed.kubectl(&["delete", "pod", "-n", namespace, name, "--timeout=60s"])?;
            }
            Self::Exec { pod, command } => {
                let (namespace, name) = split(&pod);
                let node =
                    bed.kubectl(&["get", "pod", "-n", namespace, name, "-o", "jsonpath={.spec.nodeName}"])?;
                if node.is_empty() {
                    bail!("pod {namespace}/{name} is not bound to a node yet");
                }
                let (program, args) = command.split_first().context("no command")?;
                let own = bed.config().program("testbed");
                let target = PodName { node: &node, namespace, name };
                return if program == "probe" {
                    exec::foreground(bed.runtime().pod_command(bed, &target, &own)?.arg("probe").args(args))
                } else {
                    exec::foreground(bed.runtime().pod_command(bed, &target, Path::new(program))?.args(args))
                };
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Waits until all pods of a namespace are Ready.
pub fn wait_ready(bed: &Bed, namespace: &str, limit: Duration) -> Result<()> {
    bed.pods_ready(namespace, None, exec::patient(limit)).with_context(|| {
        match bed.kubectl(&["get", "pods", "-n", namespace, "-o", "wide"]) {
            Ok(list) => format!("not all pods became Ready:\n{list}"),
            Err(error) => format!("not all pods became Ready, and they cannot be listed: {error:#}"),
        }
    })
}

/// The pod with an image that the cluster's runtime can start.
pub fn with_image(bed: &Bed, mut pod: serde_json::Value) -> Result<serde_json::Value> {
    let container = &mut pod["spec"]["containers"][0];
    container["image"] = bed.runtime().image(bed.config())?.into();
    container["args"] = json!(["netexec", "--http-port=8080", "--udp-port=8080"]);
    Ok(pod)
}

/// A pod that answers on port 8080. Its image is there for stand-ins only.
#[must_use]
pub fn manifest(namespace: &str, name: &str, node: Option<&str>) -> serde_json::Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "none", "ports": [
                {"name": "http", "containerPort": 8080, "protocol": "TCP"},
                {"name": "query", "containerPort": 8080, "protocol": "UDP"},
            ]}],
        },
    })
}
