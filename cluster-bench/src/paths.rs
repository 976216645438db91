//! What is measured: from where, to where, by which address.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Path {
    /// From a pod to the address of a pod of the other node.
    PodIp,
    /// From a pod to the address of a pod of the same node.
    PodIpSame,
    /// From a pod to a cluster IP with its endpoint on the other node.
    ClusterIp,
    /// From a pod to a cluster IP with its endpoint on the same node.
    ClusterIpSame,
    /// From a pod to a node port of its own node, with the endpoint on the other node.
    NodePort,
    /// From a pod to a node port of the other node, with the endpoint there.
    NodePortOther,
    /// From a pod to a node port of the other node, by a Service with `externalTrafficPolicy: Local`.
    NodePortLocal,
    /// From a pod to the other node itself.
    PodHost,
    /// From a node to the other node: what the network gives without pods.
    HostHost,
    /// From a node to a pod of the other node.
    HostPod,
    /// From a node to a pod of its own.
    HostPodSame,
    /// From a node to a cluster IP with its endpoint on the other node.
    HostClusterIp,
}

/// Where requests come from. Paths of one client take turns slice by slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Client {
    /// A pod.
    Pod,
    /// A pod with the network of its node.
    Host,
}

/// Where they end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Server {
    /// A pod of the other node.
    Other,
    /// A pod of the client's node.
    Same,
    /// The other node's network.
    OtherHost,
}

/// By which address they go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The server's own.
    Direct,
    /// A Service's.
    ClusterIp,
    /// Address of the client's node, with a node port.
    NodePortOwn,
    /// Address of the other node, with a node port.
    NodePortOther,
    /// Address of the other node, with a node port of a Service that keeps traffic on the node.
    NodePortLocal,
}

impl Path {
    /// Name of the path on the command line.
    #[must_use]
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// In a sentence.
    #[must_use]
    pub fn what(self) -> &'static str {
        match self {
            Self::PodIp => "pod to a pod of the other node",
            Self::PodIpSame => "pod to a pod of the same node",
            Self::ClusterIp => "pod to a cluster IP, endpoint on the other node",
            Self::ClusterIpSame => "pod to a cluster IP, endpoint on the same node",
            Self::NodePort => "pod to a node port of its own node, endpoint on the other node",
            Self::NodePortOther => "pod to a node port of the other node, endpoint there",
            Self::NodePortLocal => "the same with externalTrafficPolicy: Local",
            Self::PodHost => "pod to the other node",
            Self::HostHost => "node to the other node",
            Self::HostPod => "node to a pod of the other node",
            Self::HostPodSame => "node to a pod of its own",
            Self::HostClusterIp => "node to a cluster IP, endpoint on the other node",
        }
    }

    /// Where requests come from.
    #[must_use]
    pub fn client(self) -> Client {
        match self {
            Self::HostHost | Self::HostPod | Self::HostPodSame | Self::HostClusterIp => Client::Host,
            _ => Client::Pod,
        }
    }

    /// Where they end.
    #[must_use]
    pub fn server(self) -> Server {
        match self {
            Self::PodHost | Self::HostHost => Server::OtherHost,
            Self::PodIpSame | Self::ClusterIpSame | Self::HostPodSame => Server::Same,
            _ => Server::Other,
        }
    }

    /// By which address they go.
    #[must_use]
    pub fn way(self) -> Way {
        match self {
            Self::ClusterIp | Self::ClusterIpSame | Self::HostClusterIp => Way::ClusterIp,
            Self::NodePort => Way::NodePortOwn,
            Self::NodePortOther => Way::NodePortOther,
            Self::NodePortLocal => Way::NodePortLocal,
            _ => Way::Direct,
        }
    }

    /// Whether it needs a second node.
    #[must_use]
    pub fn needs_two_nodes(self) -> bool {
        self.server() != Server::Same
    }

    /// Whether it needs a pod with the network of its node.
    #[must_use]
    pub fn needs_host(self) -> bool {
        self.client() == Client::Host || self.server() == Server::OtherHost
    }

    /// What others of the same client are compared with, the best first.
    #[must_use]
    pub fn baselines(client: Client) -> &'static [Self] {
        match client {
            Client::Pod => &[Self::PodIp, Self::PodIpSame],
            Client::Host => &[Self::HostHost, Self::HostPod, Self::HostPodSame],
        }
    }
}

/// The baseline among the paths that are measured.
#[must_use]
pub fn baseline(client: Client, measured: &[Path]) -> Option<Path> {
    let known = Path::baselines(client).iter().copied().find(|path| measured.contains(path));
    known.or_else(|| measured.iter().copied().find(|path| path.client() == client))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_baseline_is_the_plainest_path_that_is_measured() {
        assert_eq!(baseline(Client::Pod, Path::value_variants()), Some(Path::PodIp));
        assert_eq!(baseline(Client::Host, Path::value_variants()), Some(Path::HostHost));
        assert_eq!(baseline(Client::Pod, &[Path::ClusterIpSame, Path::PodIpSame]), Some(Path::PodIpSame));
        assert_eq!(baseline(Client::Pod, &[Path::NodePort]), Some(Path::NodePort));
        assert_eq!(baseline(Client::Host, &[Path::NodePort]), None);
    }

    #[test]
    fn only_paths_to_servers_of_the_same_node_are_possible_on_one_node() {
        let one: Vec<_> = Path::value_variants().iter().filter(|path| !path.needs_two_nodes()).collect();
        assert_eq!(one, [&Path::PodIpSame, &Path::ClusterIpSame, &Path::HostPodSame]);
    }

    #[test]
    fn each_path_has_a_name_of_its_own_without_what_separates_names() {
        let names: std::collections::BTreeSet<_> = Path::value_variants().iter().map(|p| p.name()).collect();
        assert_eq!(names.len(), Path::value_variants().len());
        assert!(names.iter().all(|name| !name.contains(['/', ',', '=', '@'])), "{names:?}");
    }
}
