//! How pods and the uplink are attached to OVS: the two modes, the names of the links that the agent makes, and their link group.

use crate::kernel::link::MAX_NAME;

/// Link group of links whose packets only OVS may see; a rule of nftables keeps them from the node's own stack.
pub const OVS_ONLY_GROUP: u32 = 0x5151;

/// How a pod or the uplink reaches OVS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attach {
    /// The pod's host veth, or the uplink, is the OVS port.
    Direct,
    /// The OVS port is the far end of a second veth pair, the shim; eBPF programs carry packets between the two.
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

/// Names of a container's links on the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// The pod's host veth: the first 15 characters of the id, as ovn-kubernetes has it.
    pub host: String,
    /// The shim's end that programs use.
    pub shim_agent: String,
    /// The shim's end that is the OVS port.
    pub shim_ovs: String,
}

impl Names {
    /// The names of the links of container `container`.
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

/// Name of the end of the uplink's shim that the programs use.
pub fn shim_agent_end(uplink: &str) -> String {
    fitting(format!("sa-{uplink}"))
}

/// Name of the end of the uplink's shim that is OVS's port.
pub fn shim_ovs_end(uplink: &str) -> String {
    fitting(format!("so-{uplink}"))
}

/// `name`, cut to the length that the kernel takes for a name of an interface.
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
