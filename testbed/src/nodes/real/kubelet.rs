//! The kubelet of a node: its settings and its start.

use std::fs;

use anyhow::{Context, Result};
use serde_json::json;

use super::{cgroups, containerd};
use crate::bed::Bed;
use crate::config::{Config, node_index, node_ip, underlay_ip6};

/// Starts it.
pub(super) fn start(bed: &Bed, node: &str) -> Result<()> {
    let config = bed.config();
    let file = config.host_dir(node).join("kubelet.json");
    fs::write(&file, settings(config, node).to_string())
        .with_context(|| format!("cannot write {}", file.display()))?;
    let ip = node_ip(node_index(node).with_context(|| format!("{node} is no node"))?);
    let argv = [
        config.kubernetes("kubelet").display().to_string(),
        format!("--config={}", file.display()),
        format!("--kubeconfig={}", config.kubeconfig(&format!("kubelet-{node}")).display()),
        format!("--hostname-override={node}"),
        format!("--node-ip={}", config.families(ip, underlay_ip6(ip))),
        "--v=2".into(),
    ];
    bed.host(node).start_service("kubelet", &argv.each_ref().map(String::as_str), &[])
}

fn settings(config: &Config, node: &str) -> serde_json::Value {
    let pki = |file: &str| config.pki(file).display().to_string();
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": pki("ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": pki(&format!("serving-{node}.crt")),
        "tlsPrivateKeyFile": pki(&format!("serving-{node}.key")),
        "containerRuntimeEndpoint": format!("unix://{}", containerd::SOCKET),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroups::node_root(&config.mark(), node),
        "failCgroupV1": false,
        "failSwapOn": false,
        "clusterDNS": [config.dns_service_ip().to_string()],
        "clusterDomain": "cluster.local",
        "resolvConf": "/etc/resolv.conf",
        "staticPodPath": "/etc/kubernetes/manifests",
        // Images cannot be pulled again: none may be removed to make room.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
            "nodefs.inodesFree": "1%",
        },
        "maxPods": 110,
        // A machine may withhold the right to lower it.
        "oomScoreAdj": 0,
        "maxOpenFiles": 20000,
    })
}
