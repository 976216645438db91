//! Resolves container ids to pods and tunnel endpoints to nodes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::kube::service_names::ServiceNames;
use crate::node::Node;
use crate::ovs::ports::PodPort;

/// A pod of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// `NAMESPACE/NAME`.
    pub pod: String,
    /// Addresses with prefix length.
    pub addresses: Vec<String>,
    /// Name of the pod's OVS port.
    pub port: String,
    /// MAC address of the pod.
    pub mac: String,
}

/// Snapshot of the names of pods and nodes.
#[derive(Debug, Clone, Default)]
pub struct Naming {
    /// Pods by container id.
    pub pods: BTreeMap<String, Named>,
    /// Node names by address of the tunnel endpoint.
    pub nodes: BTreeMap<IpAddr, String>,
    /// Services by address.
    pub services: ServiceNames,
}

/// A name does not identify one endpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoEndpoint {
    /// No endpoint matches.
    #[error(
        "no endpoint `{0}` on this node; use NAMESPACE/POD or a (prefix of a) container id as listed by `slipctl status`"
    )]
    Unknown(String),
    /// Several endpoints match.
    #[error("endpoint `{name}` is a prefix of {} container ids ({}); use a longer one", .found.len(), .found.join(", "))]
    Ambiguous {
        /// Requested name.
        name: String,
        /// Matching container ids.
        found: Vec<String>,
    },
}

impl Naming {
    /// Names known to the node now.
    pub fn of(node: &Node) -> Self {
        let services = node.service_names.clone();
        Self { services, ..Self::new(node.ovs.pod_ports(), node.peers.list()) }
    }

    /// Names from pod ports and node addresses.
    pub fn new(ports: Vec<PodPort>, nodes: BTreeMap<IpAddr, String>) -> Self {
        let named = |port: PodPort| {
            let addresses = port.addresses.split(',').filter(|a| !a.is_empty()).map(str::to_owned).collect();
            let named = Named { pod: pod_of(&port.iface_id), addresses, port: port.name, mac: port.mac };
            (port.sandbox, named)
        };
        Self { pods: ports.into_iter().map(named).collect(), nodes, services: ServiceNames::default() }
    }

    /// `NAMESPACE/NAME` of the pod of container `container`.
    pub fn pod(&self, container: &str) -> Option<String> {
        self.pods.get(container).map(|named| named.pod.clone())
    }

    /// `NAMESPACE/NAME` of this node's pod with an address.
    pub fn pod_at(&self, ip: IpAddr) -> Option<String> {
        let has = |address: &String| address.split('/').next().and_then(|a| a.parse().ok()) == Some(ip);
        let named = self.pods.values().find(|named| named.addresses.iter().any(has))?;
        Some(named.pod.clone())
    }

    /// Name of the node with this tunnel endpoint.
    pub fn node(&self, remote: IpAddr) -> Option<String> {
        self.nodes.get(&remote).cloned()
    }

    /// Resolves `NAMESPACE/POD`, a container id or a prefix of one to a container id.
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

/// Converts a logical port `NAMESPACE_POD` to `NAMESPACE/POD`; neither part contains an underscore.
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
                error.starts_with(&format!("no endpoint `{name}` on this node"))
                    && error.contains("NAMESPACE/POD"),
                "{error}"
            );
        }
    }
}
