//! The host with the control plane, as far as it is ours: OVN's databases, northd, and our controller.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result};

use super::{Bed, access, admission};
use crate::config::{
    CENTRAL_IP, CONTROLLER_PORT, Config, Install, JOIN_SUBNET, JOIN_SUBNET_6, MASQUERADE_SUBNET,
    MASQUERADE_SUBNET_6, NB_PORT, NETWORK_API_PORT, POD_MTU, SB_PORT, node_ip, node_name,
};
use crate::exec;

/// The kind of definitions and the rights of Multus.
const MULTUS: &str = include_str!("../../manifests/multus.yaml");

/// The northbound and southbound database and the daemon between them.
pub(crate) fn start_ovn(bed: &Bed) -> Result<()> {
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
        let target = format!("ptcp:{port}:{}", bracketed(config.underlay_ip(CENTRAL_IP)));
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
pub const ENVIRONMENT: &[(&str, &str)] = &[
    ("OVS_RUNDIR", "/run/openvswitch"),
    ("OVS_LOGDIR", "/run/openvswitch"),
    ("OVS_DBDIR", "/run/openvswitch"),
    ("OVS_SYSCONFDIR", "/run"),
    ("OVN_RUNDIR", "/run/ovn"),
    ("OVN_LOGDIR", "/run/ovn"),
    ("OVN_DBDIR", "/run/ovn"),
];

/// The rights of controller and agents, and what only they may write. Policies take their time to come into force, so this
/// is done as soon as the API server answers.
pub(crate) fn grant_rights(bed: &Bed) -> Result<()> {
    if bed.config().install == Install::Chart {
        return Ok(());
    }
    let rights = include_str!("../../../deploy/rbac.yaml");
    let kinds = [
        include_str!("../../../deploy/virtual-network.yaml"),
        include_str!("../../../deploy/ipam-claim.yaml"),
        include_str!("../../../deploy/onap-network.yaml"),
    ];
    let mut objects = vec![rights];
    objects.extend(kinds);
    if bed.config().plugin {
        // Another plugin would write these annotations itself.
        objects.push(admission::MANIFEST);
    }
    if bed.config().multus.is_some() {
        objects.push(MULTUS);
    }
    bed.apply(&objects.join("\n---\n")).map(drop)
}

/// Node objects in order, so that their ranges are known, and the tokens of controller and agents.
pub(crate) fn prepare_cluster(bed: &Bed) -> Result<()> {
    let objects: Vec<String> = (1..=bed.config().nodes)
        .map(|i| {
            let name = node_name(i);
            serde_json::json!({
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "labels": {
                    "kubernetes.io/hostname": name,
                    "kubernetes.io/os": "linux",
                    "topology.kubernetes.io/zone": format!("zone-{name}"),
                    "node.kubernetes.io/test-bed-address": node_ip(i).to_string(),
                }},
            })
            .to_string()
        })
        .collect();
    // A control plane alone has none.
    if !objects.is_empty() {
        bed.apply(&objects.join("\n---\n"))?;
    }
    if bed.config().install == Install::Chart {
        return Ok(());
    }
    access::issue(bed)?;
    if bed.config().plugin { admission::wait_in_force(bed) } else { Ok(()) }
}

/// Our controller.
pub(crate) fn start_controller(bed: &Bed) -> Result<()> {
    let config = bed.config();
    let argv: Vec<String> = [config.program("slipstream-controller").display().to_string(), "run".into()]
        .into_iter()
        .chain(controller_arguments(config))
        .collect();
    let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
    bed.host("central").start("controller", &argv, &[])
}

/// An address as OVSDB's targets have it (ovsdb(7)).
fn bracketed(ip: IpAddr) -> String {
    if ip.is_ipv6() { format!("[{ip}]") } else { ip.to_string() }
}

/// The flags of the controller.
#[must_use]
pub fn controller_arguments(config: &Config) -> Vec<String> {
    let flag = |name: &str, value: String| format!("--{name}={value}");
    vec![
        flag("kubeconfig", config.kubeconfig("controller").display().to_string()),
        flag("nb", format!("tcp:{}", config.central(NB_PORT))),
        flag("cluster-subnets", config.cluster_subnets.clone()),
        flag("service-cidrs", config.service_cidrs()),
        flag("join-subnet", config.families(JOIN_SUBNET, JOIN_SUBNET_6)),
        flag("masquerade-subnet", config.families(MASQUERADE_SUBNET, MASQUERADE_SUBNET_6)),
        flag("mtu", POD_MTU.to_string()),
        flag("default-network", config.is_default_network().to_string()),
        flag("network-policy", config.network_policy.to_string()),
        flag("verify-interval", config.verify_interval.to_string()),
        "--lease-namespace=kube-system".into(),
        "--lease-name=slipstream-controller".into(),
        // Where everything is slow, a lease may run out before it can be renewed.
        flag("leader-elect", (exec::patience() == 1).to_string()),
        flag("metrics-bind-address", format!("127.0.0.1:{CONTROLLER_PORT}")),
        flag("network-api-bind-address", format!("127.0.0.1:{NETWORK_API_PORT}")),
    ]
}
