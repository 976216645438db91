//! The matrix: every combination of client, address, backends, protocol, family, traffic policies and affinity, less those that
//! cannot be, each with its reason. Pure.

use std::collections::BTreeMap;
use std::fmt;

/// A node. All backends that are alone are on the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Node {
    N1,
    N2,
}

/// Who asks; near and far are seen from the backends on n1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Client {
    /// A pod on the backends' node.
    NearPod,
    /// A pod on the other one.
    FarPod,
    /// The backend pod on n1.
    Itself,
    /// A process in n1's own network.
    NearHost,
    /// A process in n2's own network.
    FarHost,
    Outside,
}

/// Which of a service's addresses it asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Target {
    ClusterIp,
    /// The node port of that node.
    NodePort(Node),
    /// The host port of the pod on n1.
    HostPort,
    /// The external address that the outside reaches by that node.
    ExternalIp(Node),
    /// The load balancer's address that the outside reaches by that node.
    LoadBalancer(Node),
}

/// What is behind a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Backends {
    /// A pod on n1.
    Pod,
    /// That one, and a pod on n2.
    Pods,
    /// A process in n1's own network.
    Host,
}

/// What a service is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Kind {
    pub(super) backends: Backends,
    /// `externalTrafficPolicy: Local`.
    pub(super) external_local: bool,
    /// `internalTrafficPolicy: Local`.
    pub(super) internal_local: bool,
    /// `sessionAffinity: ClientIP`.
    pub(super) affinity: bool,
}

/// One cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cell {
    pub(super) client: Client,
    pub(super) target: Target,
    pub(super) kind: Kind,
    pub(super) udp: bool,
    pub(super) six: bool,
}

/// Why a combination is no cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Excluded {
    /// Nobody outside has a route to cluster addresses.
    NoRouteFromOutside,
    /// Clients inside do not come in by a node: for them the second address is as the first.
    NoEntryFromInside,
    /// A process of a node that asks itself is [`Client::NearHost`].
    HostIsNoPod,
    /// A host port leads to one pod; a process of the node has the port itself.
    HostPortIsOnePods,
    /// Policies and affinity are a service's.
    HostPortHasNoPolicy,
}

const CLIENTS: [Client; 6] =
    [Client::NearPod, Client::FarPod, Client::Itself, Client::NearHost, Client::FarHost, Client::Outside];

const TARGETS: [Target; 8] = [
    Target::ClusterIp,
    Target::NodePort(Node::N1),
    Target::NodePort(Node::N2),
    Target::HostPort,
    Target::ExternalIp(Node::N1),
    Target::ExternalIp(Node::N2),
    Target::LoadBalancer(Node::N1),
    Target::LoadBalancer(Node::N2),
];

/// All kinds of services; a service's number is its place here.
pub(super) fn kinds() -> Vec<Kind> {
    let mut kinds = Vec::new();
    for backends in [Backends::Pod, Backends::Pods, Backends::Host] {
        for number in 0..8_u8 {
            let flag = |bit: u8| number & bit != 0;
            kinds.push(Kind {
                backends,
                external_local: flag(4),
                internal_local: flag(2),
                affinity: flag(1),
            });
        }
    }
    kinds
}

/// The matrix, and how many combinations each reason excludes.
pub(super) fn cells() -> (Vec<Cell>, BTreeMap<Excluded, usize>) {
    let (mut cells, mut excluded) = (Vec::new(), BTreeMap::new());
    for target in TARGETS {
        for client in CLIENTS {
            for kind in kinds() {
                for (six, udp) in [(false, false), (false, true), (true, false), (true, true)] {
                    let cell = Cell { client, target, kind, udp, six };
                    match cell.excluded() {
                        None => cells.push(cell),
                        Some(why) => *excluded.entry(why).or_default() += 1,
                    }
                }
            }
        }
    }
    (cells, excluded)
}

impl Cell {
    fn excluded(&self) -> Option<Excluded> {
        let Self { client, target, kind, .. } = *self;
        let policies = kind.external_local || kind.internal_local || kind.affinity;
        match (client, target) {
            (Client::Outside, Target::ClusterIp) => Some(Excluded::NoRouteFromOutside),
            (Client::Itself, _) if kind.backends == Backends::Host => Some(Excluded::HostIsNoPod),
            (_, Target::HostPort) if kind.backends != Backends::Pod => Some(Excluded::HostPortIsOnePods),
            (_, Target::HostPort) if policies => Some(Excluded::HostPortHasNoPolicy),
            (Client::Outside, _) => None,
            (_, Target::ExternalIp(Node::N2) | Target::LoadBalancer(Node::N2)) => {
                Some(Excluded::NoEntryFromInside)
            }
            _ => None,
        }
    }
}

