//! From slices to the endpoints of a service, and the selection of those that are used.

use std::collections::BTreeMap;

use ipnet::IpNet;

use super::{Condition, Endpoint, EndpointSlice, ServicePort};
use crate::NamespacedName;
use crate::addr::Family;

impl Endpoint {
    /// True when the address is not a pod's: a host-network pod's, or one outside the cluster.
    pub fn on_host(&self, cluster_subnets: &[IpNet]) -> bool {
        !cluster_subnets.iter().any(|subnet| subnet.contains(&self.address))
    }

    /// True when it serves this port of its service: name and protocol are equal.
    pub fn is_behind(&self, port: &ServicePort) -> bool {
        self.port_name == port.name && self.protocol == port.protocol
    }
}

impl EndpointSlice {
    /// The service to which it belongs.
    pub fn owner(&self) -> Option<NamespacedName> {
        self.service.as_ref().map(|service| NamespacedName::new(&self.name.namespace, service))
    }
}

/// Endpoints of a service from all its slices; each address and port once, in its best condition. Of equal ones the first is kept.
pub fn merge<'s>(slices: impl IntoIterator<Item = &'s EndpointSlice>) -> Vec<Endpoint> {
    let mut merged: BTreeMap<_, Endpoint> = BTreeMap::new();
    for slice in slices {
        for endpoint in &slice.endpoints {
            for port in &slice.ports {
                let key = (port.name.clone(), port.protocol, endpoint.address, port.port);
                let new = Endpoint {
                    port_name: port.name.clone(),
                    protocol: port.protocol,
                    address: endpoint.address,
                    port: port.port,
                    node: endpoint.node.clone(),
                    condition: endpoint.condition,
                    hints: endpoint.hints.clone(),
                };
                let known = merged.entry(key).or_insert_with(|| new.clone());
                if known.condition < new.condition {
                    *known = new;
                }
            }
        }
    }
    merged.into_values().collect()
}

/// The endpoints of one family, of one service port, that are used: the ready ones; if none is ready, those that still
/// serve while they terminate (as in kube-proxy). All of them are in the same condition.
pub fn usable<'e>(
    endpoints: impl IntoIterator<Item = &'e Endpoint, IntoIter: Clone>,
    family: Family,
) -> Vec<&'e Endpoint> {
    let endpoints = endpoints.into_iter().filter(|endpoint| Family::of(endpoint.address) == family);
    let of = |condition| endpoints.clone().filter(|e| e.condition == condition).collect::<Vec<_>>();
    let ready = of(Condition::Ready);
    if ready.is_empty() { of(Condition::Terminating) } else { ready }
}

#[cfg(test)]
mod tests {
    use super::super::{EndpointPort, Hints, SliceEndpoint};
    use super::*;
    use crate::Protocol;

    fn slice(name: &str, endpoints: &[(&str, Condition)]) -> EndpointSlice {
        let endpoint = |(address, condition): &(&str, Condition)| SliceEndpoint {
            address: address.parse().unwrap(),
            node: Some(name.to_owned()),
            condition: *condition,
            hints: Hints::default(),
        };
        EndpointSlice {
            name: NamespacedName::new("n", name),
            service: Some("a".to_owned()),
            ports: vec![EndpointPort { name: String::new(), protocol: Protocol::Tcp, port: 8080 }],
            endpoints: endpoints.iter().map(endpoint).collect(),
        }
    }

    #[test]
    fn slices_are_merged_and_the_better_condition_wins() {
        let slices = [
            slice("s1", &[("10.244.0.3", Condition::NotReady)]),
            slice("s2", &[("10.244.0.3", Condition::Ready)]),
            slice("s3", &[("10.244.0.4", Condition::Terminating), ("10.244.0.3", Condition::Terminating)]),
        ];
        let endpoints = merge(&slices);
        let seen: Vec<_> =
            endpoints.iter().map(|e| (e.address.to_string(), e.condition, e.node.as_deref())).collect();
        assert_eq!(
            seen,
            [
                ("10.244.0.3".into(), Condition::Ready, Some("s2")),
                ("10.244.0.4".into(), Condition::Terminating, Some("s3"))
            ]
        );
    }

    #[test]
    fn one_address_with_several_ports_is_an_endpoint_of_each() {
        let mut two = slice("s", &[("10.244.0.3", Condition::Ready)]);
        two.ports.push(EndpointPort { name: String::new(), protocol: Protocol::Udp, port: 8080 });
        two.ports.push(EndpointPort { name: String::new(), protocol: Protocol::Tcp, port: 8081 });
        let seen: Vec<_> = merge([&two, &two]).into_iter().map(|e| (e.protocol, e.port)).collect();
        assert_eq!(seen, [(Protocol::Tcp, 8080), (Protocol::Tcp, 8081), (Protocol::Udp, 8080)]);
        two.ports.clear();
        assert!(merge([&two]).is_empty(), "no port, no endpoint");
    }

    #[test]
    fn terminating_endpoints_are_used_where_none_of_their_family_is_ready() {
        let all = merge(&[slice(
            "s",
            &[
                ("10.244.0.3", Condition::Ready),
                ("10.244.0.4", Condition::Terminating),
                ("10.244.0.5", Condition::NotReady),
                ("fd00::4", Condition::Terminating),
                ("fd00::5", Condition::NotReady),
            ],
        )]);
        let used = |family| usable(&all, family).iter().map(|e| e.address.to_string()).collect::<Vec<_>>();
        assert_eq!(used(Family::V4), ["10.244.0.3"]);
        assert_eq!(used(Family::V6), ["fd00::4"]);
    }
}
