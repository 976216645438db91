//! Attach modes of pods and uplink, and names and link group of the links that the agent creates.

use crate::kernel::link::MAX_NAME;

/// Link group of links whose packets are for OVS only; an nftables rule drops them in the host's network stack.
pub const OVS_ONLY_GROUP: u32 = 0x5151;

/// How a pod or the uplink is attached to OVS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attach {
    /// The pod's host veth, or the uplink, is the OVS port.
    Direct,
    /// The OVS port is the far end of a second veth pair, the shim; eBPF programs forward packets between the pairs.
    Interposed,
}

impl Attach {
    /// `direct` or `interposed`, as in status and flags.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Interposed => "interposed",
        }
    }
}

/// Names of a container's links on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// Host veth of the pod: the first 15 characters of the container id, as in ovn-kubernetes.
    pub host: String,
    /// Agent end of the shim, with eBPF programs.
    pub shim_agent: String,
    /// OVS end of the shim, the OVS port.
    pub shim_ovs: String,
}

impl Names {
    /// Names of the links of container `container`.
    pub fn of(container: &str) -> Self {
        let first = |n: usize| container.get(..n).unwrap_or(container);
        Self {
            host: first(15).to_owned(),
            shim_agent: format!("sa{}", first(13)),
            shim_ovs: format!("so{}", first(13)),
        }
    }

    /// Name of the OVS port.
    pub fn ovs_port(&self, mode: Attach) -> &str {
        match mode {
            Attach::Direct => &self.host,
            Attach::Interposed => &self.shim_ovs,
        }
    }
}

/// Name of the agent end of the uplink's shim.
pub fn shim_agent_end(uplink: &str) -> String {
    fitting(format!("sa-{uplink}"))
}

/// Name of the OVS end of the uplink's shim, the OVS port.
pub fn shim_ovs_end(uplink: &str) -> String {
    fitting(format!("so-{uplink}"))
}

/// Truncates `name` to the maximum length of an interface name.
pub fn fitting(mut name: String) -> String {
    while name.len() > MAX_NAME {
        name.pop();
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_and_short_ids_are_taken_whole() {
        let names = Names::of("7fabc589b5b8dc1aa0123456789");
        assert_eq!((names.host.as_str(), names.shim_agent.as_str()), ("7fabc589b5b8dc1", "sa7fabc589b5b8d"));
        assert_eq!(names.shim_ovs.len(), 15);
        assert_eq!(Names::of("c1").shim_ovs, "soc1");
        assert_eq!(names.ovs_port(Attach::Direct), "7fabc589b5b8dc1");
    }
}
