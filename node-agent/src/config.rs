//! The configuration. Every flag can also be given as an environment variable `SLIPSTREAM_*`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueEnum;
use ipnet::IpNet;

/// Everything the agent is told from outside.
#[derive(Debug, Clone, clap::Args)]
pub struct Config {
    /// Name of this node's Node object.
    #[arg(long, env = "SLIPSTREAM_NODE_NAME")]
    pub node_name: String,
    /// Kubeconfig file; without it the service account of the pod the agent runs in.
    #[arg(long, env = "SLIPSTREAM_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// URL of the API server, in place of the one that the kubeconfig or the service account's environment names: inside a
    /// cluster that is a service address, which works only once this agent serves it.
    #[arg(long, env = "SLIPSTREAM_API_SERVER")]
    pub api_server: Option<String>,
    /// The node's Open_vSwitch database.
    #[arg(long, env = "SLIPSTREAM_OVS_DB", default_value = "unix:/run/openvswitch/db.sock")]
    pub ovs_db: String,
    /// OVN's Southbound database, for ovn-controller (`ovn-remote`).
    #[arg(long, env = "SLIPSTREAM_SB", default_value = "")]
    pub sb: String,
    /// Pod ranges of the cluster with the prefix length of a node's share, such as 10.244.0.0/16/24.
    #[arg(
        long,
        env = "SLIPSTREAM_CLUSTER_SUBNETS",
        value_delimiter = ',',
        default_value = "10.244.0.0/16/24"
    )]
    pub cluster_subnets: Vec<ClusterSubnet>,
    /// Service ranges.
    #[arg(long, env = "SLIPSTREAM_SERVICE_CIDRS", value_delimiter = ',', default_value = "10.96.0.0/12")]
    pub service_cidrs: Vec<IpNet>,
    /// Subnet of the join switch.
    #[arg(long, env = "SLIPSTREAM_JOIN_SUBNET", value_delimiter = ',', default_value = "100.64.0.0/16")]
    pub join_subnet: Vec<IpNet>,
    /// Subnet of the addresses that stand for OVN and the host on the gateway bridge.
    #[arg(
        long,
        env = "SLIPSTREAM_MASQUERADE_SUBNET",
        value_delimiter = ',',
        default_value = "169.254.169.0/29"
    )]
    pub masquerade_subnet: Vec<IpNet>,
    /// MTU of pod interfaces, in bytes.
    #[arg(long, env = "SLIPSTREAM_MTU", default_value_t = 1400)]
    pub mtu: u32,
    /// Address of the tunnel endpoint, or `auto` for the node's address on the gateway interface.
    #[arg(long, env = "SLIPSTREAM_ENCAP_IP", default_value = "auto")]
    pub encap_ip: EncapIp,
    /// The interface with the node's address, which becomes a port of the gateway bridge, or `auto` for that of the default
    /// route.
    #[arg(long, env = "SLIPSTREAM_GATEWAY_INTERFACE", default_value = "auto")]
    pub gateway_interface: String,
    /// What to do with a gateway interface whose address is leased.
    #[arg(long, env = "SLIPSTREAM_GATEWAY_LEASES", value_enum, default_value_t = Leases::Refuse)]
    pub gateway_leases: Leases,
    /// Default gateways of the physical network; without it those of the gateway interface's default routes.
    #[arg(long, env = "SLIPSTREAM_GATEWAY_NEXT_HOP", value_delimiter = ',')]
    pub gateway_next_hop: Vec<IpAddr>,
    /// Which data path to use.
    #[arg(long, env = "SLIPSTREAM_DATAPATH", value_enum, default_value_t = DatapathFlag::Auto)]
    pub datapath: DatapathFlag,
    /// How pods are attached to OVS.
    #[arg(long, env = "SLIPSTREAM_ATTACH_MODE", value_enum, default_value_t = AttachMode::Auto)]
    pub attach_mode: AttachMode,
    /// Socket on which the CNI executable calls the agent.
    #[arg(long, env = "SLIPSTREAM_CNI_SOCKET", default_value = api::cni::DEFAULT_SOCKET)]
    pub cni_socket: PathBuf,
    /// Socket on which `slipctl` asks the agent.
    #[arg(long, env = "SLIPSTREAM_ADMIN_SOCKET", default_value = api::admin::DEFAULT_SOCKET)]
    pub admin_socket: PathBuf,
    /// Directory of the container runtime's CNI configuration.
    #[arg(long, env = "SLIPSTREAM_CNI_CONF_DIR", default_value = "/etc/cni/net.d")]
    pub cni_conf_dir: PathBuf,
    /// Directory of the container runtime's CNI executables.
    #[arg(long, env = "SLIPSTREAM_CNI_BIN_DIR", default_value = "/opt/cni/bin")]
    pub cni_bin_dir: PathBuf,
    /// Directory for what must outlive the agent.
    #[arg(long, env = "SLIPSTREAM_STATE_DIR", default_value = "/var/lib/slipstream")]
    pub state_dir: PathBuf,
    /// Directory of pinned eBPF objects, on a bpf file system.
    #[arg(long, env = "SLIPSTREAM_BPF_DIR", default_value = "/sys/fs/bpf/slipstream")]
    pub bpf_dir: PathBuf,
    /// Where metrics, health and status are served.
    #[arg(long, env = "SLIPSTREAM_METRICS_BIND_ADDRESS", default_value = "127.0.0.1:9410")]
    pub metrics_bind_address: SocketAddr,
    /// Where load balancers ask whether this node serves services, as they ask kube-proxy (`/healthz`).
    #[arg(long, env = "SLIPSTREAM_PROXY_HEALTHZ_BIND_ADDRESS", default_value = "0.0.0.0:10256")]
    pub proxy_healthz_bind_address: SocketAddr,
    /// Where `/proxyMode` is served, as kube-proxy does.
    #[arg(long, env = "SLIPSTREAM_PROXY_STATUS_BIND_ADDRESS", default_value = "127.0.0.1:10249")]
    pub proxy_status_bind_address: SocketAddr,
    /// Flows that can be cached (IPv4; a quarter of it for IPv6). Some 440 bytes of memory each.
    #[arg(long, env = "SLIPSTREAM_FLOW_TABLE_SIZE", default_value_t = ebpf::layout::maps::FLOWS, value_parser = clap::value_parser!(u32).range(64..=16_777_216))]
    pub flow_table_size: u32,
    /// A cached flow is sent through OVS again after this time, in milliseconds; 0 = every packet. For measurements.
    #[cfg(feature = "test-hooks")]
    #[arg(long, env = "SLIPSTREAM_REFRESH_MS", default_value_t = 2_000, hide = true)]
    pub refresh_ms: u64,
    /// How long the API server may be silent after the bridge has taken the uplink's place, in milliseconds. For tests.
    #[cfg(feature = "test-hooks")]
    #[arg(long, env = "SLIPSTREAM_API_PATIENCE_MS", default_value_t = 60_000, hide = true)]
    pub api_patience_ms: u64,
    /// The programs count and compare nothing. For measurements.
    #[cfg(feature = "test-hooks")]
    #[arg(long, env = "SLIPSTREAM_BENCH_WITHOUT_COUNTERS", hide = true)]
    pub bench_without_counters: bool,
    /// The `ovs-ofctl` executable.
    #[arg(long, env = "SLIPSTREAM_OFCTL", default_value = "ovs-ofctl")]
    pub ofctl: PathBuf,
}

