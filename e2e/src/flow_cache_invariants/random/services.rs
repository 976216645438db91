//! The oracle's services: which pods a connection to one may be given to, what policies say of that, and which address the
//! backend sees. Pure.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use super::model::{Direction, Flow, Model, Protocol};
use testbed::cluster::config::{EXT_IP, node_ip};
use testbed::tools::load::PORTS;

/// Number of services: a plain one, one whose session affinity is switched, one whose traffic policy is.
pub(super) const SERVICES: usize = 3;
/// The service whose affinity is switched.
pub(super) const AFFINE: usize = 1;
/// The one whose `externalTrafficPolicy` is.
pub(super) const LOCAL: usize = 2;
/// Port of every service, TCP and UDP.
pub(super) const SERVICE_PORT: u16 = 80;
/// The node that the outside world reaches external addresses by.
pub(super) const ENTRY: usize = 0;

/// One service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Service {
    /// It exists.
    pub(super) live: bool,
    /// Its endpoints, all of them ready.
    pub(super) backends: BTreeSet<usize>,
    /// Which of [`PORTS`] is the endpoints'.
    pub(super) port: usize,
    /// `externalTrafficPolicy: Local`.
    pub(super) local: bool,
    /// `sessionAffinity: ClientIP`.
    pub(super) affinity: bool,
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Client {
    Pod(usize),
    /// A process in a node's own network.
    Node(usize),
    Outside,
}

/// Which of a service's addresses it asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    ClusterIp,
    ExternalIp,
    /// The node port of that node.
    NodePort(usize),
}

/// A flow to a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ServiceFlow {
    pub(super) client: Client,
    pub(super) service: usize,
    pub(super) way: Way,
    pub(super) protocol: Protocol,
}

impl fmt::Display for ServiceFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, service, way, protocol } = self;
        write!(f, "{protocol:?} {client:?} to service {service} by {way:?}")
    }
}

/// The node's own address where its connections meet OVN's load balancers.
const NODE_IN_OVN: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 2);

/// What is to be of a flow as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expect {
    /// It goes on, whichever backend it is given to.
    GoesOn,
    /// It has no backend.
    Nothing,
    /// That depends on the backend.
    Depends,
}

/// Address of a service in the service range.
pub(super) fn cluster_ip(service: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 96, 77, last_byte(service))
}

/// Its external address (RFC 5737).
pub(super) fn external_ip(service: usize) -> Ipv4Addr {
    Ipv4Addr::new(203, 0, 113, last_byte(service))
}

/// Its node port.
pub(super) fn node_port(service: usize) -> u16 {
    31_170 + u16::from(last_byte(service))
}

fn last_byte(number: usize) -> u8 {
    u8::try_from(number + 1).unwrap_or(u8::MAX)
}

/// Address of a node, by its number from 0.
pub(super) fn address_of_node(node: usize) -> Ipv4Addr {
    node_ip(last_byte(node))
}

/// OVN gives the gateway routers addresses of the join range in the order of their nodes.
fn join_address(node: usize) -> IpAddr {
    Ipv4Addr::new(100, 64, 0, last_byte(node) + 1).into()
}

impl ServiceFlow {
    /// Whether the backend's side sees the client pod itself.
    fn keeps_pod(&self, model: &Model) -> Option<usize> {
        match (self.client, self.way) {
            (Client::Pod(pod), Way::NodePort(node)) if model.pods[pod].node != node => None,
            (Client::Pod(pod), _) => Some(pod),
            _ => None,
        }
    }

    /// The gateway router that it comes in by, if any.
    fn gateway(&self, model: &Model) -> Option<usize> {
        match (self.client, self.way) {
            (Client::Outside, Way::NodePort(node)) => Some(node),
            (Client::Outside, _) => Some(ENTRY),
            (Client::Node(node), _) => Some(node),
            (Client::Pod(pod), Way::NodePort(node)) => (model.pods[pod].node != node).then_some(node),
            (Client::Pod(_), _) => None,
        }
    }
}

impl Model {
    /// The pods that a new connection of a flow may be given to.
    pub(super) fn serves(&self, flow: &ServiceFlow) -> BTreeSet<usize> {
        let service = &self.services[flow.service];
        let own = match (flow.client, flow.gateway(self)) {
            (Client::Outside, node) if service.local => node,
            _ => None,
        };
        let near = |pod: &usize| own.is_none_or(|node| self.pods[*pod].node == node);
        let backends = service.backends.iter().copied();
        if service.live { backends.filter(near).collect() } else { BTreeSet::new() }
    }

    /// Whether policies and ACLs let a flow reach a backend.
    pub(super) fn admits(&self, flow: &ServiceFlow, backend: usize) -> bool {
        if let Some(from) = flow.keeps_pod(self) {
            return from == backend || self.allows(&Flow { from, to: backend, protocol: flow.protocol });
        }
        let out = match flow.client {
            // It speaks to a node, which no rule names.
            Client::Pod(pod) => self.policies_allow(pod, None, flow.protocol, Direction::Egress),
            _ => true,
        };
        out && self.policies_allow(backend, None, flow.protocol, Direction::Ingress)
    }

