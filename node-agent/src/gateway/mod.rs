//! The node's gateway: the bridge that takes the uplink's place, its flows, the node's own routes and translations, and what
//! is announced of it.
//!
//! [`setup`] moves the node's addresses to the bridge and tells ovn-controller who the node is; [`run`] keeps everything in
//! line with nodes, services and OVS until it is dropped; [`cleanup`] puts the node back. Traffic goes on without the agent.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use anyhow::Context as _;
use api::addr::Masquerade;
use ipnet::{IpNet, Ipv4Net};

pub mod bridge;
pub mod flows;
pub mod health;
pub mod host;
pub mod host_ports;
pub mod journal;
pub mod nft;
pub mod openflow;
mod programs;
mod reconcile;
pub mod saved;
pub mod services;
pub mod takeover;
pub mod tunnels;
pub mod watch;

pub use reconcile::{Status, run};
pub use takeover::UplinkPrograms;

use crate::args::{Config, EncapIp};
use crate::chassis::{self, ChassisConfig};
use crate::link::Netlink;
use crate::link::route::MAIN_TABLE;
use crate::management_port::ManagementPort;
use crate::ovs::Ovs;
use host::HostConfig;
use openflow::FlowWriter;
use takeover::{Taken, Takeover};

/// What the gateway works with.
#[derive(Clone)]
pub struct Context {
    /// The agent's configuration.
    pub config: Arc<Config>,
    /// Kernel side.
    pub netlink: Netlink,
    /// OVS side.
    pub ovs: Ovs,
    /// eBPF side; `None` on the plain OVS path.
    pub programs: Option<Arc<dyn UplinkPrograms>>,
    /// OVS gets the far end of a pair of links instead of the uplink.
    pub interposed: bool,
}

/// A gateway whose bridge is in place.
#[derive(Clone)]
pub struct Gateway {
    context: Context,
    taken: Taken,
    /// The node's address on the bridge, shared with the gateway router.
    pub address: Ipv4Net,
    /// Gateways of the physical network.
    pub next_hops: Vec<IpAddr>,
    /// Address of the tunnel end.
    pub encap_ip: IpAddr,
    /// OVN chassis name.
    pub chassis: String,
    masquerade: V4Masquerade,
    service_cidrs: Vec<Ipv4Net>,
    cluster_subnets: Vec<Ipv4Net>,
}

/// The IPv4 masquerade subnet and its addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct V4Masquerade {
    subnet: Ipv4Net,
    ovn: Ipv4Addr,
    host: Ipv4Addr,
    local_service: Ipv4Addr,
    next_hop: Ipv4Addr,
}

impl V4Masquerade {
    fn of(config: &Config) -> anyhow::Result<Self> {
        let subnet =
            config.masquerade_subnet.iter().find_map(v4).context(
                "--masquerade-subnet names no IPv4 subnet; one is needed, such as 169.254.169.0/29",
            )?;
        let addresses = Masquerade::of(&IpNet::V4(subnet))
            .with_context(|| format!("--masquerade-subnet {subnet} is too small; /29 or larger is needed"))?;
        let pick = |ip| match ip {
            IpAddr::V4(ip) => Ok(ip),
            IpAddr::V6(ip) => Err(anyhow::anyhow!("masquerade address {ip} is not IPv4")),
        };
        Ok(Self {
            subnet,
            ovn: pick(addresses.ovn)?,
            host: pick(addresses.host)?,
            local_service: pick(addresses.local_service)?,
            next_hop: pick(addresses.next_hop)?,
        })
    }
}

/// Puts the bridge in the uplink's place and tells ovn-controller who this node is.
pub async fn setup(context: Context) -> anyhow::Result<Gateway> {
    let config = Arc::clone(&context.config);
    let masquerade = V4Masquerade::of(&config)?;
    let taken = takeover(&context, &masquerade).take(&config.gateway_interface).await?;
    let addresses: Vec<Ipv4Net> =
        taken.journal.found.addresses.iter().filter_map(|a| v4(&a.address)).collect();
    let next_hops = next_hops(&context, &taken).await?;
    let reaches = |net: &&Ipv4Net| next_hops.iter().any(|hop| IpNet::V4(**net).contains(hop));
    let address = addresses.iter().find(reaches).or(addresses.first()).copied().with_context(|| {
        format!("gateway interface {}: it has no IPv4 address, which is needed for now", taken.uplink)
    })?;
    let encap_ip = match config.encap_ip {
        EncapIp::Auto => IpAddr::V4(address.addr()),
        EncapIp::Fixed(ip) => ip,
    };
    let chassis_config = ChassisConfig {
        node: config.node_name.clone(),
        southbound: config.sb.clone(),
        encap_ip: encap_ip.to_string(),
        bridge: taken.bridge.clone(),
    };
    let chassis = chassis::ensure(&context.ovs, &chassis_config).await?;
    let gateway = Gateway {
        taken,
        address,
        next_hops,
        encap_ip,
        chassis,
        masquerade,
        service_cidrs: config.service_cidrs.iter().filter_map(v4).collect(),
        cluster_subnets: config.cluster_subnets.iter().filter_map(|s| v4(&s.net)).collect(),
        context,
    };
    host::ensure(&gateway.context.netlink, &gateway.host_config()).await?;
    Ok(gateway)
}