impl Config {
    /// How long the API server may be silent after the bridge has taken the uplink's place.
    #[cfg(feature = "test-hooks")]
    pub fn api_patience(&self) -> std::time::Duration {
        std::time::Duration::from_millis(self.api_patience_ms)
    }

    /// How long the API server may be silent after the bridge has taken the uplink's place.
    #[cfg(not(feature = "test-hooks"))]
    #[expect(clippy::unused_self, reason = "programs built for tests have a flag for it")]
    pub fn api_patience(&self) -> std::time::Duration {
        std::time::Duration::from_secs(60)
    }
}

/// Which data path the operator wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DatapathFlag {
    /// eBPF where it works, else OVS alone, with the reason in status.
    Auto,
    /// eBPF or nothing: the agent fails to start where it does not work.
    Ebpf,
    /// OVS alone.
    Ovs,
}

/// What to do with a gateway interface whose address is leased.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Leases {
    /// Do not take it: nobody would renew the lease on the bridge.
    Refuse,
    /// Keep the address for good: the DHCP server keeps it for this node.
    Keep,
}

/// Which end OVS gets of a pod's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AttachMode {
    /// Interposed with eBPF on OVS's userspace datapath, else direct.
    Auto,
    /// The pod's host veth is the OVS port.
    Direct,
    /// The OVS port is the far end of a second veth pair, wired by eBPF.
    Interposed,
}

