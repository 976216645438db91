//! Makes and removes a pod's sandbox: network namespace, network, and the server on its ports.

use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::Pod;
use uuid::Uuid;

use super::cni::{CONF_DIR, Network};
use super::record::{DIRECTORY, PodRecord};
use crate::exec;
use crate::host::identity::Identity;

/// How long a failed ADD waits before the next try; the last one repeats.
const BACKOFF: &[Duration] =
    &[Duration::from_millis(100), Duration::from_millis(300), Duration::from_secs(1), Duration::from_secs(2)];

/// A pod as far as a sandbox needs it.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    pub host_network: bool,
    pub tcp: Vec<u16>,
    pub udp: Vec<u16>,
}

/// Label of pods whose ports a test serves itself.
pub const NO_SERVER_LABEL: &str = "testbed.slipstream.dev/no-server";

impl Wanted {
    /// Reads a pod object.
    #[must_use]
    pub fn of(pod: &Pod) -> Self {
        let spec = pod.spec.as_ref();
        let containers = spec.map(|s| s.containers.as_slice()).unwrap_or_default();
        let served = !pod.metadata.labels.iter().flatten().any(|(key, _)| key == NO_SERVER_LABEL);
        let ports = |udp: bool| {
            containers
                .iter()
                .filter(|_| served)
                .flat_map(|c| c.ports.as_deref().unwrap_or_default())
                .filter(|p| {
                    (p.protocol.as_deref() == Some("UDP")) == udp && p.protocol.as_deref() != Some("SCTP")
                })
                .filter_map(|p| u16::try_from(p.container_port).ok())
                .collect()
        };
        Self {
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            host_network: spec.and_then(|s| s.host_network).unwrap_or(false),
            tcp: ports(false),
            udp: ports(true),
        }
    }
}

/// Tries until the pod has its network; each try has a sandbox of its own, as with a runtime.
pub async fn start(pod: &Wanted, node_ips: &[String]) -> Result<PodRecord> {
    let mut backoff = BACKOFF.iter();
    let mut pause = BACKOFF[0];
    loop {
        match attempt(pod, node_ips).await {
            Ok(record) => return Ok(record),
            Err(error) => {
                tracing::warn!(namespace = pod.namespace, name = pod.name, "sandbox: {error:#}; trying again")
            }
        }
        pause = backoff.next().copied().unwrap_or(pause);
        tokio::time::sleep(pause).await;
    }
}

async fn attempt(pod: &Wanted, node_ips: &[String]) -> Result<PodRecord> {
    let directory = Path::new(DIRECTORY);
    let mut record = PodRecord {
        uid: pod.uid.clone(),
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        sandbox: format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple()),
        netns: None,
        addresses: Vec::new(),
        server: None,
    };
    if pod.host_network {
        record.addresses = node_ips.to_vec();
    } else {
        let network = Network::find(Path::new(CONF_DIR))?.context("the node has no network yet")?;
        record.netns = Some(format!("/run/netns/cni-{}", Uuid::new_v4()));
        record.save(directory)?;
        let outcome = async {
            make_netns(&record).await?;
            network.add(&record).await
        };
        match outcome.await {
            Ok(addresses) => record.addresses = addresses,
            Err(error) => {
                stop(&record).await.context(format!("after: {error:#}"))?;
                return Err(error);
            }
        }
    }
    record.save(directory)?;
    ensure_server(pod, &mut record)?;
    Ok(record)
}

/// Starts the pod's server unless it runs.
pub fn ensure_server(pod: &Wanted, record: &mut PodRecord) -> Result<()> {
    if (pod.tcp.is_empty() && pod.udp.is_empty()) || record.server.is_some_and(|s| s.is_alive()) {
        return Ok(());
    }
    let own = std::env::current_exe()?;
    let mut command = match &record.netns {
        Some(netns) => {
            let mut command = exec::command("nsenter");
            command.arg(format!("--net={netns}")).arg("--").arg(own);
            command
        }
        None => exec::command(own),
    };
    command.args(["probe", "serve", "--name", &pod.name]);
    for (flag, ports) in [("--tcp", &pod.tcp), ("--udp", &pod.udp)] {
        for port in ports {
            command.args([flag, &port.to_string()]);
        }
    }
    // It outlives this process if need be; then the host's first process sees its end.
    let mut child = command.stdin(Stdio::null()).spawn().context("cannot start the pod's server")?;
    record.server = Some(Identity::of(i32::try_from(child.id())?)?);
    thread::Builder::new().name("reaper".into()).stack_size(16 * 1024).spawn(move || child.wait())?;
    record.save(Path::new(DIRECTORY))
}

/// Ends the server, calls DEL until it succeeds once, removes the namespace and the record.
pub async fn stop(record: &PodRecord) -> Result<()> {
    if let Some(server) = record.server {
        server.kill()?;
    }
    if let Some(netns) = &record.netns {
        let network = Network::find(Path::new(CONF_DIR))?.context("the node has no network")?;
        network.delete(record).await?;
        if Path::new(netns).exists() {
            let name = file_name(netns);
            // A server that was started just before this process was killed is in no record. It would keep the namespace, and the
            // pod's veth with it.
            for pid in ip(&["netns", "pids", name]).await?.split_whitespace() {
                if let Ok(process) = Identity::of(pid.parse()?) {
                    process.kill()?;
                }
            }
            ip(&["netns", "delete", name]).await?;
        }
    }
    record.remove(Path::new(DIRECTORY))
}

async fn make_netns(record: &PodRecord) -> Result<()> {
    let name = file_name(record.netns.as_deref().unwrap_or_default());
    ip(&["netns", "add", name]).await?;
    ip(&["-n", name, "link", "set", "lo", "up"]).await.map(drop)
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Runs `ip`; its output.
async fn ip(args: &[&str]) -> Result<String> {
    let out = exec::async_command("ip").args(args).output().await.context("cannot start ip")?;
    if !out.status.success() {
        bail!("ip {}: {}", args.join(" "), String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pods_ports_are_sorted_by_protocol() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "a", "namespace": "red", "uid": "u"},
            "spec": {"hostNetwork": true, "containers": [
                {"name": "x", "ports": [{"containerPort": 80}, {"containerPort": 53, "protocol": "UDP"}]},
                {"name": "y", "ports": [{"containerPort": 81, "protocol": "TCP"}, {"containerPort": 9, "protocol": "SCTP"}]},
            ]},
        }))
        .unwrap();
        let wanted = Wanted::of(&pod);
        assert_eq!((wanted.tcp, wanted.udp, wanted.host_network), (vec![80, 81], vec![53], true));
        let mut alone = pod;
        alone.metadata.labels = Some([(NO_SERVER_LABEL.to_owned(), String::new())].into());
        let wanted = Wanted::of(&alone);
        assert!(wanted.tcp.is_empty() && wanted.udp.is_empty(), "a test serves its ports");
    }
}
