//! The control plane of Kubernetes: etcd, API server, controller manager.
//!
//! Beside the small stand-ins it is kept small too; beside real kubelets it is complete.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;

use super::{Bed, central};
use crate::config::{API_PORT, Config, ControlPlane, Runtime};
use crate::exec;

/// Controllers of Kubernetes that a cluster of networks needs; the rest would only cost time.
const CONTROLLERS: &str = "endpointslice-controller,endpoints-controller,namespace-controller,serviceaccount-controller,\
                           garbage-collector-controller,deployment-controller,replicaset-controller,daemonset-controller,\
                           job-controller,node-lifecycle-controller,root-ca-certificate-publisher-controller,\
                           validatingadmissionpolicy-status-controller";

/// Settings of Go's garbage collector for the control plane. Programs that have just started hold little and collect it again and again: with
/// these the API server is ready with two thirds of the processor time. A large cluster is kept from nine times its size by the limit.
const COLLECT_RARELY: [(&str, &str); 2] = [("GOGC", "800"), ("GOMEMLIMIT", "3GiB")];

/// etcd, the API server and the controller manager; returns when the API server is ready.
pub(crate) fn start(bed: &Bed) -> Result<()> {
    let config = bed.config();
    let host = bed.host(config.api_host());
    let etcd = text(config.kubernetes("etcd"));
    let argv = [
        etcd.as_str(),
        // In memory, and gone with the host.
        "--data-dir=/run/etcd",
        "--unsafe-no-fsync",
        "--listen-client-urls=http://127.0.0.1:2379",
        "--advertise-client-urls=http://127.0.0.1:2379",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--log-level=warn",
    ];
    host.start("etcd", &argv, &COLLECT_RARELY)?;
    if has_egress(config) {
        start_egress(bed)?;
    }
    start_strings(bed, "kube-apiserver", api_server(config))?;
    exec::retry(Duration::from_secs(60), "the API server is ready", || {
        host.check_running("etcd")?;
        host.check_running("kube-apiserver")?;
        let mut get = host.network_command(config.program("testbed"))?;
        get.args([
            "probe",
            "get",
            &config.api().ip().to_string(),
            &API_PORT.to_string(),
            "/readyz",
            "--body",
            "--ca",
        ]);
        exec::output(get.arg(config.pki("ca.crt")))
    })?;
    start_strings(bed, "kube-controller-manager", controller_manager(config))?;
    central::grant_rights(bed)
}

/// The real scheduler.
pub(crate) fn start_scheduler(bed: &Bed) -> Result<()> {
    let config = bed.config();
    let conf = text(config.kubeconfig("kube-scheduler"));
    let argv = vec![
        text(config.kubernetes("kube-scheduler")),
        flag("kubeconfig", &conf),
        flag("authentication-kubeconfig", &conf),
        flag("authorization-kubeconfig", &conf),
        "--bind-address=127.0.0.1".into(),
        "--leader-elect=false".into(),
    ];
    start_strings(bed, "kube-scheduler", argv)
}

/// Whether the API server needs help to reach pods and services: on a node it has the node's way.
fn has_egress(config: &Config) -> bool {
    config.runtime == Runtime::Containerd && config.control_plane == ControlPlane::Apart
}

/// The way of the API server to nodes, pods and services.
fn start_egress(bed: &Bed) -> Result<()> {
    let config = bed.config();
    let connection = |protocol: &str| json!({"proxyProtocol": protocol});
    let relayed = json!({
        "proxyProtocol": "HTTPConnect",
        "transport": {"uds": {"udsName": config.relay("central")}},
    });
    let settings = json!({
        "apiVersion": "apiserver.k8s.io/v1beta1",
        "kind": "EgressSelectorConfiguration",
        "egressSelections": [
            {"name": "cluster", "connection": relayed},
            {"name": "controlplane", "connection": connection("Direct")},
            {"name": "etcd", "connection": connection("Direct")},
        ],
    });
    let file = config.kubeconfig("egress");
    fs::write(&file, settings.to_string()).with_context(|| format!("cannot write {}", file.display()))?;
    let mut argv = relay(config, "central");
    for node in config.node_names() {
        argv.push(flag("via", &text(config.relay(&node))));
    }
    start_strings(bed, "relay", argv)
}

