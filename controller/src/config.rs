//! The configuration of the cluster: address ranges, MTU, and the features of the northbound schema. Checked once, at start.

use std::net::IpAddr;

use api::addr::{self, Family, Masquerade};
use api::annotation::ClusterNetwork;
use api::cluster_network::ClusterSubnet;
use api::virtual_network::Limits;
use ipnet::IpNet;

/// The configuration cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Two ranges share addresses.
    #[error("{0} and {1} overlap; they must be separate ranges")]
    Overlap(String, String),
    /// Something is missing.
    #[error("{0}")]
    Missing(String),
}

/// Features of the server's northbound schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// `ACL.tier` (OVN 23.06 and later).
    pub acl_tier: bool,
    /// `NAT.external_port_range`.
    pub nat_port_range: bool,
    /// Table `Static_MAC_Binding` with `override_dynamic_mac`.
    pub static_mac_binding: bool,
    /// Table `Copp` and `Logical_Router.copp`.
    pub copp: bool,
    /// Table `Load_Balancer_Group`.
    pub load_balancer_group: bool,
    /// Table `BFD` and `Logical_Router_Static_Route.bfd`.
    pub bfd: bool,
}

impl Features {
    /// The features of a current OVN.
    pub const ALL: Self = Self {
        acl_tier: true,
        nat_port_range: true,
        static_mac_binding: true,
        copp: true,
        load_balancer_group: true,
        bfd: true,
    };
}

/// The cluster's configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Pod ranges.
    pub cluster_subnets: Vec<ClusterSubnet>,
    /// Service ranges.
    pub service_cidrs: Vec<IpNet>,
    /// Range between cluster router and gateway routers, one for each family.
    pub join_subnets: Vec<IpNet>,
    /// Masquerade range, one for each family.
    pub masquerade_subnets: Vec<IpNet>,
    /// MTU of pods, bytes.
    pub mtu: u16,
    /// The namespace that represents the nodes where policies select namespaces.
    pub host_network_namespace: Option<String>,
    /// Whether pods have the cluster's network by Slipstream; otherwise another plugin connects them, and serves services.
    pub default_network: bool,
    /// Features of the northbound schema.
    pub features: Features,
}

/// Whether two addresses or ranges are of one family.
pub fn same_family(a: IpAddr, b: IpAddr) -> bool {
    a.is_ipv4() == b.is_ipv4()
}

impl Config {
    /// Adds the join and masquerade ranges that are not given for a family that pods have.
    #[must_use]
    pub fn with_default_ranges(self) -> Self {
        let families: Vec<Family> = self.families().into_iter().map(Family::of).collect();
        let join = addr::with_defaults(&self.join_subnets, families.iter().copied(), &addr::DEFAULT_JOIN);
        let masquerade = addr::with_defaults(&self.masquerade_subnets, families, &addr::DEFAULT_MASQUERADE);
        Self { join_subnets: join, masquerade_subnets: masquerade, ..self }
    }

