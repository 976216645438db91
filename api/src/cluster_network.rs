//! The cluster's address ranges and MTU, as flags of the controller and of every node agent. Both must have equal values.

use std::fmt;
use std::str::FromStr;

use ipnet::IpNet;

/// A pod range of the cluster, with the prefix length of one node's part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterSubnet {
    /// The whole range, with no bits beyond its prefix.
    pub cidr: IpNet,
    /// Prefix length of a node's range.
    pub host_len: u8,
}

/// Default prefix length of a node's IPv4 range.
const DEFAULT_HOST_LEN_V4: u8 = 24;
/// Default prefix length of a node's IPv6 range.
const DEFAULT_HOST_LEN_V6: u8 = 64;

/// A text that is not a [`ClusterSubnet`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "cluster subnet `{text}`: {problem}; must be CIDR/HOSTLEN, such as 10.244.0.0/16/24, with HOSTLEN longer than the prefix and at most 29 (IPv6: 125)"
)]
pub struct ClusterSubnetError {
    /// The text.
    pub text: String,
    /// What is wrong with it.
    pub problem: String,
}

impl FromStr for ClusterSubnet {
    type Err = ClusterSubnetError;

    /// Parses `CIDR/HOSTLEN`, or only `CIDR` with 24 (IPv6: 64) for a node's range.
    fn from_str(text: &str) -> Result<Self, ClusterSubnetError> {
        let error = |problem: String| ClusterSubnetError { text: text.to_owned(), problem };
        let (cidr, host_len) = match text.splitn(3, '/').collect::<Vec<_>>()[..] {
            [ip, len, host] => (format!("{ip}/{len}"), Some(host)),
            _ => (text.to_owned(), None),
        };
        let cidr: IpNet = cidr.parse().map_err(|e| error(format!("`{cidr}`: {e}")))?;
        let host_len = match (host_len, cidr) {
            (Some(host), _) => host.parse().map_err(|e| error(format!("`{host}`: {e}")))?,
            (None, IpNet::V4(_)) => DEFAULT_HOST_LEN_V4,
            (None, IpNet::V6(_)) => DEFAULT_HOST_LEN_V6,
        };
        // A node's range needs the network's own address, gateway, management port, broadcast and one pod.
        let longest = cidr.max_prefix_len() - 3;
        if host_len <= cidr.prefix_len() || host_len > longest {
            return Err(error(format!(
                "a node's prefix length {host_len} is not greater than {} and at most {longest}",
                cidr.prefix_len()
            )));
        }
        Ok(Self { cidr: cidr.trunc(), host_len })
    }
}

impl fmt::Display for ClusterSubnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.cidr, self.host_len)
    }
}

/// The flags. A node agent compares its values with those of the controller, which are in an annotation
/// ([`crate::annotation::CLUSTER_NETWORK`]).
#[cfg(feature = "clap")]
#[derive(Debug, Clone, clap::Args)]
pub struct ClusterNetworkArgs {
    /// Pod ranges of the cluster: CIDR/HOSTLEN, separated by commas, HOSTLEN being the prefix length of a node's part.
    #[arg(
        long,
        env = "SLIPSTREAM_CLUSTER_SUBNETS",
        value_delimiter = ',',
        default_value = "10.244.0.0/16/24"
    )]
    pub cluster_subnets: Vec<ClusterSubnet>,
    /// Service ranges, separated by commas.
    #[arg(long, env = "SLIPSTREAM_SERVICE_CIDRS", value_delimiter = ',', default_value = "10.96.0.0/12")]
    pub service_cidrs: Vec<IpNet>,
    /// Range of the join switch, one for each family; fd98::/64 where pods have IPv6 and none is given.
    #[arg(long, env = "SLIPSTREAM_JOIN_SUBNET", value_delimiter = ',', default_value = "100.64.0.0/16")]
    pub join_subnet: Vec<IpNet>,
    /// Range of the addresses that represent OVN and the host on the gateway bridge, one for each family; fd69::/125 where pods
    /// have IPv6 and none is given.
    #[arg(
        long,
        env = "SLIPSTREAM_MASQUERADE_SUBNET",
        value_delimiter = ',',
        default_value = "169.254.169.0/29"
    )]
    pub masquerade_subnet: Vec<IpNet>,
    /// MTU of pod interfaces, in bytes.
    #[arg(long, env = "SLIPSTREAM_MTU", default_value_t = 1400)]
    pub mtu: u16,
    /// Connect every pod to the cluster's network. With `false` another plugin does, below Multus: pods get interfaces on virtual
    /// networks alone, each by a call for its NetworkAttachmentDefinition, and services and network policies are that plugin's.
    #[arg(long, env = "SLIPSTREAM_DEFAULT_NETWORK", default_value_t = true, action = clap::ArgAction::Set)]
    pub default_network: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nodes_prefix_length_has_a_default_and_the_range_is_truncated() {
        let subnet: ClusterSubnet = "10.244.1.2/16/24".parse().unwrap();
        assert_eq!(subnet.to_string(), "10.244.0.0/16/24");
        assert_eq!("10.244.0.0/16".parse::<ClusterSubnet>().unwrap().host_len, 24);
        assert_eq!("fd00::/48".parse::<ClusterSubnet>().unwrap().host_len, 64);
    }

    #[test]
    fn what_is_wrong_is_named_with_what_would_be_right() {
        for bad in ["", "10.244.0.0", "10.244.0.0/16/16", "10.244.0.0/16/33", "10.244.0.0/16/24/1", "x/16/24"]
        {
            let error = bad.parse::<ClusterSubnet>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{bad}`")) && error.contains("10.244.0.0/16/24"), "{error}");
        }
    }

    #[test]
    fn a_nodes_range_without_room_for_a_pod_is_refused() {
        assert!("10.96.0.0/0/29".parse::<ClusterSubnet>().is_ok());
        for bad in ["10.96.0.0/0/32", "10.96.0.0/0/30", "fd00::/48/126"] {
            assert!(bad.parse::<ClusterSubnet>().unwrap_err().to_string().contains("at most"), "{bad}");
        }
    }
}
