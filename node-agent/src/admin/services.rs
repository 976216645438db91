//! What the flow cache carries for services. Pure.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use api::Protocol;
use api::admin::{self as wire, BackendTraffic, Path, ServiceTraffic};
use api::service::Front;

use super::flow_spec;
use super::naming::Naming;
use crate::flow_cache::{self, Flow, Use};
use crate::kube::service_names::ServicePortName;

/// Service port, protocol, address, and whether by OVS.
type Place = (ServicePortName, wire::CachedProtocol, Front, bool);

/// Sums of the entries of connections to services, by service address and backend.
#[derive(Debug)]
pub struct Traffic {
    naming: Naming,
    all: BTreeMap<Place, BTreeMap<SocketAddr, BackendTraffic>>,
}

impl Traffic {
    /// Without any flow.
    pub fn new(naming: Naming) -> Self {
        Self { naming, all: BTreeMap::new() }
    }

    /// Adds a flow, if it is a service's.
    pub fn add(&mut self, flow: &Flow) {
        let Some((protocol, found)) = use_of(flow, &self.naming) else { return };
        let Use { front, port, backend, to_backend } = found;
        let place = (port, protocol, front, flow.slow);
        let row = self.all.entry(place).or_default().entry(backend).or_insert_with(|| BackendTraffic {
            address: backend,
            pod: self.naming.pod_at(backend.ip()),
            connections: 0,
            to_backend: wire::Amount::default(),
            from_backend: wire::Amount::default(),
        });
        let amount = if to_backend { &mut row.to_backend } else { &mut row.from_backend };
        amount.packets += flow.packets;
        amount.bytes += flow.bytes;
        row.connections += u64::from(to_backend && (flow.valid || flow.slow));
    }

    /// The sums, by service.
    pub fn list(self) -> Vec<ServiceTraffic> {
        let show = |(place, backends): (Place, BTreeMap<SocketAddr, BackendTraffic>)| {
            let (port, protocol, front, slow) = place;
            ServiceTraffic {
                service: port.service.to_string(),
                port: port.port,
                protocol,
                address: front.to_string(),
                path: if slow { Path::Ovs } else { Path::Ebpf },
                backends: backends.into_values().collect(),
            }
        };
        self.all.into_iter().map(show).collect()
    }
}

/// What a flow is to a service, if it is a service's.
fn use_of(flow: &Flow, naming: &Naming) -> Option<(wire::CachedProtocol, Use)> {
    let (spec, to) = (flow_spec::spec(flow)?, flow.translated?);
    let protocol = match spec.protocol {
        wire::CachedProtocol::Tcp => Protocol::Tcp,
        wire::CachedProtocol::Udp => Protocol::Udp,
    };
    let (before, after) = ((spec.source, spec.destination), (to.source, to.destination));
    Some((spec.protocol, flow_cache::use_of(&naming.services, protocol, before, after)?))
}

