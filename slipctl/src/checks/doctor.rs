//! `slipctl doctor`: whether this node does what it should. Asks the agent, OVS and ovn-controller.

use std::path::{Path, PathBuf};

use api::admin::{self as wire, MonitorHealth, Path as Way, Status};

use super::host::Host;
use super::{Finding, links, unixctl};
use crate::client::Client;

/// Full enough to be told.
const FULL_PERCENT: u64 = 90;
/// What to do about each condition of the agent.
const REMEDIES: [(&str, &str); 7] = [
    (
        "ovs",
        "is Open vSwitch running? the node's pod of DaemonSet slipstream-ovs, or the service of the machine",
    ),
    (
        "pods",
        "can the agent reach the API server (SLIPSTREAM_API_SERVER), and may it list pods (deploy/rbac.yaml)?",
    ),
    (
        "gateway",
        "the reason names interface and step; docs/gateway.md says what the agent needs of an uplink",
    ),
    ("cni", "the reason names the file; docs/cni.md says what is installed where"),
    ("metrics", "another program has the port: agent.metricsPort"),
    ("chassis", "is ovn-controller running, and does SLIPSTREAM_SB name the southbound database?"),
    (
        "cluster-network",
        "the flags of controller and agent differ: change the ConfigMap `slipstream` and restart the agent",
    ),
];

/// What is asked.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory with the sockets of Open vSwitch.
    #[arg(long, default_value = "/run/openvswitch")]
    ovs_run_dir: PathBuf,
    /// Directory with the sockets of ovn-controller.
    #[arg(long, default_value = "/run/ovn")]
    ovn_run_dir: PathBuf,
    /// Root of the machine's file system, where slipctl runs in a container that has it elsewhere.
    #[arg(long, default_value = "/")]
    root: PathBuf,
}

/// Looks at the node.
pub(crate) fn run(args: &Args, client: &Client) -> Vec<Finding> {
    let mut findings = Vec::new();
    let status = client.get(wire::STATUS).and_then(|value| {
        serde_json::from_value::<Status>(value).map_err(crate::client::Error::not_understood)
    });
    match status {
        Ok(status) => agent(&status, &mut findings),
        Err(error) => findings.push(Finding::failure(
            "agent",
            error.to_string(),
            "without an agent no pod starts on this node; traffic of pods that run goes on",
            "kubectl -n kube-system logs daemonset/slipstream-node -c node-agent",
        )),
    }
    ovs(&args.ovs_run_dir, &mut findings);
    findings.push(ovn_controller(&args.ovn_run_dir));
    links::cni(&Host::new(&args.root), true, &mut findings);
    findings
}

/// What the agent's status says.
fn agent(status: &Status, findings: &mut Vec<Finding>) {
    findings.push(Finding::ok("agent", format!("{} on {}", status.versions.agent, status.node)));
    if status.problems.is_empty() {
        findings.push(Finding::ok("conditions", format!("all {} met", status.conditions.len())));
    }
    for problem in &status.problems {
        let condition = problem.split(':').next().unwrap_or_default();
        let remedy = REMEDIES.iter().find(|(name, _)| *name == condition).map_or(
            "the agent's log says more: kubectl -n kube-system logs daemonset/slipstream-node -c node-agent",
            |(_, remedy)| remedy,
        );
        findings.push(Finding::failure(
            "conditions",
            problem,
            "the node is not ready, and no pod starts on it",
            remedy,
        ));
    }
    for warning in &status.warnings {
        findings.push(Finding::warning(
            "warnings",
            warning,
            "the agent runs without what the warning names",
            "docs/agent.md explains the agent's warnings",
        ));
    }
    findings.push(match (status.path.path, &status.cache) {
        (Way::Ebpf, _) => Finding::ok("path", format!("ebpf: {}", status.path.reason)),
        (Way::Ovs, _) => Finding::warning(
            "path",
            format!("ovs: {}", status.path.reason),
            "every packet goes through OVS: correct, and slower",
            "see the reason; docs/datapath.md lists them. With agent.datapath: ovs it is what was asked for",
        ),
    });
    let Some(cache) = &status.cache else { return };
    findings.push(match cache.monitor {
        MonitorHealth::Synced => Finding::ok("OVS monitor", "synced"),
        _ => Finding::failure(
            "OVS monitor",
            cache.unsynced_reason.clone(),
            "the agent does not hear of OVS's changes, so packets go through OVS",
            "is ovs-vswitchd running, and is its socket readable?",
        ),
    });
    if !cache.tracking_unheard.is_empty() {
        findings.push(Finding::warning(
            "connection tracking",
            format!("ends of connections are not heard of: {}", cache.tracking_unheard),
            "a connection that the kernel forgets stays cached until its refresh, 2 s",
            "may the agent subscribe (NET_ADMIN), and is nf_conntrack_netlink there?",
        ));
    }
    if cache.divergences > 0 {
        findings.push(Finding::warning(
            "divergences",
            format!("{} answers of OVS differed from a cached one", cache.divergences),
            "each was corrected at once; a number that grows is a fault",
            "slipctl audit --all, and report it with slipctl bundle",
        ));
    }
    for map in status.maps.iter().filter(|map| map.entries * 100 > map.capacity * FULL_PERCENT) {
        findings.push(Finding::warning(
            "maps",
            format!("{} has {} of {} entries", map.map, map.entries, map.capacity),
            "flows that do not fit take the slow path",
            "agent.flowTableSize",
        ));
    }
}