/// Takes away everything [`setup`] and [`run`] made, and puts the uplink back as it was found. All of it is tried; the error
/// tells everything that failed.
pub async fn cleanup(context: Context) -> anyhow::Result<()> {
    let masquerade = V4Masquerade::of(&context.config)?;
    let takeover = takeover(&context, &masquerade);
    let mut failures = Vec::new();
    let mut note = |what: &str, result: anyhow::Result<()>| {
        if let Err(error) = result {
            failures.push(format!("{what}: {error:#}"));
        }
    };
    note("management port", ManagementPort::remove(&context.ovs, &context.netlink).await);
    match takeover.store.load() {
        Ok(Some(journal)) => {
            let config = host_config(&context.config, &masquerade, &journal.bridge, Ipv4Addr::UNSPECIFIED);
            note("routes of the bridge", host::remove(&context.netlink, &config).await);
            if journal.adopted {
                let mut writer =
                    FlowWriter::new(&context.config.ofctl, &context.config.ovs_db, &journal.bridge);
                let only_switching = flows::switching();
                note("flows of the bridge", writer.write(&only_switching).await.map(drop));
            }
        }
        Ok(None) => {}
        Err(error) => note("journal", Err(error)),
    }
    note("uplink", takeover.release().await);
    let tables = nft::removal() + &host_ports::nft::removal();
    note("nftables", nft::apply::apply(&tables).await);
    anyhow::ensure!(failures.is_empty(), "the gateway could not be cleaned up: {}", failures.join("; "));
    Ok(())
}

impl Gateway {
    /// The gateway bridge.
    pub fn bridge(&self) -> &str {
        &self.taken.bridge
    }

    /// The physical interface.
    pub fn uplink(&self) -> &str {
        &self.taken.uplink
    }

    fn host_config(&self) -> HostConfig {
        host_config(&self.context.config, &self.masquerade, &self.taken.bridge, self.address.addr())
    }

    fn takeover(&self) -> Takeover {
        takeover(&self.context, &self.masquerade)
    }

    fn management_port(&self, subnet: Ipv4Net) -> ManagementPort {
        ManagementPort {
            node: self.context.config.node_name.clone(),
            subnet,
            cluster_subnets: self.cluster_subnets.clone(),
            service_cidrs: self.service_cidrs.clone(),
            local_service: self.masquerade.local_service,
            mtu: self.context.config.mtu,
        }
    }
}

fn takeover(context: &Context, masquerade: &V4Masquerade) -> Takeover {
    Takeover {
        netlink: context.netlink.clone(),
        ovs: context.ovs.clone(),
        programs: context.programs.clone(),
        store: journal::Store::new(&context.config.state_dir),
        interposed: context.interposed,
        masquerade: IpNet::V4(masquerade.subnet),
    }
}

fn host_config(config: &Config, masquerade: &V4Masquerade, bridge: &str, node: Ipv4Addr) -> HostConfig {
    HostConfig {
        bridge: bridge.to_owned(),
        node,
        masquerade: masquerade.subnet,
        ovn: masquerade.ovn,
        host: masquerade.host,
        next_hop: masquerade.next_hop,
        service_cidrs: config.service_cidrs.iter().filter_map(v4).collect(),
        mtu: config.mtu,
    }
}

/// Gateways of the physical network: those the operator names, or those of the default routes through the bridge.
async fn next_hops(context: &Context, taken: &Taken) -> anyhow::Result<Vec<IpAddr>> {
    if !context.config.gateway_next_hop.is_empty() {
        return Ok(context.config.gateway_next_hop.clone());
    }
    let link = context.netlink.get(&taken.bridge).await?;
    let mut routes = context.netlink.routes(false, MAIN_TABLE).await?;
    routes.retain(|r| r.interface == link.index && r.dest.prefix_len() == 0);
    routes.sort_by_key(|r| r.priority.unwrap_or(0));
    let first = routes.iter().find_map(|r| r.gateway);
    let hop = first.with_context(|| {
        format!(
            "gateway interface {}: it has no default route through a next hop; add one, or name the gateway of the physical \
             network with --gateway-next-hop",
            taken.uplink
        )
    })?;
    Ok(vec![hop])
}

fn v4(net: &IpNet) -> Option<Ipv4Net> {
    match net {
        IpNet::V4(net) => Some(*net),
        IpNet::V6(_) => None,
    }
}
