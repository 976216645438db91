//! The host with the control plane: etcd, the Kubernetes API, OVN's databases, northd, and our controller.

use std::time::Duration;

use anyhow::{Context, Result};

use super::Bed;
use super::config::{
    API_PORT, CENTRAL_IP, Config, JOIN_SUBNET, MASQUERADE_SUBNET, NB_PORT, POD_MTU, SB_PORT, SERVICE_CIDR,
    node_ip, node_name,
};
use crate::exec;

/// Controllers of Kubernetes that a cluster of networks needs; the rest would only cost time.
const CONTROLLERS: &str = "endpointslice-controller,endpoints-controller,namespace-controller,serviceaccount-controller,\
                           garbage-collector-controller,deployment-controller,replicaset-controller,daemonset-controller,\
                           job-controller,node-lifecycle-controller,root-ca-certificate-publisher-controller";

/// etcd, the API server and the controller manager; returns when the API server is ready.
pub(super) fn start_kubernetes(bed: &Bed) -> Result<()> {
    let config = bed.config();
    let central = bed.host("central");
    let path = |p: std::path::PathBuf| p.display().to_string();
    let etcd = path(config.kubernetes("etcd"));
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
    central.start("etcd", &argv, &[])?;
    let flag = |name: &str, value: String| format!("--{name}={value}");
    let pki = |file: &str| path(config.pki(file));
    let argv = [
        path(config.kubernetes("kube-apiserver")),
        "--etcd-servers=http://127.0.0.1:2379".into(),
        "--bind-address=0.0.0.0".into(),
        flag("secure-port", API_PORT.to_string()),
        flag("advertise-address", CENTRAL_IP.to_string()),
        flag("service-cluster-ip-range", SERVICE_CIDR.into()),
        "--authorization-mode=Node,RBAC".into(),
        flag("client-ca-file", pki("ca.crt")),
        flag("tls-cert-file", pki("apiserver.crt")),
        flag("tls-private-key-file", pki("apiserver.key")),
        flag("service-account-key-file", pki("sa.pub")),
        flag("service-account-signing-key-file", pki("sa.key")),
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local".into(),
        // Pods run no code that wants a token, and need not wait for their account.
        "--disable-admission-plugins=ServiceAccount".into(),
        "--allow-privileged".into(),
        "--profiling=false".into(),
    ];
    central.start("kube-apiserver", &argv.each_ref().map(String::as_str), &[])?;
    exec::retry(Duration::from_secs(60), "the API server is ready", || {
        central.check_running("etcd")?;
        central.check_running("kube-apiserver")?;
        let mut get = central.network_command(config.program("testbed"))?;
        get.args([
            "probe",
            "get",
            &CENTRAL_IP.to_string(),
            &API_PORT.to_string(),
            "/readyz",
            "--body",
            "--ca",
        ]);
        exec::output(get.arg(config.pki("ca.crt")))
    })?;
    let argv = [
        path(config.kubernetes("kube-controller-manager")),
        flag("kubeconfig", path(config.kubeconfig("kube-controller-manager"))),
        flag("controllers", CONTROLLERS.into()),
        "--bind-address=127.0.0.1".into(),
        "--leader-elect=false".into(),
        "--use-service-account-credentials=false".into(),
        flag("service-account-private-key-file", pki("sa.key")),
        flag("root-ca-file", pki("ca.crt")),
    ];
    central.start("kube-controller-manager", &argv.each_ref().map(String::as_str), &[])
}

