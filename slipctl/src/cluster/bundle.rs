//! `slipctl bundle`: an archive of text files for whoever helps. No Secret is read, and values that look like secrets are left out.

use std::path::{Path, PathBuf};

use super::redact::redacted;
use super::{Reach, output};
use crate::client::Error;

/// What is written.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The archive.
    #[arg(long, default_value = "slipstream-bundle.tar.gz")]
    file: PathBuf,
    /// Lines of each container's log.
    #[arg(long, default_value_t = 2_000)]
    log_lines: u32,
    #[command(flatten)]
    reach: Reach,
}

/// Questions to kubectl; objects of the cluster without their Secrets.
const OBJECTS: [(&str, &[&str]); 7] = [
    ("version", &["version", "-o", "yaml"]),
    ("nodes", &["get", "nodes", "-o", "yaml"]),
    ("pods", &["get", "pods", "-A", "-o", "wide"]),
    ("services", &["get", "services,endpointslices", "-A", "-o", "yaml"]),
    ("networkpolicies", &["get", "networkpolicies,namespaces", "-A", "-o", "yaml"]),
    ("events", &["get", "events", "-A", "--sort-by=.lastTimestamp"]),
    ("permissions", &["get", "clusterroles,clusterrolebindings", "-o", "name"]),
];
/// Questions on each node.
const ON_NODES: [(&str, &[&str]); 8] = [
    ("status", &["slipctl", "status"]),
    ("doctor", &["slipctl", "doctor"]),
    ("flows", &["slipctl", "flows"]),
    ("tunnels", &["slipctl", "tunnels"]),
    ("services", &["slipctl", "services"]),
    ("ovs", &["ovs-vsctl", "show"]),
    ("ovs-settings", &["ovs-vsctl", "list", "Open_vSwitch"]),
    ("nft", &["nft", "list", "ruleset"]),
];
/// Questions beside OVN's databases.
const CENTRAL: [(&str, &[&str]); 4] = [
    ("nb", &["ovn-nbctl", "show"]),
    ("sb", &["ovn-sbctl", "show"]),
    ("acls", &["ovn-nbctl", "--columns=name,direction,priority,action,match,external_ids", "list", "ACL"]),
    ("load-balancers", &["ovn-nbctl", "lb-list"]),
];

/// Writes the archive. Returns what was done, and what could not be asked.
///
/// # Errors
/// The archive cannot be written.
pub(crate) fn run(args: &Args) -> Result<String, Error> {
    let Args { file, log_lines, reach } = args;
    let place = std::env::temp_dir().join(format!("slipstream-bundle-{}", std::process::id()));
    let mut files = Files { place: place.clone(), written: 0, failures: Vec::new() };
    let done = files.collect(reach, *log_lines).and_then(|()| {
        let parent = place.display().to_string();
        output(&["tar", "-C", &parent, "-czf", &file.display().to_string(), "."])
    });
    // What was collected is in the archive, or of no use without it.
    let _ = std::fs::remove_dir_all(&place);
    done?;
    let mut text = format!("{}: {} files\n", file.display(), files.written);
    for failure in &files.failures {
        text.push_str(&format!("not in it: {failure}\n"));
    }
    Ok(text)
}

struct Files {
    place: PathBuf,
    written: usize,
    failures: Vec<String>,
}

impl Files {
    fn collect(&mut self, reach: &Reach, log_lines: u32) -> Result<(), Error> {
        for (name, question) in OBJECTS {
            self.put(&format!("cluster/{name}.txt"), reach.kubectl(question))?;
        }
        let namespace = reach.namespace.as_str();
        self.put(
            "cluster/configmap.txt",
            reach.kubectl(&["get", "-n", namespace, "configmap", "slipstream", "-o", "yaml"]),
        )?;
        for (name, question) in CENTRAL {
            self.put(&format!("ovn/{name}.txt"), reach.on_central(question))?;
        }
        let nodes = reach.list(&["nodes"]).unwrap_or_default();
        for node in nodes.iter().filter_map(|node| node["metadata"]["name"].as_str()) {
            for (name, question) in ON_NODES {
                self.put(&format!("nodes/{node}/{name}.txt"), reach.on_node(node, question))?;
            }
        }
        let selector = "--selector=app.kubernetes.io/name=slipstream";
        let pods = reach.list(&["pods", "-n", namespace, selector]).unwrap_or_default();
        for pod in pods.iter().filter_map(|pod| pod["metadata"]["name"].as_str()) {
            let tail = format!("--tail={log_lines}");
            let logs = ["logs", "-n", namespace, pod, "--all-containers", "--prefix", &tail];
            self.put(&format!("logs/{pod}.txt"), reach.kubectl(&logs))?;
        }
        Ok(())
    }

    /// Writes an answer, or notes why there is none.
    fn put(&mut self, name: &str, answer: Result<String, Error>) -> Result<(), Error> {
        match answer {
            Ok(text) => {
                write(&self.place.join(name), &redacted(&text)).map_err(Error::Output)?;
                self.written += 1;
            }
            Err(error) => self.failures.push(format!("{name}: {error}")),
        }
        Ok(())
    }
}

fn write(path: &Path, text: &str) -> std::io::Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    std::fs::write(path, text)
}