/// Open vSwitch and what its database says of the node.
fn ovs(run: &Path, findings: &mut Vec<Finding>) {
    let remedy = "is its pod or service running? kubectl -n kube-system get pods -o wide -l app.kubernetes.io/component=ovs";
    findings.push(match unixctl::ask(run, "ovs-vswitchd", "version") {
        Ok(version) => Finding::ok("Open vSwitch", version),
        Err(error) => Finding::failure(
            "Open vSwitch",
            format!("ovs-vswitchd does not answer in {}: {error}", run.display()),
            "new connections wait for it",
            remedy,
        ),
    });
    let socket = run.join("db.sock");
    let ids = match api::settings::read_external_ids(&socket) {
        Ok(ids) => ids,
        Err(error) => {
            let found = format!("{}: {error}", socket.display());
            findings.push(Finding::failure(
                "OVS database",
                found,
                "agent and ovn-controller read it",
                remedy,
            ));
            return;
        }
    };
    let missing: Vec<&str> = ["system-id", "ovn-remote", "ovn-encap-ip"]
        .into_iter()
        .filter(|key| !ids.contains_key(*key))
        .collect();
    findings.push(match missing.is_empty() {
        true => Finding::ok(
            "OVS database",
            format!("chassis {}, southbound {}", ids["system-id"], ids["ovn-remote"]),
        ),
        false => Finding::failure(
            "OVS database",
            format!("external_ids has no {}", missing.join(", ")),
            "ovn-controller does not start its work without them",
            "the agent writes them when its gateway is set up: slipctl status",
        ),
    });
}

fn ovn_controller(run: &Path) -> Finding {
    let (check, remedy) = (
        "ovn-controller",
        "can this node reach the southbound database (port 6642 of the nodes with OVN's databases)?",
    );
    match unixctl::ask(run, "ovn-controller", "connection-status") {
        Ok(state) if state == "connected" => Finding::ok(check, "connected to the southbound database"),
        Ok(state) => Finding::failure(
            check,
            format!("{state} (southbound database)"),
            "new pods, policies and services do not reach this node",
            remedy,
        ),
        Err(error) => Finding::warning(
            check,
            format!("cannot be asked in {}: {error}", run.display()),
            "whether it has the southbound database is not known here",
            "where it is a container of its own: kubectl -n kube-system get pods -o wide, its readiness says so",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::Level;

    #[test]
    fn each_problem_of_the_agent_is_a_finding_with_a_remedy() {
        let status = serde_json::from_value(serde_json::json!({
            "node": "n1", "path": "ovs", "reason": "kernel too old", "attach": "direct", "ovsDatapath": "system",
            "ready": false, "problems": ["pods: not read"], "warnings": ["gateway: MTU"], "cache": null,
            "versions": {"agent": "0.1.0", "programs": null, "mapLayout": 2, "kernel": "5.4", "ovs": null},
            "endpoints": [], "maps": [{"map": "FLOWS", "entries": 95, "capacity": 100}], "packetReasons": {}
        }))
        .unwrap();
        let mut findings = Vec::new();
        agent(&status, &mut findings);
        let told = |check: &str| findings.iter().find(|finding| finding.check == check).unwrap();
        assert!(
            told("conditions").level == Level::Failure && told("conditions").remedy.contains("rbac.yaml")
        );
        assert_eq!(told("warnings").level, Level::Warning);
        assert!(told("path").found.contains("kernel too old"));
    }

    #[test]
    fn daemons_that_do_not_run_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let mut findings = Vec::new();
        ovs(dir.path(), &mut findings);
        assert!(findings.iter().all(|finding| finding.level == Level::Failure), "{findings:?}");
        assert_eq!(ovn_controller(dir.path()).level, Level::Warning);
    }
}
