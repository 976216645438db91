//! The network that policies are about: the cluster's own, or a virtual network.

use std::net::IpAddr;

use api::{NamespacedName, ovn_name};
use ovsdb_client::Datum;

use crate::config::Config;
use crate::index::Network;
use crate::index::policy::PolicyStore;
use crate::plan::columns::{POLICY_TIER, owner_ids};

/// What a row is, by which its owner type is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// A namespace's default-deny rows.
    Namespace,
    /// A policy's rows.
    Policy,
    /// A policy's ACLs for named ports.
    NamedPort,
    /// Address sets of peers.
    Peers,
    /// Address sets behind named ports.
    NamedPeers,
}

impl Owner {
    const fn of_cluster(self) -> &'static str {
        match self {
            Self::Namespace => "NetpolNamespace",
            Self::Policy => "NetworkPolicy",
            Self::NamedPort => "NetworkPolicyNamedPort",
            Self::Peers => "PodSelector",
            Self::NamedPeers => "PodSelectorNamedPort",
        }
    }

    const fn of_network(self) -> &'static str {
        match self {
            Self::Namespace => "MultiNetpolNamespace",
            Self::Policy => "MultiNetworkPolicy",
            Self::NamedPort => "MultiNetworkPolicyNamedPort",
            Self::Peers => "MultiPodSelector",
            Self::NamedPeers => "MultiPodSelectorNamedPort",
        }
    }
}

/// The policies of one network.
#[derive(Debug, Clone)]
pub struct Domain<'a> {
    /// The policies.
    pub(super) store: &'a PolicyStore,
    pub(super) config: &'a Config,
    /// An address of each family that the network has.
    pub(super) families: Vec<IpAddr>,
    /// The virtual network; none for the cluster's own.
    network: Option<&'a NamespacedName>,
}

impl<'a> Domain<'a> {
    /// Policy domain of the cluster's network.
    pub fn cluster(store: &'a PolicyStore, config: &'a Config) -> Self {
        Self { store, config, families: config.families(), network: None }
    }

    /// Policy domain of a virtual network.
    pub fn virtual_network(store: &'a PolicyStore, network: &'a Network, config: &'a Config) -> Self {
        let families = network.subnets.iter().map(|subnet| subnet.net.addr()).collect();
        Self { store, config, families, network: Some(&network.name) }
    }

    fn owner_type(&self, owner: Owner) -> &'static str {
        if self.network.is_none() { owner.of_cluster() } else { owner.of_network() }
    }

    /// The id of a row. Those of a virtual network begin with its name.
    pub(super) fn id(&self, owner: Owner, parts: &[&str]) -> String {
        let network = self.network.map(ToString::to_string);
        let parts: Vec<&str> = network.as_deref().into_iter().chain(parts.iter().copied()).collect();
        ovn_name::owner_id(self.owner_type(owner), &parts)
    }

    /// `external_ids` of the row with this id.
    pub(super) fn owner_ids(&self, id: &str, owner: Owner, name: &str, extra: &[(&str, &str)]) -> Datum {
        let network = self.network.map(ToString::to_string);
        let network = network.as_deref().map(|name| (ovn_name::key::VIRTUAL_NETWORK, name));
        let extra: Vec<_> = extra.iter().copied().chain(network).collect();
        owner_ids(id, self.owner_type(owner), name, &extra)
    }

    /// The tier of its ACLs. The cluster's are below those of administrators' policies, which are not there on a virtual network: the switch
    /// has this tier alone, as OVN lets a connection that was cut off pass in a tier without a match (northd 25.03).
    pub(super) fn tier(&self) -> i64 {
        if self.network.is_none() { POLICY_TIER } else { 0 }
    }

    /// The first part of the names of its ACLs, for people.
    pub(super) fn acl_prefix(&self) -> &'static str {
        if self.network.is_none() { "NP" } else { "MNP" }
    }
}
