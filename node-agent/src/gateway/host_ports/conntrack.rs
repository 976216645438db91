//! Stale connection tracking entries of UDP host ports: UDP has no end of connection, so a client that keeps its source port would
//! be forwarded to the previous pod of a host port indefinitely, or to the host if there was none.

use std::collections::BTreeSet;

use crate::kube::host_ports::HostPorts;
use api::Protocol;

/// UDP ports whose serving pod changed, appeared or disappeared.
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
