//! What a kubelet writes to the API server about its node and its pods.

use anyhow::Result;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::json;

use super::record::PodRecord;

const MANAGER: &str = "testbed";

/// Marks the node Ready or not, with its address and its size.
pub(super) async fn node(client: &Client, name: &str, ips: &[String], ready: bool) -> Result<()> {
    let now = Timestamp::now().to_string();
    let condition = |kind: &str, good: bool, reason: &str| {
        json!({"type": kind, "status": if good { "True" } else { "False" }, "reason": reason, "message": reason,
               "lastHeartbeatTime": now, "lastTransitionTime": now})
    };
    let reason = if ready { "KubeletReady" } else { "NetworkPluginNotReady" };
    let resources = json!({"cpu": "8", "memory": "16Gi", "pods": "250"});
    let internal = ips.iter().map(|ip| json!({"type": "InternalIP", "address": ip}));
    // A strategic merge treats addresses of one type as one entry, so the complete list is replaced.
    let rest = [json!({"type": "Hostname", "address": name}), json!({"$patch": "replace"})];
    let addresses: Vec<_> = internal.chain(rest).collect();
    let status = json!({"status": {
        "addresses": addresses,
        "capacity": resources,
        "allocatable": resources,
        "conditions": [
            condition("Ready", ready, reason),
            condition("MemoryPressure", false, "KubeletHasSufficientMemory"),
            condition("DiskPressure", false, "KubeletHasNoDiskPressure"),
            condition("PIDPressure", false, "KubeletHasSufficientPID"),
        ],
        "nodeInfo": {"kubeletVersion": "v1.36.0-testbed"},
    }});
    Api::<Node>::all(client.clone())
        .patch_status(name, &PatchParams::apply(MANAGER), &Patch::Strategic(status))
        .await?;
    Ok(())
}

/// Renews the node's lease, by which the control plane sees that it lives.
pub(super) async fn lease(client: &Client, name: &str) -> Result<()> {
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": name},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 40,
                 "renewTime": format!("{:.6}", Timestamp::now())},
    });
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    leases.patch(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(lease)).await?;
    Ok(())
}

/// Marks a pod Running and Ready, with its addresses.
pub(super) async fn running(
    client: &Client,
    pod: &Pod,
    record: &PodRecord,
    node_ips: &[String],
) -> Result<()> {
    let now = Timestamp::now().to_string();
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": now});
    let containers: Vec<_> = pod
        .spec
        .iter()
        .flat_map(|s| &s.containers)
        .map(|c| {
            json!({"name": c.name, "image": c.image, "imageID": "none", "ready": true, "started": true, "restartCount": 0,
                   "containerID": format!("testbed://{}", record.sandbox), "state": {"running": {"startedAt": now}}})
        })
        .collect();
    let conditions = ["PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready"]
        .map(condition);
    let ips: Vec<_> = record.addresses.iter().map(|ip| json!({"ip": ip})).collect();
    let host_ips: Vec<_> = node_ips.iter().map(|ip| json!({"ip": ip})).collect();
    let status = json!({"status": {
        "phase": "Running",
        "hostIP": node_ips.first(), "hostIPs": host_ips,
        "podIP": record.addresses.first(), "podIPs": ips,
        "startTime": now,
        "conditions": conditions,
        "containerStatuses": containers,
    }});
    let pods: Api<Pod> = Api::namespaced(client.clone(), &record.namespace);
    pods.patch_status(&pod.name_any(), &PatchParams::apply(MANAGER), &Patch::Strategic(status)).await?;
    Ok(())
}