    /// Checks that no two ranges overlap and that every pod family has a join and a masquerade range.
    ///
    /// # Errors
    /// [`ConfigError`] names the ranges.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let named: Vec<(String, IpNet)> = self
            .cluster_subnets
            .iter()
            .map(|subnet| ("cluster subnet", subnet.cidr))
            .chain(self.service_cidrs.iter().map(|&net| ("service range", net)))
            .chain(self.join_subnets.iter().map(|&net| ("join subnet", net)))
            .chain(self.masquerade_subnets.iter().map(|&net| ("masquerade subnet", net)))
            .map(|(what, net)| (format!("{what} {net}"), net))
            .collect();
        for (at, (name, net)) in named.iter().enumerate() {
            for (other_name, other) in &named[at + 1..] {
                if net.contains(&other.network()) || other.contains(&net.network()) {
                    return Err(ConfigError::Overlap(name.clone(), other_name.clone()));
                }
            }
        }
        if self.cluster_subnets.is_empty() {
            return Err(ConfigError::Missing("at least one cluster subnet is needed".to_owned()));
        }
        for net in &self.join_subnets {
            // Besides the network's own address the cluster router and a node, and for IPv4 the broadcast address.
            if net.prefix_len() > net.max_prefix_len() - 2 {
                return Err(ConfigError::Missing(format!(
                    "join subnet {net}: room for the cluster router and every node is needed, such as a /16"
                )));
            }
        }
        for subnet in &self.cluster_subnets {
            let ip = subnet.cidr.addr();
            if self.join(ip).is_none() {
                return Err(ConfigError::Missing(format!(
                    "cluster subnet {subnet}: a join subnet of its family is needed"
                )));
            }
            if self.masquerade(ip).is_none() {
                return Err(ConfigError::Missing(format!(
                    "cluster subnet {subnet}: a masquerade subnet of its family with room for 5 addresses is needed"
                )));
            }
        }
        Ok(())
    }

    /// The settings that node agents must share: the value of annotation [`api::annotation::CLUSTER_NETWORK`].
    pub fn published(&self) -> String {
        api::annotation::encode(&ClusterNetwork {
            cluster_subnets: self.cluster_subnets.iter().map(ToString::to_string).collect(),
            service_cidrs: self.service_cidrs.clone(),
            join_subnets: self.join_subnets.clone(),
            masquerade_subnets: self.masquerade_subnets.clone(),
            mtu: self.mtu.into(),
            default_network: self.default_network,
        })
    }

    /// The ranges of pods, services, join and masquerade addresses.
    pub fn own_ranges(&self) -> Vec<IpNet> {
        let pods = self.cluster_subnets.iter().map(|subnet| subnet.cidr);
        let rest = [&self.service_cidrs, &self.join_subnets, &self.masquerade_subnets];
        pods.chain(rest.into_iter().flatten().copied()).collect()
    }

    /// What the fields of virtual networks are compared with.
    pub fn network_limits(&self) -> Limits {
        let pods = self.cluster_subnets.iter().map(|subnet| ("cluster subnet", subnet.cidr));
        let named = |what, nets: &[IpNet]| nets.iter().map(|net| (what, *net)).collect::<Vec<_>>();
        let own = pods
            .chain(named("service range", &self.service_cidrs))
            .chain(named("join subnet", &self.join_subnets))
            .chain(named("masquerade subnet", &self.masquerade_subnets))
            .map(|(what, net)| (what.to_owned(), net))
            .collect();
        let mut node_prefixes: Vec<(Family, u8)> = Vec::new();
        for subnet in &self.cluster_subnets {
            let family = Family::of_net(&subnet.cidr);
            match node_prefixes.iter_mut().find(|(known, _)| *known == family) {
                Some((_, longest)) => *longest = (*longest).max(subnet.host_len),
                None => node_prefixes.push((family, subnet.host_len)),
            }
        }
        Limits { own, node_prefixes, mtu: self.mtu.into() }
    }

    /// The join range of the family of `ip`.
    pub fn join(&self, ip: IpAddr) -> Option<IpNet> {
        self.join_subnets.iter().copied().find(|net| same_family(net.addr(), ip))
    }

    /// The masquerade range of the family of `ip`.
    pub fn masquerade_subnet(&self, ip: IpAddr) -> Option<IpNet> {
        self.masquerade_subnets.iter().copied().find(|net| same_family(net.addr(), ip))
    }

    /// The masquerade addresses of the family of `ip`.
    pub fn masquerade(&self, ip: IpAddr) -> Option<Masquerade> {
        self.masquerade_subnet(ip).and_then(|net| Masquerade::of(&net))
    }

    /// Whether pods have addresses of this family.
    pub fn has_family(&self, ipv4: bool) -> bool {
        self.cluster_subnets.iter().any(|subnet| subnet.cidr.addr().is_ipv4() == ipv4)
    }

    /// An address of every family that pods have, IPv4 first.
    pub fn families(&self) -> Vec<IpAddr> {
        let mut families: Vec<IpAddr> = Vec::new();
        for subnet in &self.cluster_subnets {
            if !families.iter().any(|ip| same_family(*ip, subnet.cidr.addr())) {
                families.push(subnet.cidr.addr());
            }
        }
        families.sort();
        families
    }

    /// Join addresses of the router with number `id` (1 is the cluster router), with prefix length.
    pub fn join_addresses(&self, id: u32) -> Vec<IpNet> {
        self.families()
            .into_iter()
            .filter_map(|family| self.join(family))
            .filter_map(|net| IpNet::new(addr::join_of(&net, id)?, net.prefix_len()).ok())
            .collect()
    }

    /// Sources of a pod's connection to itself through a service, as a load balancer names them: IPv4 and IPv6, the
    /// latter from `fd69::/125` where no range is configured.
    pub fn hairpin_addresses(&self) -> String {
        let ranges = addr::with_defaults(&self.masquerade_subnets, [Family::V6], &addr::DEFAULT_MASQUERADE);
        [Family::V4, Family::V6]
            .into_iter()
            .filter_map(|family| ranges.iter().find(|net| Family::of_net(net) == family))
            .filter_map(Masquerade::of)
            .map(|addresses| addresses.hairpin.to_string())
            .collect::<Vec<_>>()
            .join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(cluster: &str, service: &str) -> Config {
        Config {
            cluster_subnets: vec![cluster.parse().unwrap()],
            service_cidrs: vec![service.parse().unwrap()],
            join_subnets: vec!["100.64.0.0/16".parse().unwrap()],
            masquerade_subnets: vec!["169.254.169.0/29".parse().unwrap()],
            mtu: 1400,
            host_network_namespace: None,
            default_network: true,
            features: Features::ALL,
        }
    }

    #[test]
    fn separate_ranges_are_accepted() {
        config("10.244.0.0/16/24", "10.96.0.0/16").validate().unwrap();
    }

    #[test]
    fn overlapping_ranges_are_refused_by_name() {
        let text = config("10.0.0.0/8/24", "10.96.0.0/16").validate().unwrap_err().to_string();
        assert!(
            text.contains("cluster subnet 10.0.0.0/8") && text.contains("service range 10.96.0.0/16"),
            "{text}"
        );
        let text = config("100.64.128.0/17/24", "10.96.0.0/16").validate().unwrap_err().to_string();
        assert!(text.contains("join subnet 100.64.0.0/16"), "{text}");
    }

    #[test]
    fn a_family_without_join_subnet_is_refused() {
        let text = config("fd00::/48/64", "10.96.0.0/16").validate().unwrap_err().to_string();
        assert!(text.contains("join subnet of its family"), "{text}");
    }

    #[test]
    fn a_join_subnet_without_room_for_a_node_is_refused() {
        for (net, good) in [("100.64.0.0/30", true), ("100.64.0.0/31", false), ("100.64.0.0/32", false)] {
            let mut config = config("10.244.0.0/16/24", "10.96.0.0/16");
            config.join_subnets = vec![net.parse().unwrap()];
            let checked = config.validate();
            assert_eq!(checked.is_ok(), good, "{net}");
            assert!(checked.err().is_none_or(|error| error.to_string().contains(net)));
        }
    }

    #[test]
    fn a_cluster_of_ipv6_alone_has_no_ipv4_range_that_it_does_not_name() {
        let named = config("fd00::/48/64", "fd00:10:96::/112");
        let config = Config { join_subnets: Vec::new(), masquerade_subnets: Vec::new(), ..named };
        let config = config.with_default_ranges();
        config.validate().unwrap();
        let all = config.join_subnets.iter().chain(&config.masquerade_subnets);
        assert!(all.clone().count() == 2 && all.clone().all(|net| net.addr().is_ipv6()), "{config:?}");
    }

    #[test]
    fn a_dual_cluster_gets_the_ranges_it_does_not_name() {
        let mut dual = config("10.244.0.0/16/24", "10.96.0.0/16");
        dual.cluster_subnets.push("fd00:10:244::/48/64".parse().unwrap());
        dual.service_cidrs.push("fd00:10:96::/112".parse().unwrap());
        let dual = dual.with_default_ranges();
        dual.validate().unwrap();
        let joined: Vec<String> = dual.join_addresses(2).iter().map(ToString::to_string).collect();
        assert_eq!(joined, ["100.64.0.2/16", "fd98::2/64"]);
        let v4 = config("10.244.0.0/16/24", "10.96.0.0/16");
        assert_eq!(v4.clone().with_default_ranges(), v4);
    }

    #[test]
    fn host_length_has_a_default_and_must_fit() {
        assert_eq!("10.0.0.0/16".parse::<ClusterSubnet>().unwrap().to_string(), "10.0.0.0/16/24");
        for bad in ["10.0.0.0/24/24", "10.0.0.0/16/30", "10.0.0.0", "x/16/24", "10.0.0.0/16/24/1"] {
            assert!(bad.parse::<ClusterSubnet>().is_err(), "{bad}");
        }
    }

    #[test]
    fn hairpin_addresses_name_both_families() {
        assert_eq!(config("10.244.0.0/16/24", "10.96.0.0/16").hairpin_addresses(), "169.254.169.5 fd69::5");
    }
}
