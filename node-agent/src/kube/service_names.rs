//! Names of the services that addresses belong to.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

use api::service::{Front, Service};
use api::{NamespacedName, Protocol};
use parking_lot::RwLock;

/// A port of a service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServicePortName {
    /// The service.
    pub service: NamespacedName,
    /// Name of the port; empty if the service's only port has none.
    pub port: String,
}

/// Names by addresses. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct ServiceNames(Arc<RwLock<Names>>);

#[derive(Debug, Default)]
struct Names {
    of: HashMap<(Protocol, Front), ServicePortName>,
    /// Addresses of each service.
    fronts: BTreeMap<NamespacedName, Vec<(Protocol, Front)>>,
}

impl ServiceNames {
    /// Sets the state of a service; `None`: it was deleted.
    pub fn set(&self, name: &NamespacedName, service: Option<&Service>) {
        let mut names = self.0.write();
        for front in names.fronts.remove(name).unwrap_or_default() {
            if names.of.get(&front).is_some_and(|of| of.service == *name) {
                names.of.remove(&front);
            }
        }
        let fronts: Vec<_> = service.into_iter().flat_map(Service::fronts).collect();
        for (port, front) in &fronts {
            let of = ServicePortName { service: name.clone(), port: port.name.clone() };
            names.of.insert((port.protocol, *front), of);
        }
        if !fronts.is_empty() {
            let fronts = fronts.into_iter().map(|(port, front)| (port.protocol, front)).collect();
            names.fronts.insert(name.clone(), fronts);
        }
    }

    /// Drops services that are not among `alive` (after a watch was restarted).
    pub fn retain(&self, alive: &BTreeSet<NamespacedName>) {
        let known: Vec<_> = self.0.read().fronts.keys().cloned().collect();
        for name in known.iter().filter(|name| !alive.contains(name)) {
            self.set(name, None);
        }
    }

    /// The service that clients reach at a destination, and the form of the address.
    pub fn at(&self, protocol: Protocol, destination: SocketAddr) -> Option<(Front, ServicePortName)> {
        let names = self.0.read();
        let candidates = Front::candidates((destination.ip(), destination.port()));
        candidates.into_iter().find_map(|front| Some((front, names.of.get(&(protocol, front))?.clone())))
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1 as core;

    use super::*;

    fn service(name: &str, cluster_ip: &str, node_port: Option<i32>) -> Service {
        let object: core::Service = serde_json::from_value(serde_json::json!({
            "metadata": {"namespace": "shop", "name": name},
            "spec": {
                "clusterIP": cluster_ip, "clusterIPs": [cluster_ip],
                "type": if node_port.is_some() { "NodePort" } else { "ClusterIP" },
                "ports": [{"name": "http", "port": 80, "protocol": "TCP", "nodePort": node_port}],
            }
        }))
        .unwrap();
        Service::from_object(&object).0
    }

    fn at(names: &ServiceNames, destination: &str) -> Option<String> {
        let (front, port) = names.at(Protocol::Tcp, destination.parse().unwrap())?;
        Some(format!("{front} {}:{}", port.service, port.port))
    }

    #[test]
    fn a_service_is_found_by_its_addresses_until_it_goes() {
        let names = ServiceNames::default();
        let web = service("web", "10.96.0.9", Some(30_080));
        names.set(&web.name, Some(&web));
        assert_eq!(at(&names, "10.96.0.9:80").as_deref(), Some("10.96.0.9:80 shop/web:http"));
        assert_eq!(at(&names, "172.18.0.2:30080").as_deref(), Some("node port 30080 shop/web:http"));
        assert_eq!(at(&names, "10.96.0.9:81"), None);
        assert!(names.at(Protocol::Udp, "10.96.0.9:80".parse().unwrap()).is_none());
        names.set(&web.name, Some(&service("web", "10.96.0.10", None)));
        assert_eq!((at(&names, "10.96.0.9:80"), at(&names, "172.18.0.2:30080")), (None, None));
        names.retain(&BTreeSet::new());
        assert_eq!(at(&names, "10.96.0.10:80"), None);
    }

    #[test]
    fn an_address_that_another_service_took_over_stays_with_it() {
        let names = ServiceNames::default();
        let (old, new) = (service("old", "10.96.0.9", None), service("new", "10.96.0.9", None));
        names.set(&old.name, Some(&old));
        names.set(&new.name, Some(&new));
        names.set(&old.name, None);
        assert_eq!(at(&names, "10.96.0.9:80").as_deref(), Some("10.96.0.9:80 shop/new:http"));
    }
}