    /// Whether packets of a flow go through a node.
    pub(super) fn goes_through(&self, flow: &ServiceFlow, node: usize) -> bool {
        let of_client = match flow.client {
            Client::Pod(pod) => Some(self.pods[pod].node),
            Client::Node(node) => Some(node),
            Client::Outside => None,
        };
        let ends = of_client.into_iter().chain(flow.gateway(self));
        let backends = self.services[flow.service].backends.iter();
        ends.chain(backends.map(|&pod| self.pods[pod].node)).any(|one| one == node)
    }

    /// What is to be of a flow.
    pub(super) fn expects(&self, flow: &ServiceFlow) -> Expect {
        let serves = self.serves(flow);
        let to_itself = matches!(flow.client, Client::Pod(pod) if serves.contains(&pod));
        let admitted = serves.iter().filter(|&&pod| self.admits(flow, pod)).count();
        match admitted {
            0 => Expect::Nothing,
            _ if admitted == serves.len() && !to_itself => Expect::GoesOn,
            _ => Expect::Depends,
        }
    }

    /// The addresses that a backend may see as the client's. A gateway router replaces it, but with OVN 25.03 only in the first packet of
    /// UDP that is never answered: the router's source NAT looks at load-balanced connections that are new or established, and these
    /// are load-balanced and still new.
    pub(super) fn shows(&self, flow: &ServiceFlow, addresses: &[String]) -> BTreeSet<IpAddr> {
        if let Some(pod) = flow.keeps_pod(self) {
            return addresses.get(pod).and_then(|ip| ip.parse().ok()).into_iter().collect();
        }
        let own = match flow.client {
            Client::Outside => EXT_IP,
            Client::Node(_) => NODE_IN_OVN,
            Client::Pod(pod) => address_of_node(self.pods[pod].node),
        };
        if flow.client == Client::Outside && self.services[flow.service].local {
            return [own.into()].into();
        }
        let unanswered = (flow.protocol == Protocol::Udp).then_some(own.into());
        flow.gateway(self).map(join_address).into_iter().chain(unanswered).collect()
    }

    /// The port of a service's endpoints.
    pub(super) fn backend_port(&self, service: usize) -> u16 {
        PORTS[self.services[service].port % PORTS.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::{Pod, Policy};
    use super::*;

    fn model() -> Model {
        let pod = |node, role| Pod { name: "p".into(), node, role: Some(role) };
        let service = Service { live: true, backends: [1, 2].into(), ..Service::default() };
        Model {
            pods: vec![pod(0, 0), pod(0, 1), pod(1, 2), pod(1, 3)],
            services: vec![service; SERVICES],
            ..Model::default()
        }
    }

    fn flow(client: Client, way: Way) -> ServiceFlow {
        ServiceFlow { client, service: 0, way, protocol: Protocol::Tcp }
    }

    #[test]
    fn policy_local_leaves_the_nodes_own_endpoints_to_those_outside() {
        let mut model = model();
        let outside = flow(Client::Outside, Way::NodePort(1));
        assert_eq!(model.serves(&outside), [1, 2].into());
        assert_eq!(model.shows(&outside, &[]), [IpAddr::from([100, 64, 0, 3])].into());
        model.services[0].local = true;
        assert_eq!(model.serves(&outside), [2].into());
        assert_eq!(model.shows(&outside, &[]), [EXT_IP.into()].into());
        assert_eq!(model.serves(&flow(Client::Outside, Way::ExternalIp)), [1].into());
        assert_eq!(model.serves(&flow(Client::Pod(0), Way::ClusterIp)), [1, 2].into());
        model.services[0].live = false;
        assert_eq!(model.expects(&outside), Expect::Nothing);
    }

    #[test]
    fn a_policy_knows_a_client_pod_unless_a_gateway_router_hides_it() {
        let mut model = model();
        let (near, far) = (flow(Client::Pod(0), Way::NodePort(0)), flow(Client::Pod(0), Way::NodePort(1)));
        assert_eq!(model.expects(&far), Expect::GoesOn);
        let (peers, protocols) = (BTreeSet::from([0]), BTreeSet::from([Protocol::Tcp]));
        let policy = Policy { direction: Direction::Ingress, target: 1, peers, protocols, nonce: 0 };
        model.policies.insert(0, policy);
        assert_eq!(model.expects(&near), Expect::GoesOn);
        assert_eq!(model.expects(&far), Expect::Depends);
        assert!(!model.admits(&flow(Client::Outside, Way::NodePort(0)), 1));
        assert!(model.admits(&flow(Client::Outside, Way::NodePort(0)), 2));
        assert_eq!(model.expects(&flow(Client::Pod(1), Way::ClusterIp)), Expect::Depends, "itself");
    }

    #[test]
    fn the_client_shown_is_the_pod_or_the_gateway_router() {
        let model = model();
        let addresses = ["10.244.0.5".to_owned()];
        let shows = |client, way| {
            let all = model.shows(&flow(client, way), &addresses);
            all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(shows(Client::Pod(0), Way::ClusterIp), "10.244.0.5");
        assert_eq!(shows(Client::Pod(0), Way::NodePort(1)), "100.64.0.3");
        assert_eq!(shows(Client::Node(0), Way::ClusterIp), "100.64.0.2");
        let udp = ServiceFlow { protocol: Protocol::Udp, ..flow(Client::Outside, Way::ExternalIp) };
        assert_eq!(model.shows(&udp, &[]).len(), 2);
    }
}
