//! What a cluster looks like: its hosts, addresses and settings.

use std::env;
use std::fmt::Display;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

mod addresses;
mod uplink;

pub use addresses::*;
pub use uplink::*;

/// Which datapath the node agents use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Datapath {
    /// eBPF if the node can.
    #[default]
    Auto,
    Ebpf,
    Ovs,
}

/// What runs pods on the nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Runtime {
    /// Small stand-ins; pods are network namespaces.
    #[default]
    Netns,
    /// The real kubelet, scheduler and container runtime.
    Containerd,
}

/// How Slipstream, OVN and OVS come to the nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Install {
    /// The test bed starts the programs.
    #[default]
    Programs,
    /// The chart does: they are pods of the image. Needs real nodes.
    Chart,
}

/// What Slipstream is under Multus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Multus {
    /// The plugin of the cluster's network.
    Default,
    /// A plugin of further networks, beside another one that has the cluster's.
    Secondary,
}

/// Where etcd, API server, controller manager and scheduler run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ControlPlane {
    /// On a host that is no node.
    #[default]
    Apart,
    /// On the first node, and services have a /12, as kubeadm makes clusters.
    Node,
}

/// How the agents attach their programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum AttachMode {
    #[default]
    Auto,
    Direct,
    Interposed,
}

/// How pods reach the outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum GatewayMode {
    /// By OVN.
    #[default]
    Shared,
    /// By the node's own network stack.
    Local,
}

/// Which datapath of OVS the nodes have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum OvsDatapath {
    /// In ovs-vswitchd; needs nothing of the kernel.
    #[default]
    Netdev,
    /// The kernel's, by its module `openvswitch`.
    System,
}

impl OvsDatapath {
    /// As `datapath_type` of a bridge has it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Netdev => "netdev",
            Self::System => "system",
        }
    }
}

impl Datapath {
    /// As the agent's flag has it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Ebpf => "ebpf",
            Self::Ovs => "ovs",
        }
    }
}

impl AttachMode {
    /// As the agent's flag has it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Direct => "direct",
            Self::Interposed => "interposed",
        }
    }
}

/// One cluster. Written to its directory before anything is started.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Config {
    /// Its name; clusters of different names do not meet.
    pub name: String,
    /// How many nodes: `n1` to `nN`.
    pub nodes: u8,
    pub datapath: Datapath,
    pub attach_mode: AttachMode,
    #[serde(default)]
    pub gateway_mode: GatewayMode,
    #[serde(default)]
    pub uplink: Uplink,
    #[serde(default)]
    pub ovs_datapath: OvsDatapath,
    #[serde(default)]
    pub runtime: Runtime,
    #[serde(default)]
    pub install: Install,
    #[serde(default)]
    pub control_plane: ControlPlane,
    /// Directory of the release that is installed, in place of what was built here.
    #[serde(default)]
    pub release: Option<PathBuf>,
    /// Multus is what the container runtime calls, with Slipstream in this role. Needs real nodes.
    #[serde(default)]
    pub multus: Option<Multus>,
    /// IPv6 beside IPv4, everywhere.
    #[serde(default)]
    pub dual_stack: bool,
    /// IPv6 alone, everywhere: no host has an IPv4 address but its loopback's.
    #[serde(default)]
    pub ipv6_only: bool,
    /// Whether controller and agents run; without them it is a bed to try things on by hand.
    pub plugin: bool,
    /// Whether the controller enforces network policies; without that the bed shows that a test would see it.
    pub network_policy: bool,
    /// How often the controller compares the northbound database with what it wants, seconds.
    #[serde(default = "verify_interval")]
    pub verify_interval: u32,
    /// Range of all pods and the length of a node's part of it.
    pub cluster_subnets: String,
    /// Everything the cluster leaves on disk is in here, and goes with `down`.
    pub dir: PathBuf,
    /// The project's cache with the programs of OVS, OVN and Kubernetes.
    pub cache: PathBuf,
    /// Where our own programs are.
    pub bin: PathBuf,
}

/// Often, as the end of each test waits for it twice.
fn verify_interval() -> u32 {
    10
}

/// A host: a set of namespaces on the underlay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    pub name: String,
    /// None for the switch that joins the others.
    pub ip: Option<Ipv4Addr>,
}

impl Config {
    /// The name, checked, and the directories from the environment.
    pub fn new(name: &str, nodes: u8) -> Result<Self> {
        if !(1..=8).contains(&nodes) {
            // n9 would have the address of the control plane.
            bail!("a cluster has 1 to 8 nodes, not {nodes}");
        }
        Ok(Self {
            name: name.to_owned(),
            nodes,
            datapath: Datapath::Auto,
            attach_mode: AttachMode::Auto,
            gateway_mode: GatewayMode::Shared,
            uplink: Uplink::Plain,
            ovs_datapath: OvsDatapath::Netdev,
            runtime: Runtime::Netns,
            install: Install::Programs,
            control_plane: ControlPlane::Apart,
            release: None,
            multus: None,
            dual_stack: false,
            ipv6_only: false,
            plugin: true,
            network_policy: true,
            verify_interval: verify_interval(),
            cluster_subnets: CLUSTER_SUBNETS.to_owned(),
            dir: directory(name)?,
            cache: cache()?,
            bin: programs()?,
        })
    }

