//! A node: its switch, OVN's controller, and our agent.

use std::time::Duration;

use anyhow::{Context, Result};

use super::Bed;
use super::ENVIRONMENT;
use super::config::{
    AGENT_PORT, Config, GatewayMode, JOIN_SUBNET, JOIN_SUBNET_6, MASQUERADE_SUBNET, MASQUERADE_SUBNET_6,
    POD_MTU, SB_PORT, node_index, system_id,
};
use crate::exec;

/// How long an agent that has moved the uplink waits for the API server before it gives the uplink back.
const API_PATIENCE: Duration = Duration::from_secs(60);
/// Where packages of Open vSwitch have it.
const DATABASE: &str = "/etc/openvswitch/conf.db";
const SOCKET: &str = "/run/openvswitch/db.sock";

/// The switch's database, the switch, and ovn-controller, which waits for the agent to tell it where SB is.
pub(super) fn start_ovs(bed: &Bed, node: &str) -> Result<()> {
    let config = bed.config();
    let index = node_index(node).with_context(|| format!("{node} is no node"))?;
    let settings = [
        format!("external_ids:system-id={}", system_id(index)),
        format!("external_ids:hostname={node}"),
        format!("external_ids:ovn-bridge-datapath-type={}", config.ovs_datapath.as_str()),
    ];
    start_switch(bed, node, &settings)?;
    let controller = config.ovs("ovn-controller").display().to_string();
    let database = format!("unix:{SOCKET}");
    let argv = [controller.as_str(), &database, "--pidfile=/run/ovn/ovn-controller.pid", "-vconsole:info"];
    // As its daemonset would: ovn-controller 25.03 ends now and then by an assertion (lib/ovsdb-idl.c, txn_write__) when a
    // port goes at the moment that it is marked as installed.
    bed.host(node).start_service("ovn-controller", &argv, ENVIRONMENT)
}

/// The switch's database and the switch, on any host. `settings`: columns of its Open_vSwitch row.
pub fn start_switch(bed: &Bed, host: &str, settings: &[String]) -> Result<()> {
    let config = bed.config();
    let host = bed.host(host);
    // A node that was rebooted finds its database where its disk outlives it.
    if !host.path(DATABASE)?.exists() {
        let mut create = host.command(config.ovs("ovsdb-tool"))?;
        exec::output(create.args(["create", DATABASE]).arg(config.schema("vswitch.ovsschema")))?;
    }
    let program = |name: &str| config.ovs(name).display().to_string();
    let remote = format!("--remote=punix:{SOCKET}");
    let server = program("ovsdb-server");
    let argv =
        [server.as_str(), DATABASE, &remote, "--pidfile=/run/openvswitch/ovsdb-server.pid", "-vconsole:info"];
    host.start("ovsdb-server", &argv, ENVIRONMENT)?;
    exec::retry(Duration::from_secs(10), "the switch's database answers", || {
        let mut command = host.command(config.ovs("ovs-vsctl"))?;
        command.args([&format!("--db=unix:{SOCKET}"), "--timeout=5", "--no-wait", "init"]);
        command.args(["--", "set", "Open_vSwitch", ".", "other_config:vlan-limit=0"]);
        command.args(settings);
        // Without eBPF between OVS and the pods, OVS itself must take packets whose checksum or segmentation
        // is left to the device. It reads this at its start only.
        if plain_ovs(config) {
            command.arg("other_config:userspace-tso-enable=true");
        }
        exec::output(&mut command)
    })?;
    let database = format!("unix:{SOCKET}");
    let switch = program("ovs-vswitchd");
    let argv = [switch.as_str(), &database, "--pidfile=/run/openvswitch/ovs-vswitchd.pid", "-vconsole:info"];
    host.start("ovs-vswitchd", &argv, ENVIRONMENT)
}

/// Whether pods' interfaces are OVS's own ports.
fn plain_ovs(config: &Config) -> bool {
    use super::config::{AttachMode, Datapath, OvsDatapath};
    config.ovs_datapath == OvsDatapath::Netdev
        && (config.datapath == Datapath::Ovs || config.attach_mode == AttachMode::Direct)
}

/// Our agent.
pub(super) fn start_agent(bed: &Bed, node: &str) -> Result<()> {
    start_agent_with(bed, node, &[])
}

/// Our agent with flags that it usually has not, or has otherwise. It must not run already.
pub fn start_agent_with(bed: &Bed, node: &str, flags: &[&str]) -> Result<()> {
    start_agent_in(bed, node, flags, &[])
}

/// As [`start_agent_with`], with environment variables that it usually does not have.
pub fn start_agent_in(bed: &Bed, node: &str, flags: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    let config = bed.config();
    // A flag given twice is an error.
    let name = |flag: &str| flag.split_once('=').map_or(flag, |(name, _)| name).to_owned();
    let changed: Vec<String> = flags.iter().map(|flag| name(flag)).collect();
    let usual = agent_arguments(config, node).into_iter().filter(|flag| !changed.contains(&name(flag)));
    let argv: Vec<String> = [config.program("slipstream-node-agent").display().to_string(), "run".into()]
        .into_iter()
        .chain(usual)
        .chain(flags.iter().map(|&flag| flag.to_owned()))
        .collect();
    let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
    let mut usual = ENVIRONMENT.to_vec();
    let api_patience = exec::patient(API_PATIENCE).as_millis().to_string();
    // Where everything is slow, an uplink that is given back stays so for minutes.
    if exec::patience() > 1 {
        usual.push(("SLIPSTREAM_API_PATIENCE_MS", &api_patience));
    }
    bed.host(node).start("node-agent", &argv, &[&usual, environment].concat())
}

/// The flags of an agent, the same for `run` and for `cleanup`.
#[must_use]
pub fn agent_arguments(config: &Config, node: &str) -> Vec<String> {
    let flag = |name: &str, value: String| format!("--{name}={value}");
    let mut arguments = vec![
        flag("node-name", node.to_owned()),
        flag("kubeconfig", config.kubeconfig(&format!("agent-{node}")).display().to_string()),
        flag("ovs-db", format!("unix:{SOCKET}")),
        flag("sb", format!("tcp:{}", config.central(SB_PORT))),
        flag("cluster-subnets", config.cluster_subnets.clone()),
        flag("service-cidrs", config.service_cidrs()),
        flag("join-subnet", config.families(JOIN_SUBNET, JOIN_SUBNET_6)),
        flag("masquerade-subnet", config.families(MASQUERADE_SUBNET, MASQUERADE_SUBNET_6)),
        flag("mtu", POD_MTU.to_string()),
        flag("default-network", config.is_default_network().to_string()),
        flag("encap-ip", "auto".into()),
        flag("gateway-interface", config.uplink.name().into()),
        flag("datapath", config.datapath.as_str().into()),
        flag("attach-mode", config.attach_mode.as_str().into()),
        flag("cni-socket", "/run/slipstream/cni.sock".into()),
        flag("cni-conf-dir", "/etc/cni/net.d".into()),
        flag("cni-bin-dir", "/opt/cni/bin".into()),
        flag("state-dir", "/var/lib/slipstream".into()),
        flag("bpf-dir", "/sys/fs/bpf/slipstream".into()),
        flag("metrics-bind-address", format!("127.0.0.1:{AGENT_PORT}")),
        flag("ofctl", config.ovs("ovs-ofctl").display().to_string()),
    ];
    // Agents of earlier releases do not know it.
    if config.gateway_mode == GatewayMode::Local {
        arguments.push(flag("gateway-mode", "local".into()));
    }
    arguments
}
