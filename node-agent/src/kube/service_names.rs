//! Names of the services that addresses belong to.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

use api::service::{Front, Service};
use api::{NamespacedName, Protocol};
use parking_lot::RwLock;
use tokio::sync::watch;

/// A port of a service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServicePortName {
    /// The service.
    pub service: NamespacedName,
    /// Name of the port; empty if the service's only port has none.
    pub port: String,
}

/// Names by addresses. Clones share them.
#[derive(Debug, Clone)]
pub struct ServiceNames {
    names: Arc<RwLock<Names>>,
    /// Number of changes of addresses.
    changes: watch::Sender<u64>,
}

impl Default for ServiceNames {
    fn default() -> Self {
        Self { names: Arc::default(), changes: watch::Sender::new(0) }
    }
}

#[derive(Debug, Default)]
struct Names {
    /// All services were listed once.
    complete: bool,
    /// Services that claim each place, oldest first: the first has it, as in the controller
    /// ([`Claims`](api::service::Claims)).
    of: HashMap<(Protocol, Front), BTreeMap<Claimant, ServicePortName>>,
    /// Addresses of each service, and how it claims them.
    fronts: BTreeMap<NamespacedName, (Claimant, Vec<(Protocol, Front)>)>,
}

/// When a service was created, in seconds since 1970, and its name.
type Claimant = (i64, NamespacedName);

impl Names {
    fn owner(&self, place: &(Protocol, Front)) -> Option<&ServicePortName> {
        self.of.get(place)?.values().next()
    }
}

impl ServiceNames {
    /// Sets the state of a service; `None`: it was deleted.
    pub fn set(&self, name: &NamespacedName, service: Option<&Service>) {
        let mut names = self.names.write();
        let before = names.fronts.remove(name);
        if let Some((claimant, places)) = &before {
            for place in places {
                let claims = names.of.entry(*place).or_default();
                claims.remove(claimant);
                if claims.is_empty() {
                    names.of.remove(place);
                }
            }
        }
        let after = service.map(|service| {
            let claimant = (service.created, name.clone());
            let mut places = Vec::new();
            for (port, front) in service.fronts() {
                let place = (port.protocol, front);
                let of = ServicePortName { service: name.clone(), port: port.name.clone() };
                names.of.entry(place).or_default().insert(claimant.clone(), of);
                places.push(place);
            }
            (claimant, places)
        });
        let changed = before != after;
        names.fronts.extend(after.map(|after| (name.clone(), after)));
        drop(names);
        if changed {
            self.changes.send_modify(|changes| *changes += 1);
        }
    }

    /// Call when all services were listed.
    pub fn set_complete(&self) {
        self.names.write().complete = true;
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// True once all services were listed: a service that is not among them does not exist.
    pub fn is_complete(&self) -> bool {
        self.names.read().complete
    }

    /// Changes of the services' addresses.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Where clients reach a service, without places that another service has; `None` if there is no such service. Services without load
    /// balancing have none.
    pub fn fronts(&self, name: &NamespacedName) -> Option<Vec<(Protocol, Front)>> {
        let names = self.names.read();
        let its_own = |place: &&(Protocol, Front)| names.owner(place).is_some_and(|of| of.service == *name);
        let (_, places) = names.fronts.get(name)?;
        Some(places.iter().filter(its_own).copied().collect())
    }

    /// Drops services that are not among `alive` (after a watch was restarted).
    pub fn retain(&self, alive: &BTreeSet<NamespacedName>) {
        let known: Vec<_> = self.names.read().fronts.keys().cloned().collect();
        for name in known.iter().filter(|name| !alive.contains(name)) {
            self.set(name, None);
        }
    }

    /// The service that clients reach at a destination, and the form of the address.
    pub fn at(&self, protocol: Protocol, destination: SocketAddr) -> Option<(Front, ServicePortName)> {
        let names = self.names.read();
        let candidates = Front::candidates((destination.ip(), destination.port()));
        candidates.into_iter().find_map(|front| Some((front, names.owner(&(protocol, front))?.clone())))
    }
}

/// Services for tests.
#[cfg(test)]
pub(crate) mod fixture {
    use k8s_openapi::api::core::v1 as core;

    use super::*;

    /// A service of namespace `shop` with one port, 80, called `http`.
    pub(crate) fn service(name: &str, cluster_ip: &str, node_port: Option<i32>) -> Service {
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

    /// `shop/web` at 10.96.0.9 and node port 30080, and no other.
    pub(crate) fn web() -> ServiceNames {
        let names = ServiceNames::default();
        let web = service("web", "10.96.0.9", Some(30_080));
        names.set(&web.name, Some(&web));
        names.set_complete();
        names
    }
}

#[cfg(test)]
mod tests {
    use super::fixture::service;
    use super::*;

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

    #[test]
    fn of_services_with_one_address_the_oldest_has_it_whichever_is_told_last() {
        let of = |name: &str, created| Service { created, ..service(name, "10.96.0.9", None) };
        let (old, young) = (of("z", 1), of("a", 2));
        for order in [[&old, &young], [&young, &old]] {
            let names = ServiceNames::default();
            for service in order {
                names.set(&service.name, Some(service));
            }
            assert_eq!(at(&names, "10.96.0.9:80").as_deref(), Some("10.96.0.9:80 shop/z:http"));
            assert_eq!(names.fronts(&young.name), Some(Vec::new()));
            names.set(&old.name, None);
            assert_eq!(names.fronts(&young.name).unwrap().len(), 1);
        }
    }

    #[test]
    fn a_service_has_the_places_that_no_other_has_and_changes_are_told() {
        let names = ServiceNames::default();
        let (web, other) = (service("web", "10.96.0.9", Some(30_080)), service("other", "10.96.0.9", None));
        let mut changes = names.changes();
        let mut changed = || changes.has_changed().unwrap() && *changes.borrow_and_update() > 0;
        assert_eq!((names.fronts(&web.name), changed()), (None, false));
        names.set(&web.name, Some(&web));
        assert_eq!((names.fronts(&web.name).unwrap().len(), changed()), (2, true));
        names.set(&web.name, Some(&web));
        assert!(!changed(), "the same again");
        names.set(&other.name, Some(&other));
        assert_eq!(names.fronts(&web.name).unwrap(), [(Protocol::Tcp, Front::NodePort(30_080))]);
        assert!(!names.is_complete() && changed());
        names.set_complete();
        assert!(names.is_complete() && changed());
        names.set(&web.name, None);
        assert_eq!((names.fronts(&web.name), changed()), (None, true));
    }
}