/// The northbound and southbound database and the daemon between them.
pub(super) fn start_ovn(bed: &Bed) -> Result<()> {
    let config = bed.config();
    let central = bed.host("central");
    for (kind, name, table, port) in
        [("nb", "OVN_Northbound", "NB_Global", NB_PORT), ("sb", "OVN_Southbound", "SB_Global", SB_PORT)]
    {
        let database = format!("/run/ovn/ovn{kind}_db.db");
        let socket = format!("/run/ovn/ovn{kind}_db.sock");
        let mut create = central.command(config.ovs("ovsdb-tool"))?;
        exec::output(
            create.args(["create", &database]).arg(config.schema(&format!("ovn-{kind}.ovsschema"))),
        )?;
        let server = config.ovs("ovsdb-server").display().to_string();
        let argv = [
            server.as_str(),
            &database,
            &format!("--remote=punix:{socket}"),
            &format!("--remote=db:{name},{table},connections"),
            &format!("--unixctl=/run/ovn/ovn{kind}_db.ctl"),
            "-vconsole:info",
        ];
        central.start(&format!("ovsdb-{kind}"), &argv, ENVIRONMENT)?;
        // The probe of the server is off, as clients have one of their own.
        let target = format!("ptcp:{port}:{CENTRAL_IP}");
        exec::retry(Duration::from_secs(10), "the database answers", || {
            let mut command = central.command(config.ovs(&format!("ovn-{kind}ctl")))?;
            command.args(["--timeout=5", "--no-leader-only", &format!("--db=unix:{socket}")]);
            command.args([
                "init",
                "--",
                "set-connection",
                &target,
                "--",
                "set",
                "connection",
                ".",
                "inactivity_probe=0",
            ]);
            exec::output(&mut command)
        })
        .with_context(|| name)?;
    }
    let northd = config.ovs("ovn-northd").display().to_string();
    let argv = [
        northd.as_str(),
        "--ovnnb-db=unix:/run/ovn/ovnnb_db.sock",
        "--ovnsb-db=unix:/run/ovn/ovnsb_db.sock",
        "--unixctl=/run/ovn/ovn-northd.ctl",
        "-vconsole:info",
    ];
    central.start("ovn-northd", &argv, ENVIRONMENT)
}

/// Where the programs of OVS and OVN keep their sockets, whatever they were compiled for.
pub(super) const ENVIRONMENT: &[(&str, &str)] = &[
    ("OVS_RUNDIR", "/run/openvswitch"),
    ("OVS_LOGDIR", "/run/openvswitch"),
    ("OVS_DBDIR", "/run/openvswitch"),
    ("OVS_SYSCONFDIR", "/run"),
    ("OVN_RUNDIR", "/run/ovn"),
    ("OVN_LOGDIR", "/run/ovn"),
    ("OVN_DBDIR", "/run/ovn"),
];

/// Node objects in order, so that their ranges are known, and the rights of controller and agents.
pub(super) fn prepare_cluster(bed: &Bed) -> Result<()> {
    let mut objects: Vec<String> = (1..=bed.config().nodes)
        .map(|i| {
            let name = node_name(i);
            serde_json::json!({
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "labels": {
                    "kubernetes.io/hostname": name,
                    "kubernetes.io/os": "linux",
                    "node.kubernetes.io/test-bed-address": node_ip(i).to_string(),
                }},
            })
            .to_string()
        })
        .collect();
    objects.push(include_str!("../../../deploy/rbac.yaml").to_owned());
    exec::input_output(bed.kubectl_command()?.args(["apply", "-f", "-"]), &objects.join("\n---\n")).map(drop)
}

/// Our controller.
pub(super) fn start_controller(bed: &Bed) -> Result<()> {
    let config = bed.config();
    let argv: Vec<String> = [config.program("slipstream-controller").display().to_string(), "run".into()]
        .into_iter()
        .chain(controller_arguments(config))
        .collect();
    let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
    bed.host("central").start("controller", &argv, &[])
}

/// The flags of the controller.
#[must_use]
pub fn controller_arguments(config: &Config) -> Vec<String> {
    let flag = |name: &str, value: String| format!("--{name}={value}");
    vec![
        flag("kubeconfig", config.kubeconfig("controller").display().to_string()),
        flag("nb", format!("tcp:{CENTRAL_IP}:{NB_PORT}")),
        flag("cluster-subnets", config.cluster_subnets.clone()),
        flag("service-cidrs", SERVICE_CIDR.into()),
        flag("join-subnet", JOIN_SUBNET.into()),
        flag("masquerade-subnet", MASQUERADE_SUBNET.into()),
        flag("mtu", POD_MTU.to_string()),
        "--lease-namespace=kube-system".into(),
        "--lease-name=slipstream-controller".into(),
        "--leader-elect=true".into(),
        "--metrics-bind-address=127.0.0.1:9409".into(),
    ]
}
