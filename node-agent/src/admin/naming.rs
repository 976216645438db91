//! Names for what the maps only number: containers get their pod's name, tunnel ends the name of their node.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::node::Node;
use crate::ovs::ports::PodPort;

/// A pod of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// `NAMESPACE/NAME`.
    pub pod: String,
    /// Addresses with prefix length.
    pub addresses: Vec<String>,
    /// Its OVS port.
    pub port: String,
    /// Its MAC address.
    pub mac: String,
}

/// What is known at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Naming {
    /// By container id.
    pub pods: BTreeMap<String, Named>,
    /// By address of the tunnel end.
    pub nodes: BTreeMap<IpAddr, String>,
}

/// No endpoint, or more than one, goes by that name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoEndpoint {
    /// None.
    #[error(
        "endpoint `{0}` is not on this node: NAMESPACE/POD or a container id (or its beginning), as `slipctl status` lists them, is needed"
    )]
    Unknown(String),
    /// More than one.
    #[error("endpoint `{name}` is the beginning of {} container ids ({}): more of it is needed", .found.len(), .found.join(", "))]
    Ambiguous {
        /// What was asked for.
        name: String,
        /// What begins so.
        found: Vec<String>,
    },
}

impl Naming {
    /// What the node knows now.
    pub fn of(node: &Node) -> Self {
        Self::new(node.ovs.pod_ports(), node.peers.list())
    }

    /// From the pods' ports and the nodes' addresses.
    pub fn new(ports: Vec<PodPort>, nodes: BTreeMap<IpAddr, String>) -> Self {
        let named = |port: PodPort| {
            let addresses = port.addresses.split(',').filter(|a| !a.is_empty()).map(str::to_owned).collect();
            let named = Named { pod: pod_of(&port.iface_id), addresses, port: port.name, mac: port.mac };
            (port.sandbox, named)
        };
        Self { pods: ports.into_iter().map(named).collect(), nodes }
    }

    /// `NAMESPACE/NAME` of a container's pod.
    pub fn pod(&self, container: &str) -> Option<String> {
        self.pods.get(container).map(|named| named.pod.clone())
    }

    /// Name of the node whose tunnel end has this address.
    pub fn node(&self, remote: IpAddr) -> Option<String> {
        self.nodes.get(&remote).cloned()
    }

    /// The container that is meant by `NAMESPACE/POD`, an id, or the beginning of an id.
    pub fn container(&self, name: &str) -> Result<String, NoEndpoint> {
        if let Some((id, _)) = self.pods.iter().find(|(id, named)| *id == name || named.pod == name) {
            return Ok(id.clone());
        }
        let found: Vec<String> =
            self.pods.keys().filter(|id| !name.is_empty() && id.starts_with(name)).cloned().collect();
        match found.as_slice() {
            [one] => Ok(one.clone()),
            [] => Err(NoEndpoint::Unknown(name.to_owned())),
            _ => Err(NoEndpoint::Ambiguous { name: name.to_owned(), found }),
        }
    }
}

/// The logical port is called `NAMESPACE_POD`, and neither has an underscore.
fn pod_of(iface_id: &str) -> String {
    iface_id.replacen('_', "/", 1)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn naming() -> Naming {
        let port = |sandbox: &str, iface_id: &str, address: &str| PodPort {
            name: format!("so{sandbox}"),
            iface_id: iface_id.to_owned(),
            iface_id_ver: "u".to_owned(),
            sandbox: sandbox.to_owned(),
            pod_interface: "eth0".to_owned(),
            mac: "0a:58:0a:f4:00:03".to_owned(),
            addresses: address.to_owned(),
        };
        let ports = vec![
            port("c0ffee01", "default_web-1", "10.244.0.3/24,fd00:10:244::3/64"),
            port("c0ffee02", "default_web-2", "10.244.0.4/24"),
        ];
        Naming::new(ports, BTreeMap::from([("172.18.0.3".parse().unwrap(), "n2".to_owned())]))
    }

    #[test]
    fn an_endpoint_is_found_by_pod_by_id_and_by_the_beginning_of_its_id() {
        for name in ["default/web-2", "c0ffee02"] {
            assert_eq!(naming().container(name).as_deref(), Ok("c0ffee02"), "{name}");
        }
        let mut one = naming();
        one.pods.remove("c0ffee02");
        assert_eq!(one.container("c0f").as_deref(), Ok("c0ffee01"));
    }

    #[test]
    fn an_unknown_or_ambiguous_endpoint_is_an_error_that_says_so() {
        let error = naming().container("c0").unwrap_err().to_string();
        assert!(error.contains("2 container ids (c0ffee01, c0ffee02)"), "{error}");
        for name in ["default/no", "", "web-1"] {
            let error = naming().container(name).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("endpoint `{name}` is not")) && error.contains("NAMESPACE/POD"),
                "{error}"
            );
        }
    }
}