/// The command of a host's relay.
pub(crate) fn relay(config: &Config, host: &str) -> Vec<String> {
    vec![text(config.program("testbed")), "relay".into(), flag("listen", &text(config.relay(host)))]
}

fn start_strings(bed: &Bed, name: &str, argv: Vec<String>) -> Result<()> {
    let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
    bed.host(bed.config().api_host()).start(name, &argv, &COLLECT_RARELY)
}

fn text(path: PathBuf) -> String {
    path.display().to_string()
}

fn flag(name: &str, value: &str) -> String {
    format!("--{name}={value}")
}

fn api_server(config: &Config) -> Vec<String> {
    let pki = |name: &str, file: &str| flag(name, &text(config.pki(file)));
    let mut argv = vec![
        text(config.kubernetes("kube-apiserver")),
        "--etcd-servers=http://127.0.0.1:2379".into(),
        flag("bind-address", if config.ipv6_only { "::" } else { "0.0.0.0" }),
        flag("secure-port", &API_PORT.to_string()),
        flag("advertise-address", &config.api().ip().to_string()),
        flag("service-cluster-ip-range", &config.service_cidrs()),
        "--authorization-mode=Node,RBAC".into(),
        pki("client-ca-file", "ca.crt"),
        pki("tls-cert-file", "apiserver.crt"),
        pki("tls-private-key-file", "apiserver.key"),
        pki("service-account-key-file", "sa.pub"),
        pki("service-account-signing-key-file", "sa.key"),
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local".into(),
        "--allow-privileged".into(),
        "--profiling=false".into(),
    ];
    match config.runtime {
        // Pods run no code that wants a token, and need not wait for their account.
        Runtime::Netns => argv.push("--disable-admission-plugins=ServiceAccount".into()),
        Runtime::Containerd => argv.extend([
            "--enable-admission-plugins=NodeRestriction".into(),
            pki("kubelet-certificate-authority", "ca.crt"),
            pki("kubelet-client-certificate", "kubelet-client.crt"),
            pki("kubelet-client-key", "kubelet-client.key"),
            "--kubelet-preferred-address-types=InternalIP".into(),
            pki("requestheader-client-ca-file", "ca.crt"),
            "--requestheader-allowed-names=front-proxy".into(),
            "--requestheader-username-headers=X-Remote-User".into(),
            "--requestheader-group-headers=X-Remote-Group".into(),
            "--requestheader-extra-headers-prefix=X-Remote-Extra-".into(),
            pki("proxy-client-cert-file", "front-proxy.crt"),
            pki("proxy-client-key-file", "front-proxy.key"),
            "--enable-aggregator-routing".into(),
        ]),
    }
    if has_egress(config) {
        argv.push(flag("egress-selector-config-file", &text(config.kubeconfig("egress"))));
    }
    argv
}

fn controller_manager(config: &Config) -> Vec<String> {
    let pki = |name: &str, file: &str| flag(name, &text(config.pki(file)));
    let conf = text(config.kubeconfig("kube-controller-manager"));
    let mut argv = vec![
        text(config.kubernetes("kube-controller-manager")),
        flag("kubeconfig", &conf),
        "--bind-address=127.0.0.1".into(),
        "--leader-elect=false".into(),
        pki("service-account-private-key-file", "sa.key"),
        pki("root-ca-file", "ca.crt"),
    ];
    match config.runtime {
        Runtime::Netns => {
            argv.extend([flag("controllers", CONTROLLERS), "--use-service-account-credentials=false".into()]);
        }
        Runtime::Containerd => argv.extend([
            // Ranges are given to nodes by our own controller.
            "--controllers=*,-nodeipam".into(),
            "--allocate-node-cidrs=false".into(),
            "--use-service-account-credentials".into(),
            flag("authentication-kubeconfig", &conf),
            flag("authorization-kubeconfig", &conf),
            pki("cluster-signing-cert-file", "ca.crt"),
            pki("cluster-signing-key-file", "ca.key"),
        ]),
    }
    argv
}
