//! The node's own connection tracking: UDP has no end, so a client that keeps its port would be sent for ever to the pod that
//! had a host port before, or to the node itself where none had it.

use std::collections::BTreeSet;

use crate::kube::host_ports::HostPorts;
use api::Protocol;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::host_ports::tests::three;

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