    /// The configuration with IPv6 beside IPv4.
    #[must_use]
    pub fn with_dual_stack(self) -> Self {
        let cluster_subnets = format!("{},{CLUSTER_SUBNETS_6}", self.cluster_subnets);
        Self { dual_stack: true, cluster_subnets, ..self }
    }

    /// The configuration with IPv6 in place of IPv4.
    #[must_use]
    pub fn with_ipv6_only(self) -> Self {
        Self { ipv6_only: true, cluster_subnets: CLUSTER_SUBNETS_6.to_owned(), ..self }
    }

    /// Reads the description of a cluster that was brought up.
    pub fn load(name: &str) -> Result<Self> {
        let path = directory(name)?.join(FILE);
        let text = fs::read_to_string(&path).with_context(|| {
            format!("there is no cluster named {name} ({} cannot be read)", path.display())
        })?;
        serde_json::from_str(&text).with_context(|| format!("{} is damaged", path.display()))
    }

    /// Writes the description.
    pub fn save(&self) -> Result<()> {
        let path = self.dir.join(FILE);
        fs::write(&path, serde_json::to_vec_pretty(self)?)
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// All hosts; the switch comes first.
    #[must_use]
    pub fn hosts(&self) -> Vec<Host> {
        let named = |name: &str, ip| Host { name: name.to_owned(), ip };
        let mut hosts =
            vec![named("switch", None), named("central", Some(CENTRAL_IP)), named("ext", Some(EXT_IP))];
        hosts.extend((1..=self.nodes).map(|i| named(&node_name(i), Some(node_ip(i)))));
        hosts
    }

    /// The names of the nodes.
    #[must_use]
    pub fn node_names(&self) -> Vec<String> {
        (1..=self.nodes).map(node_name).collect()
    }

    /// Directory of one host.
    #[must_use]
    pub fn host_dir(&self, host: &str) -> PathBuf {
        self.dir.join("hosts").join(host)
    }

    /// Log of one process of one host.
    #[must_use]
    pub fn log(&self, host: &str, process: &str) -> PathBuf {
        self.dir.join("log").join(format!("{host}-{process}.log"))
    }

    /// Where the relay of a host is asked for connections.
    #[must_use]
    pub fn relay(&self, host: &str) -> PathBuf {
        self.host_dir(host).join("relay.sock")
    }

    /// Kubeconfig of a user of the cluster.
    #[must_use]
    pub fn kubeconfig(&self, user: &str) -> PathBuf {
        self.dir.join("conf").join(format!("{user}.yaml"))
    }

    /// A file of the cluster's keys.
    #[must_use]
    pub fn pki(&self, file: &str) -> PathBuf {
        self.dir.join("pki").join(file)
    }

    /// A program of OVS or OVN.
    #[must_use]
    pub fn ovs(&self, program: &str) -> PathBuf {
        self.cache.join("ovs/bin").join(program)
    }

    /// A schema of OVS or OVN.
    #[must_use]
    pub fn schema(&self, file: &str) -> PathBuf {
        self.cache.join("ovs/share").join(file)
    }

    /// A program of Kubernetes.
    #[must_use]
    pub fn kubernetes(&self, program: &str) -> PathBuf {
        self.cache.join("k8s").join(program)
    }

    /// A program of containerd.
    #[must_use]
    pub fn containerd(&self, program: &str) -> PathBuf {
        self.cache.join("containerd").join(program)
    }

    /// Multus, or a plugin of another network.
    #[must_use]
    pub fn cni(&self, program: &str) -> PathBuf {
        self.cache.join("cni").join(program)
    }

    /// Whether pods have the cluster's network by Slipstream.
    #[must_use]
    pub fn is_default_network(&self) -> bool {
        self.multus != Some(Multus::Secondary)
    }

    /// Where the image archives are, and the list of their names.
    #[must_use]
    pub fn images(&self) -> PathBuf {
        self.cache.join("images")
    }

    /// The cluster in places that it shares with all clusters of the machine. Those of one name may be in several
    /// directories.
    #[must_use]
    pub fn mark(&self) -> String {
        // FNV-1a, which stays the same whatever we are compiled with.
        let bytes = self.dir.as_os_str().as_encoded_bytes();
        let hash = bytes.iter().fold(0x811c_9dc5_u32, |h, &b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
        format!("{}-{hash:08x}", self.name)
    }

    /// Two values separated by a comma, or the one of the family that there is.
    #[must_use]
    pub fn families(&self, first: impl Display, second: impl Display) -> String {
        match (self.dual_stack, self.ipv6_only) {
            (true, _) => format!("{first},{second}"),
            (false, true) => second.to_string(),
            (false, false) => first.to_string(),
        }
    }

    /// The main address of the host with this IPv4 address, where there is IPv4.
    #[must_use]
    pub fn underlay_ip(&self, ip: Ipv4Addr) -> IpAddr {
        if self.ipv6_only { underlay_ip6(ip).into() } else { ip.into() }
    }

    /// A port of the host with OVN's databases.
    #[must_use]
    pub fn central(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.underlay_ip(CENTRAL_IP), port)
    }

    /// The host with etcd and API server.
    #[must_use]
    pub fn api_host(&self) -> &'static str {
        match self.control_plane {
            ControlPlane::Apart => "central",
            ControlPlane::Node => "n1",
        }
    }

