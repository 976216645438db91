//! The objects that a run makes. Pure.

use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use serde_json::{Value, json};
use traffic::PORT;

use crate::paths::{Client, Server};

/// Label of everything that this program makes, and its value.
pub(crate) const LABEL: &str = "app.kubernetes.io/managed-by";
pub(crate) const MINE: &str = "slipstream-perf-tests";
/// Annotation of a namespace that a run has made, and therefore removes.
pub(crate) const MADE: &str = "slipstream.dev/perf-tests-made";
/// The label that tells servers apart.
const ROLE: &str = "slipstream.dev/perf-tests-role";
/// The program in the image.
const PROGRAM: &str = "/usr/bin/slipstream-traffic";
/// User id of the containers' processes.
const USER: i64 = 65_532;

/// What can go wrong here is that the JSON of this file is no such object, which its tests would show.
pub(crate) type Made<T> = serde_json::Result<T>;

impl Server {
    /// The pod, and the Service before it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Other => "server-other",
            Self::Same => "server-same",
            Self::OtherHost => "server-other-host",
        }
    }
}

/// The namespace. With `host`, pods with the network of their node must be let in.
pub(crate) fn namespace(name: &str, host: bool) -> Made<Namespace> {
    let level = if host { "privileged" } else { "restricted" };
    serde_json::from_value(json!({"metadata": {
        "name": name,
        "labels": {LABEL: MINE, "pod-security.kubernetes.io/enforce": level},
        "annotations": {MADE: "true"},
    }}))
}

/// What a pod is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape<'a> {
    pub(crate) node: &'a str,
    pub(crate) image: &'a str,
    /// Seconds after which the kubelet ends it, whatever becomes of this program.
    pub(crate) deadline: i64,
}

/// A server.
pub(crate) fn server(server: Server, shape: Shape<'_>, host_port: u16) -> Made<Pod> {
    let host = server == Server::OtherHost;
    let port = if host { host_port } else { PORT };
    let args = vec!["serve".to_owned(), "--port".to_owned(), port.to_string()];
    pod(server.name(), server.name(), &args, host, shape)
}

/// The client of a pass.
pub(crate) fn client(client: Client, pass: u32, args: &[String], shape: Shape<'_>) -> Made<Pod> {
    let name = match client {
        Client::Pod => format!("client-pod-{pass}"),
        Client::Host => format!("client-host-{pass}"),
    };
    pod(&name, "client", args, client == Client::Host, shape)
}

fn pod(name: &str, role: &str, args: &[String], host: bool, shape: Shape<'_>) -> Made<Pod> {
    let mut spec = json!({
        // By the scheduler, which says what is against it; not every node has its name as its label.
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [shape.node]}]},
        ]}}},
        "restartPolicy": "Never",
        "activeDeadlineSeconds": shape.deadline,
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": USER, "runAsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [{
            "name": "traffic",
            "image": shape.image,
            "imagePullPolicy": "IfNotPresent",
            "command": [PROGRAM],
            "args": args,
            "securityContext": {
                "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                "capabilities": {"drop": ["ALL"]},
            },
        }],
    });
    if host && let Some(spec) = spec.as_object_mut() {
        spec.insert("hostNetwork".into(), Value::Bool(true));
    }
    let labels = json!({LABEL: MINE, ROLE: role});
    serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}, "spec": spec}))
}

/// Names of the Services with node ports: the plain one, and the one that keeps traffic on the node.
pub(crate) const NODE_PORT: &str = "node-port";
pub(crate) const NODE_PORT_LOCAL: &str = "node-port-local";

/// The Service before a server.
pub(crate) fn cluster_ip(server: Server) -> Made<Service> {
    service(server.name(), server, json!({"type": "ClusterIP"}))
}

/// A Service with a node port before the server of the other node.
pub(crate) fn node_port(is_local: bool) -> Made<Service> {
    let (name, policy) = if is_local { (NODE_PORT_LOCAL, "Local") } else { (NODE_PORT, "Cluster") };
    service(name, Server::Other, json!({"type": "NodePort", "externalTrafficPolicy": policy}))
}

fn service(name: &str, server: Server, mut spec: Value) -> Made<Service> {
    let port = PORT + 1;
    let ports = ["TCP", "UDP"].map(|protocol| {
        json!({"name": protocol.to_lowercase(), "port": port, "targetPort": port, "protocol": protocol})
    });
    if let Some(spec) = spec.as_object_mut() {
        spec.insert("selector".into(), json!({ROLE: server.name()}));
        spec.insert("ports".into(), json!(ports));
        spec.insert("ipFamilyPolicy".into(), json!("PreferDualStack"));
    }
    let labels = json!({LABEL: MINE});
    serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}, "spec": spec}))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape<'_> = Shape { node: "n1", image: "i", deadline: 60 };

    /// What the level `restricted` asks for (kubernetes.io, Pod Security Standards).
    #[test]
    fn pods_are_restricted_and_only_those_of_host_paths_have_the_nodes_network() {
        for of in [Server::Other, Server::Same, Server::OtherHost] {
            let spec = server(of, SHAPE, 25_501).unwrap().spec.unwrap();
            assert_eq!(spec.host_network.unwrap_or(false), of == Server::OtherHost);
            let pod = spec.security_context.unwrap();
            assert_eq!(
                (pod.run_as_non_root, pod.seccomp_profile.unwrap().type_.as_str()),
                (Some(true), "RuntimeDefault")
            );
            let own = spec.containers[0].security_context.clone().unwrap();
            assert_eq!(own.allow_privilege_escalation, Some(false));
            assert_eq!(own.capabilities.unwrap().drop.unwrap(), ["ALL"]);
            assert!(spec.host_pid.is_none() && spec.volumes.is_none());
            assert_eq!(spec.automount_service_account_token, Some(false));
        }
    }

    #[test]
    fn a_pod_ends_by_itself_if_nobody_removes_it() {
        let spec = client(Client::Pod, 1, &[], SHAPE).unwrap().spec.unwrap();
        assert_eq!((spec.active_deadline_seconds, spec.restart_policy.as_deref()), (Some(60), Some("Never")));
    }

    #[test]
    fn services_select_the_server_by_both_protocols() {
        let local = node_port(true).unwrap().spec.unwrap();
        assert_eq!(local.external_traffic_policy.as_deref(), Some("Local"));
        let ports: Vec<_> =
            local.ports.unwrap().into_iter().map(|port| (port.protocol.unwrap(), port.port)).collect();
        assert_eq!(ports, [("TCP".to_owned(), 5502), ("UDP".to_owned(), 5502)]);
        let labels = server(Server::Same, SHAPE, 1).unwrap().metadata.labels.unwrap();
        let selector = cluster_ip(Server::Same).unwrap().spec.unwrap().selector.unwrap();
        assert!(selector.iter().all(|(key, value)| labels.get(key) == Some(value)));
    }
}
