//! Command line flags of the node agent; each can also be set by an environment variable `SLIPSTREAM_*`.

use api::annotation::GatewayMode;
use api::cluster_network::ClusterNetworkArgs;
use api::settings::{ApiAccessArgs, SettingsArgs};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use clap::{ArgAction, ValueEnum};
use ipnet::IpNet;
use supervision::log::LogArgs;

/// Flags of the node agent.
#[derive(Debug, Clone, clap::Args)]
pub struct Config {
    /// Name of this node's Node object.
    #[arg(long, env = "SLIPSTREAM_NODE_NAME")]
    pub node_name: String,
    /// Kubeconfig file; default: the service account of the agent's pod.
    #[arg(long, env = "SLIPSTREAM_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// URL of the API server; default: from the kubeconfig or the service account. Required in a cluster, where the default is a
    /// service address that works only after this agent has set up services.
    #[arg(long, env = "SLIPSTREAM_API_SERVER")]
    pub api_server: Option<String>,
    /// Token and certificate authority for that API server.
    #[command(flatten)]
    pub api_access: ApiAccessArgs,
    /// Open_vSwitch database of the node.
    #[arg(long, env = "SLIPSTREAM_OVS_DB", default_value = "unix:/run/openvswitch/db.sock")]
    pub ovs_db: String,
    /// OVN Southbound database, set for ovn-controller as `ovn-remote`.
    #[arg(long, env = "SLIPSTREAM_SB", default_value = "")]
    pub sb: String,
    /// Directory for the certificate by which ovn-controller shows its chassis name to the Southbound database; default: none is
    /// requested. ovn-controller reads `current/tls.key`, `current/tls.crt` and `current/ca.crt` in it.
    #[arg(long, env = "SLIPSTREAM_SB_CERTIFICATES")]
    pub sb_certificates: Option<PathBuf>,
    /// The cluster's ranges and MTU.
    #[command(flatten)]
    pub network: ClusterNetworkArgs,
    /// Address of the Geneve tunnel endpoint, or `auto` for the address of the gateway interface.
    #[arg(long, env = "SLIPSTREAM_ENCAP_IP", default_value = "auto")]
    pub encap_ip: EncapIp,
    /// Uplink, which becomes a port of the gateway bridge, or `auto` for the interface of the default route.
    #[arg(long, env = "SLIPSTREAM_GATEWAY_INTERFACE", default_value = "auto")]
    pub gateway_interface: String,
    /// Second uplink, by which pods leave to the external gateways of their namespace (annotation `k8s.ovn.org/routing-external-gws`).
    /// It becomes a port of a bridge of its own. Default: they leave by the gateway interface.
    #[arg(long, env = "SLIPSTREAM_EXGW_INTERFACE")]
    pub exgw_interface: Option<String>,
    /// Handling of a gateway interface with a DHCP lease.
    #[arg(long, env = "SLIPSTREAM_GATEWAY_LEASES", value_enum, default_value_t = Leases::Refuse)]
    pub gateway_leases: Leases,
    /// Way by which pods reach the outside: by OVN, or by the node's own network stack, with its routes and its firewall.
    #[arg(long, env = "SLIPSTREAM_GATEWAY_MODE", value_enum, default_value_t)]
    pub gateway_mode: GatewayMode,
    /// Default gateways of the physical network; default: from the default routes of the gateway interface.
    #[arg(long, env = "SLIPSTREAM_GATEWAY_NEXT_HOP", value_delimiter = ',')]
    pub gateway_next_hop: Vec<IpAddr>,
    /// Serve node ports on this node. With `false` services are reached by their other addresses only.
    #[arg(long, env = "SLIPSTREAM_NODE_PORT", default_value_t = true, action = ArgAction::Set)]
    pub node_port: bool,
    /// Datapath to use.
    #[arg(long, env = "SLIPSTREAM_DATAPATH", value_enum, default_value_t = DatapathFlag::Auto)]
    pub datapath: DatapathFlag,
    /// How interfaces are attached to OVS.
    #[arg(long, env = "SLIPSTREAM_ATTACH_MODE", value_enum, default_value_t = AttachMode::Auto)]
    pub attach_mode: AttachMode,
    /// XDP program on the uplink, which forwards cached flows that enter and leave by the uplink.
    #[arg(long, env = "SLIPSTREAM_XDP", value_enum, default_value_t = XdpFlag::Off)]
    pub xdp: XdpFlag,
    /// What the XDP program does with Geneve packets that are malformed or come from an address without a tunnel.
    #[arg(long, env = "SLIPSTREAM_XDP_UNKNOWN_TUNNEL", value_enum, default_value_t = UnknownTunnel::Pass)]
    pub xdp_unknown_tunnel: UnknownTunnel,
    /// Unix socket of the agent for the CNI plugin.
    #[arg(long, env = "SLIPSTREAM_CNI_SOCKET", default_value = api::cni::DEFAULT_SOCKET)]
    pub cni_socket: PathBuf,
    /// Unix socket of the agent for slipctl.
    #[arg(long, env = "SLIPSTREAM_ADMIN_SOCKET", default_value = api::admin::DEFAULT_SOCKET)]
    pub admin_socket: PathBuf,
    /// CNI configuration directory of the container runtime.
    #[arg(long, env = "SLIPSTREAM_CNI_CONF_DIR", default_value = "/etc/cni/net.d")]
    pub cni_conf_dir: PathBuf,
    /// CNI plugin directory of the container runtime.
    #[arg(long, env = "SLIPSTREAM_CNI_BIN_DIR", default_value = "/opt/cni/bin")]
    pub cni_bin_dir: PathBuf,
    /// Directory for persistent state.
    #[arg(long, env = "SLIPSTREAM_STATE_DIR", default_value = "/var/lib/slipstream")]
    pub state_dir: PathBuf,
    /// Directory for pinned eBPF programs and maps, on a bpf file system.
    #[arg(long, env = "SLIPSTREAM_BPF_DIR", default_value = "/sys/fs/bpf/slipstream")]
    pub bpf_dir: PathBuf,
    /// Listen address for metrics, health and status.
    #[arg(long, env = "SLIPSTREAM_METRICS_BIND_ADDRESS", default_value = "127.0.0.1:9410")]
    pub metrics_bind_address: SocketAddr,
    /// Listen address for the health checks of load balancers (`/healthz`), as kube-proxy serves them.
    #[arg(long, env = "SLIPSTREAM_PROXY_HEALTHZ_BIND_ADDRESS", default_value = "0.0.0.0:10256")]
    pub proxy_healthz_bind_address: SocketAddr,
    /// Listen address for `/proxyMode`, as kube-proxy serves it.
    #[arg(long, env = "SLIPSTREAM_PROXY_STATUS_BIND_ADDRESS", default_value = "127.0.0.1:10249")]
    pub proxy_status_bind_address: SocketAddr,
    /// Maximum number of cached IPv4 flows; a quarter of it for IPv6; the other way round where pods have IPv6 alone. About 440 bytes of memory each.
    #[arg(long, env = "SLIPSTREAM_FLOW_TABLE_SIZE", default_value_t = ebpf::layout::maps::FLOWS, value_parser = clap::value_parser!(u32).range(64..=16_777_216))]
    pub flow_table_size: u32,
    /// Refresh interval of cached flows in milliseconds; 0: every packet. For measurements.
    #[cfg(feature = "test-hooks")]
    #[arg(long, env = "SLIPSTREAM_REFRESH_MS", default_value_t = 2_000, hide = true)]
    pub refresh_ms: u64,
    /// Time in milliseconds for the API server to respond after the uplink migration. For tests.
    #[cfg(feature = "test-hooks")]
    #[arg(long, env = "SLIPSTREAM_API_PATIENCE_MS", default_value_t = 60_000, hide = true)]
    pub api_patience_ms: u64,
    /// Disables counters and divergence checks in the eBPF programs. For measurements.
    #[cfg(feature = "test-hooks")]
    #[arg(long, env = "SLIPSTREAM_BENCH_WITHOUT_COUNTERS", hide = true)]
    pub bench_without_counters: bool,
    /// Path of ovs-ofctl.
    #[arg(long, env = "SLIPSTREAM_OFCTL", default_value = "ovs-ofctl")]
    pub ofctl: PathBuf,
    /// The agent's log.
    #[command(flatten)]
    pub log: LogArgs,
    /// Where settings come from.
    #[command(flatten)]
    pub settings: SettingsArgs,
}

