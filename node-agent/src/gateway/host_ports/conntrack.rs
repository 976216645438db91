//! The node's own connection tracking: UDP has no end, so a client that keeps its port would be sent for ever to the pod that
//! had a host port before, or to the node itself where none had it.

use std::collections::BTreeSet;
use std::process::Stdio;

use anyhow::{Context, bail};

use super::HostPorts;
use crate::gateway::services::Protocol;

/// The UDP ports that are served by another pod than before, or newly, or no more.
pub fn stale(before: &HostPorts, after: &HostPorts) -> BTreeSet<u16> {
    let changed = |of: &HostPorts, other: &HostPorts| -> BTreeSet<u16> {
        of.iter()
            .filter(|(place, by)| place.protocol == Protocol::Udp && other.get(place) != Some(*by))
            .map(|(place, _)| place.port)
            .collect()
    };
    changed(before, after).union(&changed(after, before)).copied().collect()
}

/// Forgets what is tracked of UDP to a port.
#[expect(clippy::disallowed_methods, reason = "conntrack(8); started when host ports of UDP change only")]
pub async fn forget(port: u16) -> anyhow::Result<()> {
    let output = tokio::process::Command::new("conntrack")
        .args(["-D", "-p", "udp", "--orig-port-dst", &port.to_string()])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .context("cannot start `conntrack`; the conntrack package is needed for host ports of UDP")?;
    let told = String::from_utf8_lossy(&output.stderr);
    // It fails as well when there was nothing to delete.
    if !output.status.success() && !told.contains("0 flow entries") {
        bail!("conntrack -D for UDP port {port}: {}", told.trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::three;
    use super::*;

    #[test]
    fn only_udp_ports_whose_pod_changed_are_stale() {
        let now = three();
        assert!(stale(&now, &now).is_empty());
        assert_eq!(stale(&now, &HostPorts::new()), BTreeSet::from([54323]));
        assert_eq!(stale(&HostPorts::new(), &now), BTreeSet::from([54323]));
        let mut other = now.clone();
        other.retain(|place, _| place.protocol == Protocol::Udp);
        assert!(stale(&now, &other).is_empty(), "TCP ends by itself");
    }
}