impl Client {
    /// The node that it is on.
    pub(super) fn node(self) -> Option<Node> {
        match self {
            Self::NearPod | Self::Itself | Self::NearHost => Some(Node::N1),
            Self::FarPod | Self::FarHost => Some(Node::N2),
            Self::Outside => None,
        }
    }
}

impl Node {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::N1 => "n1",
            Self::N2 => "n2",
        }
    }

    pub(super) fn other(self) -> Self {
        match self {
            Self::N1 => Self::N2,
            Self::N2 => Self::N1,
        }
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NearPod => "pod on n1",
            Self::FarPod => "pod on n2",
            Self::Itself => "the backend on n1",
            Self::NearHost => "host n1",
            Self::FarHost => "host n2",
            Self::Outside => "outside",
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClusterIp => f.write_str("ClusterIP"),
            Self::NodePort(node) => write!(f, "NodePort of {}", node.name()),
            Self::HostPort => f.write_str("host port of n1"),
            Self::ExternalIp(node) => write!(f, "external IP by {}", node.name()),
            Self::LoadBalancer(node) => write!(f, "load balancer by {}", node.name()),
        }
    }
}

impl fmt::Display for Backends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pod => "pod on n1",
            Self::Pods => "pods on n1 and n2",
            Self::Host => "host n1",
        })
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, target, kind, udp, six } = self;
        write!(f, "{client} -> {target}, backend {}, ", kind.backends)?;
        let protocol = if *udp { "UDP" } else { "TCP" };
        write!(f, "{protocol} over {}", if *six { "IPv6" } else { "IPv4" })?;
        let marks = [
            (kind.external_local, "external Local"),
            (kind.internal_local, "internal Local"),
            (kind.affinity, "affinity"),
        ];
        marks.iter().filter(|(there, _)| *there).try_for_each(|(_, mark)| write!(f, ", {mark}"))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_matrix_has_every_combination_that_can_be_once() {
        let (cells, excluded) = cells();
        let all = CLIENTS.len() * TARGETS.len() * kinds().len() * 4;
        assert_eq!(cells.len() + excluded.values().sum::<usize>(), all);
        assert_eq!(all, 4608);
        let set: BTreeSet<Cell> = cells.iter().copied().collect();
        assert_eq!(set.len(), cells.len(), "no cell twice");
        let names: BTreeSet<String> = cells.iter().map(ToString::to_string).collect();
        assert_eq!(names.len(), cells.len(), "no name twice");
    }

    #[test]
    fn so_many_are_excluded_for_each_reason() {
        let (_, excluded) = cells();
        // Services with 8 sets of policies, 2 protocols, 2 families: 32 of each kind of backends.
        assert_eq!(
            excluded.into_iter().collect::<Vec<_>>(),
            [
                (Excluded::NoRouteFromOutside, 3 * 32),
                // Five clients, two addresses, less the backend itself with a process of the node.
                (Excluded::NoEntryFromInside, 2 * 3 * 5 * 32 - 2 * 32),
                (Excluded::HostIsNoPod, 8 * 32),
                (Excluded::HostPortIsOnePods, 6 * 2 * 32 - 32),
                (Excluded::HostPortHasNoPolicy, 6 * 7 * 4),
            ]
        );
    }

    #[test]
    fn so_many_cells_are_of_each_client_and_address() {
        let (cells, _) = cells();
        let mut by: BTreeMap<(Client, Target), usize> = BTreeMap::new();
        for cell in &cells {
            *by.entry((cell.client, cell.target)).or_default() += 1;
        }
        let count = |client, target| by.get(&(client, target)).copied().unwrap_or_default();
        assert_eq!(count(Client::NearPod, Target::ClusterIp), 96);
        assert_eq!(count(Client::Itself, Target::NodePort(Node::N2)), 64);
        assert_eq!(count(Client::FarHost, Target::HostPort), 4);
        assert_eq!(count(Client::Outside, Target::LoadBalancer(Node::N2)), 96);
        assert_eq!(count(Client::Outside, Target::ClusterIp), 0);
        assert_eq!(cells.len(), 2840);
    }

    #[test]
    fn a_cell_is_told_in_words() {
        let kind =
            Kind { backends: Backends::Host, external_local: true, internal_local: false, affinity: true };
        let target = Target::NodePort(Node::N2);
        let cell = Cell { client: Client::Outside, target, kind, udp: true, six: false };
        assert_eq!(
            cell.to_string(),
            "outside -> NodePort of n2, backend host n1, UDP over IPv4, external Local, affinity"
        );
    }
}