/// A pod range and the prefix length of one node's share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterSubnet {
    /// The whole range.
    pub net: IpNet,
    /// Prefix length of a node's share.
    pub node_prefix: u8,
}

impl std::fmt::Display for ClusterSubnet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.net.trunc(), self.node_prefix)
    }
}

impl FromStr for ClusterSubnet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = "a prefix and a node's prefix length are needed, such as 10.244.0.0/16/24";
        let mut parts = text.split('/');
        let (Some(ip), Some(len), host, None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(format!("`{text}`: {wanted}"));
        };
        let net: IpNet = format!("{ip}/{len}").parse().map_err(|e| format!("`{text}`: {e}; {wanted}"))?;
        let node_prefix = match host {
            Some(host) => host.parse().map_err(|e| format!("`{text}`: `{host}`: {e}; {wanted}"))?,
            None if net.addr().is_ipv4() => 24,
            None => 64,
        };
        // As the controller has it: with the network's own address, a gateway, a management port and a pod.
        let longest = net.max_prefix_len() - 3;
        if node_prefix <= net.prefix_len() || node_prefix > longest {
            return Err(format!(
                "`{text}`: a node's prefix length must be greater than {} and at most {longest}",
                net.prefix_len()
            ));
        }
        Ok(Self { net, node_prefix })
    }
}

/// Address of the tunnel endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EncapIp {
    /// The node's address on the gateway interface.
    Auto,
    /// This one.
    Fixed(IpAddr),
}

impl FromStr for EncapIp {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        text.parse().map(Self::Fixed).map_err(|e| format!("`{text}`: {e}; `auto` or an IP address is needed"))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        config: Config,
    }

    /// The configuration of these flags.
    pub(crate) fn config(flags: &[&str]) -> Config {
        let all = ["slipstream-node-agent", "--node-name=n1"];
        Flags::parse_from(all.iter().chain(flags)).config
    }

    #[test]
    fn a_cluster_subnet_has_a_node_prefix_inside_the_range() {
        let ok: ClusterSubnet = "10.244.0.0/16/24".parse().unwrap();
        assert_eq!((ok.net.to_string().as_str(), ok.node_prefix), ("10.244.0.0/16", 24));
        assert_eq!("10.244.0.0/16".parse::<ClusterSubnet>().unwrap().node_prefix, 24);
        for bad in ["", "10.244.0.0", "10.244.0.0/16/16", "10.244.0.0/16/33", "10.244.0.0/16/24/1", "x/16/24"]
        {
            assert!(bad.parse::<ClusterSubnet>().unwrap_err().contains(bad));
        }
    }

    #[test]
    fn a_nodes_range_without_room_for_a_pod_is_refused() {
        assert!("10.96.0.0/0/29".parse::<ClusterSubnet>().is_ok());
        for bad in ["10.96.0.0/0/32", "10.96.0.0/0/30", "fd00::/48/126"] {
            assert!(bad.parse::<ClusterSubnet>().unwrap_err().contains("at most"), "{bad}");
        }
    }

    #[cfg(not(feature = "test-hooks"))]
    #[test]
    fn what_only_tests_use_is_no_flag() {
        for flag in ["--refresh-ms=0", "--bench-without-counters", "--api-patience-ms=1"] {
            let parsed = Flags::try_parse_from(["slipstream-node-agent", "--node-name", "n1", flag]);
            assert_eq!(parsed.unwrap_err().kind(), clap::error::ErrorKind::UnknownArgument, "{flag}");
        }
    }

    #[test]
    fn defaults_are_those_of_the_documentation() {
        let config = config(&[]);
        assert_eq!(config.mtu, 1400);
        assert_eq!(config.service_cidrs, ["10.96.0.0/12".parse().unwrap()], "as kubeadm has it");
        assert_eq!(config.encap_ip, EncapIp::Auto);
        assert_eq!(config.cni_socket.to_str(), Some("/run/slipstream/cni.sock"));
    }
}
