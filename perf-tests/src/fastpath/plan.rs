//! What is measured on what: the paths, the loads, and which load runs on which path.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::load::Kind;
use crate::scenario_file::ScenarioFile;

/// A way from one process to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Path {
    /// Pods of two nodes, eBPF.
    Fast,
    /// Pods of two nodes, with programs that neither count nor compare.
    Uncounted,
    /// Pods of two nodes, OVS.
    Ovs,
    /// Pods of one node, eBPF.
    FastSame,
    /// Pods of one node, OVS.
    OvsSame,
    /// Processes of two nodes.
    Host,
    /// Pods of two nodes, redirected without encapsulation.
    Direct,
    /// Pods of two nodes, routed.
    Routed,
    /// Pods of two nodes, VXLAN.
    Vxlan,
    /// A bare veth pair.
    Veth,
    /// A pod to a cluster IP whose backend is on the other node, eBPF.
    ClusterIp,
    /// From outside to a node port whose backend is on that node, eBPF.
    NodePort,
    /// From outside to a node port whose backend is on the other node, eBPF.
    NodePortFar,
    /// A pod to a cluster IP whose backend is that pod, eBPF.
    Hairpin,
    /// From outside to a host port of a pod, eBPF.
    HostPort,
    /// A pod to the outside, eBPF.
    Outside,
    /// A node's process to a pod of the other node, eBPF.
    HostPod,
    /// A node's process to the other node's, on nodes with eBPF.
    Nodes,
    /// From outside to a pod, redirected by its node.
    DirectIn,
    /// From outside to a pod, redirected by another node and by its own.
    DirectVia,
    /// A pod to the outside, routed, with nftables' SNAT.
    RoutedSnat,
    /// A node's process to a pod of the other node, routed.
    RoutedHost,
    /// Pods of two nodes, eBPF, selected by some policies.
    #[value(skip)]
    SomePolicies,
    /// Pods of two nodes, eBPF, selected by many policies.
    #[value(skip)]
    ManyPolicies,
    /// A pod to a cluster IP whose backend is on the other node, eBPF, on a cluster with many other services.
    #[value(skip)]
    ManyServices,
    /// Pods of two nodes, routed, by a cluster IP that nftables translates as kube-proxy has it, without other services.
    #[value(skip)]
    Proxy,
    /// Pods as in [`Path::Proxy`], with many other services in the map.
    #[value(skip)]
    ProxyMany,
    /// Pods as in [`Path::ProxyMany`], with a rule of iptables for each service.
    #[value(skip)]
    ProxyRules,
    /// Pods of two nodes, eBPF, while pods and endpoints come and go elsewhere in the cluster.
    #[value(skip)]
    Churn,
    /// As [`Path::Churn`], to a cluster IP whose backend is on the other node.
    #[value(skip)]
    ChurnClusterIp,
}

impl Path {
    /// Whether it goes through the cluster with eBPF.
    pub(super) fn is_fast(self) -> bool {
        matches!(self, Self::Fast | Self::FastSame) || self.is_way()
    }

    /// Whether it needs the services of [`ways`](super::ways).
    pub(super) fn is_way(self) -> bool {
        use Path::*;
        matches!(self, ClusterIp | NodePort | NodePortFar | Hairpin | HostPort | Outside | HostPod | Nodes)
    }

    /// What to add to a port of its kind: servers of several paths are in one pod.
    pub(super) fn port_offset(self) -> u16 {
        match self {
            Self::ClusterIp | Self::ManyServices | Self::ChurnClusterIp => 20,
            Self::NodePort => 40,
            Self::NodePortFar => 60,
            Self::Outside => 80,
            Self::HostPod => 100,
            Self::Nodes => 120,
            Self::Hairpin => 140,
            Self::HostPort => 160,
            _ => 0,
        }
    }

    /// In tables.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Fast => "fast, across nodes",
            Self::Uncounted => "fast, across nodes, no counters",
            Self::Ovs => "OVS, across nodes",
            Self::FastSame => "fast, same node",
            Self::OvsSame => "OVS, same node",
            Self::Host => "host",
            Self::Direct => "direct",
            Self::Routed => "routed",
            Self::Vxlan => "VXLAN",
            Self::Veth => "veth",
            Self::ClusterIp => "fast, cluster IP, across nodes",
            Self::NodePort => "fast, node port, own backend",
            Self::NodePortFar => "fast, node port, other's backend",
            Self::Hairpin => "fast, cluster IP, back to the pod",
            Self::HostPort => "fast, host port",
            Self::Outside => "fast, pod to outside",
            Self::HostPod => "fast, node to other's pod",
            Self::Nodes => "fast, node to node",
            Self::DirectIn => "direct, from outside",
            Self::DirectVia => "direct, from outside, two nodes",
            Self::RoutedSnat => "routed and SNAT, to outside",
            Self::RoutedHost => "routed, node to other's pod",
            Self::SomePolicies => "across nodes, some policies",
            Self::ManyPolicies => "across nodes, many policies",
            Self::ManyServices => "cluster IP, many services",
            Self::Proxy => "nftables, one service",
            Self::ProxyMany => "nftables, many services",
            Self::ProxyRules => "iptables, many services",
            Self::Churn => "across nodes, others come and go",
            Self::ChurnClusterIp => "cluster IP, others come and go",
        }
    }
}