    /// The API server.
    #[must_use]
    pub fn api(&self) -> SocketAddr {
        let ip = match self.control_plane {
            ControlPlane::Apart => CENTRAL_IP,
            ControlPlane::Node => node_ip(1),
        };
        SocketAddr::new(self.underlay_ip(ip), API_PORT)
    }

    /// The ranges of services.
    #[must_use]
    pub fn service_cidrs(&self) -> String {
        let range = match self.control_plane {
            ControlPlane::Apart => SERVICE_CIDR,
            ControlPlane::Node => SERVICE_CIDR_OF_KUBEADM,
        };
        self.families(range, SERVICE_CIDR_6)
    }

    /// Address of cluster DNS, where there is one.
    #[must_use]
    pub fn dns_service_ip(&self) -> IpAddr {
        if self.ipv6_only { DNS_SERVICE_IP_6.into() } else { DNS_SERVICE_IP.into() }
    }

    /// A program of ours.
    #[must_use]
    pub fn program(&self, name: &str) -> PathBuf {
        self.bin.join(name)
    }

    /// `PATH` inside the hosts.
    #[must_use]
    pub fn path(&self) -> String {
        let rest = env::var("PATH").unwrap_or_else(|_| "/usr/bin:/bin".into());
        format!(
            "{}:{}:{}:{rest}:/usr/sbin:/sbin",
            self.cache.join("ovs/bin").display(),
            self.cache.join("k8s").display(),
            self.cache.join("containerd").display()
        )
    }
}

const FILE: &str = "bed.json";

/// The directory of our programs: that of the own executable, or for a test program, which cargo puts into `deps`, the one
/// above.
///
/// # Errors
/// The own executable has no path.
pub fn programs() -> Result<PathBuf> {
    let own = env::current_exe()?;
    let mut directories = own.ancestors().skip(1);
    let found = directories.find(|directory| !directory.ends_with("deps"));
    Ok(found.context("own executable has no directory")?.to_path_buf())
}

/// `$SLIPSTREAM_CACHE`, else `$XDG_CACHE_HOME/slipstream`, else `~/.cache/slipstream`.
pub fn cache() -> Result<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(dir) = set("SLIPSTREAM_CACHE") {
        return Ok(std::path::absolute(dir)?);
    }
    if let Some(dir) = set("XDG_CACHE_HOME") {
        return Ok(dir.join("slipstream"));
    }
    Ok(set("HOME").context("HOME is not set")?.join(".cache/slipstream"))
}

/// The directory of a cluster: under `$SLIPSTREAM_RUN`, else under `run/` in the cache.
fn directory(name: &str) -> Result<PathBuf> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || name.len() > 32 || !name.chars().all(plain) {
        bail!("a cluster's name has 1 to 32 letters, digits, - and _; {name:?} is none");
    }
    let base = match env::var_os("SLIPSTREAM_RUN").filter(|v| !v.is_empty()) {
        Some(dir) => std::path::absolute(Path::new(&dir))?,
        None => cache()?.join("run"),
    };
    Ok(base.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_the_addresses_of_the_reference_cluster() {
        let config = Config::new("t", 2).unwrap();
        let ips: Vec<_> =
            config.hosts().into_iter().filter_map(|h| h.ip.map(|ip| format!("{} {ip}", h.name))).collect();
        assert_eq!(ips, ["central 172.18.0.10", "ext 172.18.0.1", "n1 172.18.0.2", "n2 172.18.0.3"]);
        assert_eq!(underlay_mac(node_ip(2)), "02:42:ac:12:00:03");
        assert_eq!(system_id(1), "00000000-0000-4000-8000-000000000001");
    }

    #[test]
    fn a_name_cannot_leave_the_run_directory() {
        assert!(Config::new("../x", 2).is_err());
        assert!(Config::new("", 2).is_err());
        assert!(Config::new("a b", 2).is_err());
    }

    #[test]
    fn a_node_never_has_the_address_of_another_host() {
        assert!(Config::new("t", 9).is_err());
        assert!(Config::new("t", 0).is_err());
        let ips: Vec<_> = Config::new("t", 8).unwrap().hosts().into_iter().filter_map(|h| h.ip).collect();
        let mut unique = ips.clone();
        unique.sort();
        unique.dedup();
        assert_eq!(ips.len(), unique.len());
    }
}
