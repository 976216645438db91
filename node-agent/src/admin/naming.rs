//! Resolves ids of endpoints to pods and tunnel endpoints to nodes. An endpoint is an interface of a pod; the first one of a pod has the
//! container's id and the pod's name, `NAMESPACE/POD`, another one is `NAMESPACE/POD/INTERFACE`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use api::NamespacedName;

use crate::attach;
use crate::kube::service_names::ServiceNames;
use crate::node::Node;
use crate::ovs::ports::PodPort;

/// An interface of a pod of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// `NAMESPACE/NAME`, and `/INTERFACE` if it is not the pod's first.
    pub pod: String,
    /// Virtual network; `None`: the cluster network.
    pub network: Option<NamespacedName>,
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
    /// Interfaces of pods by id.
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
            let id = port.id();
            let named = Named {
                pod: pod_of(&port, &id),
                network: port.network(),
                addresses,
                port: port.name,
                mac: port.mac,
            };
            (id, named)
        };
        Self { pods: ports.into_iter().map(named).collect(), nodes, services: ServiceNames::default() }
    }

    /// Name of the endpoint with this id, as in [`Named::pod`].
    pub fn pod(&self, id: &str) -> Option<String> {
        self.pods.get(id).map(|named| named.pod.clone())
    }

    /// `NAMESPACE/NAME` of this node's pod with an address of the cluster network. Other networks may have the same addresses.
    pub fn pod_at(&self, ip: IpAddr) -> Option<String> {
        let has = |address: &String| address.split('/').next().and_then(|a| a.parse().ok()) == Some(ip);
        let mut cluster = self.pods.values().filter(|named| named.network.is_none());
        let named = cluster.find(|named| named.addresses.iter().any(has))?;
        Some(named.pod.clone())
    }

    /// Name of the node with this tunnel endpoint.
    pub fn node(&self, remote: IpAddr) -> Option<String> {
        self.nodes.get(&remote).cloned()
    }

    /// Resolves `NAMESPACE/POD`, `NAMESPACE/POD/INTERFACE`, an id or a prefix of one to an id.
    ///
    /// # Errors
    /// No interface has the name, or several have it.
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

/// Name of the endpoint of a port; the logical port where that is not named after a pod.
fn pod_of(port: &PodPort, id: &str) -> String {
    match port.pod() {
        None => port.iface_id.clone(),
        Some(pod) if attach::is_first(id) => pod.to_string(),
        Some(pod) => format!("{pod}/{}", port.pod_interface),
    }
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
    fn another_interface_of_a_pod_has_a_name_of_its_own_and_hides_no_pod() {
        let port = |number, iface_id: &str, interface: &str, address: &str| PodPort {
            name: attach::Names::of(&attach::interface_id("c0ffee01", number)).host,
            iface_id: iface_id.to_owned(),
            iface_id_ver: "u".to_owned(),
            sandbox: "c0ffee01".to_owned(),
            pod_interface: interface.to_owned(),
            mac: "0a:58:0a:f4:00:03".to_owned(),
            addresses: address.to_owned(),
        };
        let ports = vec![
            port(0, "red_web.1", "eth0", "10.244.0.3/24"),
            port(1, "shop.blue_red_web.1", "net1", "10.244.0.4/24"),
            port(2, "shop.blue.net2_red_web.1", "net2", "10.244.0.5/24"),
        ];
        let naming = Naming::new(ports, BTreeMap::new());
        assert_eq!(naming.pods.len(), 3);
        for (name, number) in [("red/web.1", 0), ("red/web.1/net1", 1), ("red/web.1/net2", 2), ("c0ffee", 0)]
        {
            let id = attach::interface_id("c0ffee01", number);
            assert_eq!(naming.container(name), Ok(id.clone()));
            assert_eq!(naming.pods[&id].network, (number > 0).then(|| NamespacedName::new("shop", "blue")));
        }
        let at = |address: &str| naming.pod_at(address.parse().unwrap());
        assert_eq!((at("10.244.0.3").as_deref(), at("10.244.0.4")), (Some("red/web.1"), None));
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