impl Config {
    /// Service ranges that this agent serves: none where another plugin has the cluster's network.
    pub fn served_ranges(&self) -> &[IpNet] {
        if self.network.default_network { &self.network.service_cidrs } else { &[] }
    }

    /// Time for the API server to respond after the uplink migration; then the migration is undone.
    #[cfg(feature = "test-hooks")]
    pub fn api_patience(&self) -> std::time::Duration {
        std::time::Duration::from_millis(self.api_patience_ms)
    }

    /// Time for the API server to respond after the uplink migration; then the migration is undone.
    #[cfg(not(feature = "test-hooks"))]
    pub fn api_patience(&self) -> std::time::Duration {
        std::time::Duration::from_secs(60)
    }
}

/// Value of `--datapath`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DatapathFlag {
    /// eBPF if the node supports it, else OVS only; the reason is shown in status.
    Auto,
    /// eBPF; the agent fails to start if the node does not support it.
    Ebpf,
    /// OVS only.
    Ovs,
}

/// Value of `--gateway-leases`: handling of a gateway interface with a DHCP lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Leases {
    /// Do not migrate it: no DHCP client would renew the lease on the bridge.
    Refuse,
    /// Keep the address permanently; the DHCP server must reserve it for this node.
    Keep,
}

/// Value of `--xdp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum XdpFlag {
    /// Do not attach it.
    Off,
    /// Attach it if the uplink's driver has native XDP and the uplink is not a veth; the reason is shown in status.
    Auto,
    /// Attach it also to a veth, whose other end must send complete checksums and have an XDP program.
    Native,
}

/// Value of `--xdp-unknown-tunnel`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum UnknownTunnel {
    /// OVS decides.
    Pass,
    /// Drop them.
    Drop,
}

/// Value of `--attach-mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AttachMode {
    /// Interposed with eBPF on OVS's userspace datapath, else direct.
    Auto,
    /// The pod's host veth is the OVS port.
    Direct,
    /// The OVS port is the far end of a second veth pair; eBPF programs forward between the pairs.
    Interposed,
}

/// Value of `--encap-ip`: address of the Geneve tunnel endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EncapIp {
    /// Address of the gateway interface.
    Auto,
    /// A given address.
    Fixed(IpAddr),
}

impl FromStr for EncapIp {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        text.parse().map(Self::Fixed).map_err(|e| format!("`{text}`: {e}; must be `auto` or an IP address"))
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

    /// Parses flags.
    pub(crate) fn config(flags: &[&str]) -> Config {
        let all = ["slipstream-node-agent", "--node-name=n1"];
        Flags::parse_from(all.iter().chain(flags)).config
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
        assert_eq!(config.network.mtu, 1400);
        assert_eq!(config.network.service_cidrs, ["10.96.0.0/12".parse().unwrap()], "as kubeadm has it");
        assert_eq!(config.encap_ip, EncapIp::Auto);
        assert_eq!(config.cni_socket.to_str(), Some("/run/slipstream/cni.sock"));
    }
}
