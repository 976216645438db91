//! Ways of traffic, by name.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

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
    /// A pod, under the circumstances of [`Path::Churn`], to a cluster IP whose backend is on the other node.
    #[value(skip)]
    ChurnClusterIp,
}

impl Path {
    /// Whether it goes through the cluster with eBPF.
    pub(crate) fn is_fast(self) -> bool {
        matches!(self, Self::Fast | Self::FastSame) || self.is_way()
    }

    /// Whether it needs the services of the ways.
    pub(crate) fn is_way(self) -> bool {
        use Path::*;
        matches!(self, ClusterIp | NodePort | NodePortFar | Hairpin | HostPort | Outside | HostPod | Nodes)
    }

    /// What to add to a port of its kind: servers of several paths are in one pod.
    pub(crate) fn port_offset(self) -> u16 {
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
    pub(crate) fn label(self) -> &'static str {
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