/// A kind of traffic, and how much of it at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Load {
    /// One pair of ends on the one CPU.
    One(Kind),
    /// A pair on every CPU.
    All(Kind),
    /// One pair of ends as in `One`, on the paths of services, of the outside and of nodes: fewer paths at once keep their rounds short.
    Ways(Kind),
}

impl Load {
    /// In tables, with the unit, and by what to divide.
    pub(super) fn label(self) -> (&'static str, f64) {
        match self {
            Self::One(Kind::TcpRr) => ("TCP_RR/s", 1.0),
            Self::One(Kind::UdpRr) => ("UDP_RR/s", 1.0),
            Self::One(Kind::UdpPps) => ("UDP 18 B, kpps", 1e3),
            Self::One(Kind::TcpStream) => ("TCP stream, Gbit/s", 1e9),
            Self::One(Kind::Crr) => ("connections/s", 1.0),
            Self::All(Kind::Crr) => ("connections/s, all CPUs", 1.0),
            Self::Ways(Kind::TcpRr) => ("TCP_RR/s, other ways", 1.0),
            Self::Ways(Kind::UdpRr) => ("UDP_RR/s, other ways", 1.0),
            Self::Ways(Kind::UdpPps) => ("UDP 18 B, kpps, other ways", 1e3),
            Self::Ways(Kind::TcpStream) => ("TCP stream, Gbit/s, other ways", 1e9),
            Self::One(Kind::Paced) | Self::All(_) | Self::Ways(_) => ("per second", 1.0),
        }
    }

    /// Kind of the traffic.
    pub(super) fn kind(self) -> Kind {
        match self {
            Self::One(kind) | Self::All(kind) | Self::Ways(kind) => kind,
        }
    }
}

/// A load on the command line, and in files of scenarios.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LoadName {
    TcpRr,
    UdpRr,
    UdpPps,
    TcpStream,
    Crr,
    CrrAll,
    WaysTcpRr,
    WaysUdpRr,
    WaysUdpPps,
    WaysTcpStream,
}

impl LoadName {
    pub(super) fn load(self) -> Load {
        match self {
            Self::TcpRr => Load::One(Kind::TcpRr),
            Self::UdpRr => Load::One(Kind::UdpRr),
            Self::UdpPps => Load::One(Kind::UdpPps),
            Self::TcpStream => Load::One(Kind::TcpStream),
            Self::Crr => Load::One(Kind::Crr),
            Self::CrrAll => Load::All(Kind::Crr),
            Self::WaysTcpRr => Load::Ways(Kind::TcpRr),
            Self::WaysUdpRr => Load::Ways(Kind::UdpRr),
            Self::WaysUdpPps => Load::Ways(Kind::UdpPps),
            Self::WaysTcpStream => Load::Ways(Kind::TcpStream),
        }
    }
}

/// Which loads run on which paths: those that the scenario's goals need, and those that it names. Paths that are asked for by name take every load that
/// is, also those that no goal needs.
pub(super) fn wanted(file: &ScenarioFile, paths: &[Path], loads: &[LoadName]) -> Vec<(Load, Vec<Path>)> {
    let mut plan: Vec<(LoadName, Vec<Path>)> = Vec::new();
    let mut add = |load: LoadName, path: Path| match plan.iter_mut().find(|(known, _)| *known == load) {
        Some((_, paths)) if paths.contains(&path) => {}
        Some((_, paths)) => paths.push(path),
        None => plan.push((load, vec![path])),
    };
    for one in &file.loads {
        one.paths.iter().for_each(|path| add(one.load, *path));
    }
    for ratio in &file.ratios {
        add(ratio.load, ratio.against);
        add(ratio.load, ratio.path);
    }
    plan.into_iter()
        .filter(|(load, _)| loads.is_empty() || loads.contains(load))
        .map(|(load, planned)| (load.load(), if paths.is_empty() { planned } else { paths.to_vec() }))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario_file::{Run, ScenarioFile};

    fn file(name: &str) -> ScenarioFile {
        ScenarioFile::of(name, Run::Fastpath).unwrap()
    }

    #[test]
    fn without_names_all_of_the_scenario_is_wanted() {
        let all = wanted(&file("fastpath"), &[], &[]);
        assert_eq!(all.len(), LoadName::value_variants().len(), "{all:?}");
        assert_eq!(all[0].1.len(), 10);
        let tax = wanted(&file("telemetry-tax"), &[], &[]);
        assert_eq!(tax.len(), 3);
        assert!(tax.iter().all(|(_, paths)| *paths == [Path::Uncounted, Path::Fast]), "{tax:?}");
    }

    #[test]
    fn named_paths_take_named_loads() {
        let some = wanted(&file("fastpath"), &[Path::Veth, Path::Host], &[LoadName::TcpRr, LoadName::CrrAll]);
        let (rr, all) = (Load::One(Kind::TcpRr), Load::All(Kind::Crr));
        let paths = vec![Path::Veth, Path::Host];
        assert_eq!(some, [(rr, paths.clone()), (all, paths)]);
    }
}