/// Service port of a flow, if it is a service's.
pub fn name(flow: &Flow, naming: &Naming) -> Option<String> {
    let (_, Use { port: ServicePortName { service, port }, .. }) = use_of(flow, naming)?;
    Some(wire::service_port(&service.to_string(), &port))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use api::NamespacedName;
    use k8s_openapi::api::core::v1 as core;

    use super::super::naming::tests::naming;
    use super::*;
    use crate::flow_cache::{Translated, fake};

    fn traffic(flows: &[Flow], naming: Naming) -> Vec<ServiceTraffic> {
        let mut traffic = Traffic::new(naming);
        flows.iter().for_each(|flow| traffic.add(flow));
        traffic.list()
    }

    const SERVICE: &str = "10.96.0.9";

    /// A service at [`SERVICE`], port 80, and node port 30080.
    fn named() -> Naming {
        let object: core::Service = serde_json::from_value(serde_json::json!({
            "metadata": {"namespace": "shop", "name": "web"},
            "spec": {
                "clusterIP": SERVICE, "clusterIPs": [SERVICE], "type": "NodePort",
                "ports": [{"name": "http", "port": 80, "nodePort": 30_080, "protocol": "TCP"}],
            }
        }))
        .unwrap();
        let service = api::service::Service::from_object(&object).0;
        let naming = naming();
        naming.services.set(&NamespacedName::new("shop", "web"), Some(&service));
        naming
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// An entry of these tuples, before and after OVS.
    fn flow(before: [&str; 2], after: [&str; 2]) -> Flow {
        let [source, destination] = before.map(address);
        let [translated_source, translated_destination] = after.map(address);
        let (source_ip, destination_ip): (IpAddr, IpAddr) = (source.ip(), destination.ip());
        Flow {
            source: source_ip,
            source_port: source.port(),
            destination: destination_ip,
            destination_port: destination.port(),
            translated: Some(Translated { source: translated_source, destination: translated_destination }),
            ..fake::flows().remove(0)
        }
    }

    #[test]
    fn both_directions_of_a_connection_are_its_services() {
        let client = "10.244.0.4:40000";
        let ask = flow([client, "10.96.0.9:80"], [client, "10.244.0.3:8080"]);
        let answer = flow(["10.244.0.3:8080", client], ["10.96.0.9:80", client]);
        assert_eq!(name(&ask, &named()).as_deref(), Some("shop/web:http"));
        assert_eq!(name(&answer, &named()).as_deref(), Some("shop/web:http"));
        let list = traffic(&[ask, answer], named());
        assert_eq!(list.len(), 1);
        assert_eq!((list[0].service.as_str(), list[0].address.as_str()), ("shop/web", "10.96.0.9:80"));
        let [backend] = list[0].backends.as_slice() else { panic!("{list:?}") };
        assert_eq!(
            (backend.address, backend.pod.as_deref()),
            (address("10.244.0.3:8080"), Some("default/web-1"))
        );
        assert_eq!(
            (backend.connections, backend.to_backend.packets, backend.from_backend.packets),
            (1, 42, 42)
        );
    }

    #[test]
    fn a_node_port_is_one_whichever_node_was_asked_and_the_client_may_be_translated_too() {
        let near = flow(["192.0.2.1:1000", "172.18.0.2:30080"], ["100.64.0.2:1000", "10.244.1.4:8080"]);
        let far = flow(["192.0.2.1:1001", "172.18.0.3:30080"], ["100.64.0.2:1001", "10.244.1.4:8080"]);
        let old = Flow { valid: false, ..near.clone() };
        let back = flow(["10.244.1.4:8080", "100.64.0.2:1000"], ["172.18.0.2:30080", "192.0.2.1:1000"]);
        let list = traffic(&[near, far, old, back], named());
        assert_eq!((list.len(), list[0].address.as_str()), (1, "node port 30080"));
        let backend = &list[0].backends[0];
        assert_eq!((backend.connections, backend.to_backend.packets, backend.pod.is_none()), (2, 126, true));
        assert_eq!(backend.from_backend.packets, 42);
    }

    #[test]
    fn what_ovs_carries_of_a_service_that_is_kept_off_stands_apart() {
        let client = "10.244.0.4:40000";
        let fast = flow([client, "10.96.0.9:80"], [client, "10.244.0.3:8080"]);
        let slow = Flow { valid: false, slow: true, packets: 7, ..fast.clone() };
        let list = traffic(&[fast, slow], named());
        let shown: Vec<_> = list
            .iter()
            .map(|s| (s.path, s.backends[0].connections, s.backends[0].to_backend.packets))
            .collect();
        assert_eq!(shown, [(Path::Ebpf, 1, 42), (Path::Ovs, 1, 7)]);
    }

    #[test]
    fn a_source_that_is_translated_on_the_way_out_is_no_services() {
        let out = flow(["10.244.0.3:40000", "192.0.2.1:80"], ["172.18.0.2:40000", "192.0.2.1:80"]);
        let back = flow(["192.0.2.1:80", "172.18.0.2:40000"], ["192.0.2.1:80", "10.244.0.3:40000"]);
        assert!(traffic(&[out.clone(), back, fake::flows().remove(0)], named()).is_empty());
        assert_eq!(name(&out, &named()), None);
    }
}
