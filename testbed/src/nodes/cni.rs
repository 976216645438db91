//! Runs the CNI executable as a container runtime does: CNI specification 1.1, "Execution protocol".

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use tokio::io::AsyncWriteExt;

use super::record::PodRecord;
use crate::exec;

/// Where a runtime looks for networks and executables.
pub const CONF_DIR: &str = "/etc/cni/net.d";
pub const BIN_DIR: &str = "/opt/cni/bin";
/// What runtimes call a pod's interface.
const INTERFACE: &str = "eth0";

/// The network's configuration, as the node agent wrote it.
#[derive(Clone, Debug)]
pub struct Network {
    executable: PathBuf,
    configuration: String,
}

/// What ADD answers, as far as a runtime needs it.
#[derive(Debug, Deserialize)]
struct AddResult {
    #[serde(default)]
    interfaces: Vec<AddedInterface>,
    #[serde(default)]
    ips: Vec<AddedIp>,
}

#[derive(Debug, Deserialize)]
struct AddedInterface {
    name: String,
    #[serde(default)]
    sandbox: String,
}

#[derive(Debug, Deserialize)]
struct AddedIp {
    address: String,
    interface: Option<usize>,
}

impl AddResult {
    /// The addresses of the interface that the runtime has named, without their prefix length. Runtimes show those of the pod's other
    /// interfaces to nobody.
    fn addresses(self) -> Vec<String> {
        let Self { interfaces, ips } = self;
        let is_first = |ip: &AddedIp| {
            let interface = ip.interface.and_then(|index| interfaces.get(index));
            interface.is_none_or(|interface| interface.name == INTERFACE && !interface.sandbox.is_empty())
        };
        let ips = ips.into_iter().filter(is_first);
        ips.map(|ip| ip.address.split('/').next().unwrap_or_default().to_owned()).collect()
    }
}

impl Network {
    /// The first configuration in the directory, if there is one yet.
    pub fn find(directory: &Path) -> Result<Option<Self>> {
        let Ok(entries) = std::fs::read_dir(directory) else { return Ok(None) };
        let mut files: Vec<_> = entries
            .flatten()
            .map(|e| e.path())
            .filter(|p| p.extension().is_some_and(|e| e == "conf"))
            .collect();
        files.sort();
        let Some(first) = files.first() else { return Ok(None) };
        let configuration =
            std::fs::read_to_string(first).with_context(|| format!("cannot read {}", first.display()))?;
        let parsed: serde_json::Value = serde_json::from_str(&configuration)
            .with_context(|| format!("{} is no JSON", first.display()))?;
        let kind = parsed["type"].as_str().with_context(|| format!("{} names no type", first.display()))?;
        Ok(Some(Self { executable: Path::new(BIN_DIR).join(kind), configuration }))
    }

    /// ADD: returns the pod's addresses, without their prefix length.
    pub async fn add(&self, pod: &PodRecord) -> Result<Vec<String>> {
        let answer = self.call("ADD", pod).await?;
        let result: AddResult =
            serde_json::from_str(&answer).with_context(|| format!("ADD answered {answer:?}"))?;
        let addresses = result.addresses();
        if addresses.is_empty() {
            bail!("ADD answered without an address: {answer}");
        }
        Ok(addresses)
    }

    /// DEL.
    pub async fn delete(&self, pod: &PodRecord) -> Result<()> {
        self.call("DEL", pod).await.map(drop)
    }

    async fn call(&self, verb: &str, pod: &PodRecord) -> Result<String> {
        let arguments = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={};K8S_POD_INFRA_CONTAINER_ID={};K8S_POD_UID={}",
            pod.namespace, pod.name, pod.sandbox, pod.uid
        );
        let mut child = exec::async_command(&self.executable)
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", &pod.sandbox)
            .env("CNI_NETNS", pod.netns.as_deref().unwrap_or_default())
            .env("CNI_IFNAME", INTERFACE)
            .env("CNI_PATH", BIN_DIR)
            .env("CNI_ARGS", arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", self.executable.display()))?;
        let mut input = child.stdin.take().context("no pipe")?;
        input.write_all(self.configuration.as_bytes()).await?;
        drop(input);
        // Runtimes give up after some minutes; a test wants to see the failure.
        let out = tokio::time::timeout(Duration::from_secs(60), child.wait_with_output())
            .await
            .with_context(|| format!("CNI {verb} took more than a minute"))??;
        let answer = String::from_utf8_lossy(&out.stdout).into_owned();
        if !out.status.success() {
            bail!(
                "CNI {verb}: {}: {} {}",
                out.status,
                answer.trim(),
                String::from_utf8_lossy(&out.stderr).trim()
            );
        }
        Ok(answer)
    }
}
