//! Versions of the node's components.

use std::time::Duration;

use crate::bpf;
use crate::node::Node;
use crate::ovs::unixctl::Unixctl;
use api::admin::Versions;

/// Versions of agent, programs, running kernel and OVS.
pub(super) fn versions(node: &Node) -> Versions {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease");
    let kernel = kernel.map_or_else(|error| format!("unknown ({error})"), |text| text.trim().to_owned());
    Versions {
        agent: env!("CARGO_PKG_VERSION").to_owned(),
        programs: bpf::Programs::fingerprint().map(str::to_owned),
        map_layout: bpf::layout(),
        kernel,
        ovs: node.ovs.system().and_then(|row| row.ovs_version.clone()),
    }
}

/// Version of OVS as reported by ovs-vswitchd, for when the database has none.
pub(super) async fn ovs(unixctl: &Unixctl) -> Option<String> {
    let answer = unixctl.call("version", &[], Duration::from_secs(2)).await;
    match answer {
        // `ovs-vswitchd (Open vSwitch) 3.5.0`, possibly followed by more lines.
        Ok(text) => text.lines().next()?.split_whitespace().last().map(str::to_owned),
        Err(error) => {
            tracing::debug!(%error, "the version of OVS is not known");
            None
        }
    }
}
