//! Gateway of the node: bridge with the uplink as port, its flows, routes and address translation of the host, and node annotations.
//!
//! [`setup`] migrates the uplink's addresses to the bridge and configures ovn-controller; [`run`] reconciles with nodes, services and
//! OVS until it is dropped; [`cleanup`] reverts everything. Traffic does not depend on the running agent.

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::Context as _;
use api::addr::{self, Family, Masquerade};
use ipnet::IpNet;
use tokio::sync::watch::Receiver;
use tracing::warn;

mod api_server;
pub mod bridge;
pub mod flow_writer;
pub mod flows;
pub mod health_check_node_port;
pub mod host;
pub mod host_ports;
mod host_udp;
pub mod management_port;
pub mod nft;
pub mod nics;
pub mod reach;
mod reconcile;
pub mod rulesets;
mod second_uplink;
pub mod services;
mod stale_udp;
mod strays;
pub(crate) mod task;
pub mod tunnels;
pub mod uplink;
pub mod watch;

pub use reconcile::{Status, run};

use crate::bpf::Programs;
use crate::config::Config;
use crate::flow_cache::Manager;
use crate::kernel::link::Netlink;
use crate::kube::host_ports::HostPorts;
use crate::kube::service_names::ServiceNames;
use crate::metrics::Metrics;
use crate::ovs::Ovs;
use crate::ovs::chassis::{self, ChassisConfig};
use flow_writer::FlowWriter;
use host::HostConfig;
use management_port::ManagementPort;
use parking_lot::Mutex;
use reach::Reach;
use uplink::migration::{Migration, Taken};

/// Handles and settings of the gateway.
#[derive(Clone)]
pub struct Context {
    /// The agent's configuration.
    pub config: Arc<Config>,
    /// Kernel side.
    pub netlink: Netlink,
    /// OVS side.
    pub ovs: Ovs,
    /// eBPF side; `None` on the plain OVS path.
    pub programs: Option<Arc<Mutex<Programs>>>,
    /// Interposed mode: the OVS port is the far end of the uplink's shim.
    pub interposed: bool,
    /// Serving pod of each host port; `None` until this node's pods have been listed.
    pub host_ports: Receiver<Option<HostPorts>>,
    /// Counters.
    pub metrics: Metrics,
    /// The node's flow cache.
    pub flow_cache: Manager,
    /// Names of services by address, for display.
    pub service_names: ServiceNames,
    /// `netdev` (userspace) or `system` (kernel), as OVS names its datapath types.
    pub datapath_type: &'static str,
}

/// A gateway whose bridge is in place.
#[derive(Clone)]
pub struct Gateway {
    context: Context,
    taken: Taken,
    /// The second uplink, if it is there already.
    second: Option<Taken>,
    /// A second uplink of before that could not be given back.
    second_left: Option<String>,
    /// How the node reaches the outside.
    pub reach: Reach,
    /// Next hops of the bridge's default routes when the gateway was set up.
    hops: Vec<IpAddr>,
    /// OVN chassis name.
    pub chassis: String,
    chassis_config: ChassisConfig,
    /// Masquerade range of each address family of pods.
    masquerade: Vec<MasqueradeRange>,
}

/// The gateway of one address family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FamilyGateway {
    /// The node's address on the bridge, shared with the gateway router.
    pub address: IpNet,
    masquerade: MasqueradeRange,
    /// Service ranges of the family.
    service_cidrs: Vec<IpNet>,
}

/// A masquerade subnet and its addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MasqueradeRange {
    subnet: IpNet,
    addresses: Masquerade,
}

/// Address families of pods, IPv4 first.
fn families(config: &Config) -> Vec<Family> {
    let mut found: Vec<Family> =
        config.network.cluster_subnets.iter().map(|s| Family::of_net(&s.cidr)).collect();
    found.sort();
    found.dedup();
    found
}

/// Masquerade ranges of the address families of pods, IPv4 first.
fn masquerade_ranges(config: &Config) -> anyhow::Result<Vec<MasqueradeRange>> {
    let families = families(config);
    let given = addr::with_defaults(
        &config.network.masquerade_subnet,
        families.iter().copied(),
        &addr::DEFAULT_MASQUERADE,
    );
    let range = |family: &Family| {
        let subnet = *given.iter().find(|net| Family::of_net(net) == *family)?;
        Some((subnet, Masquerade::of(&subnet)))
    };
    let checked = families.iter().filter_map(range).map(|(subnet, addresses)| {
        let addresses = addresses.with_context(|| {
            format!(
                "--masquerade-subnet {subnet} is too small; must have at least 5 addresses, such as a /29"
            )
        })?;
        Ok(MasqueradeRange { subnet, addresses })
    });
    checked.collect()
}

/// Migrates the uplink to the gateway bridge and configures ovn-controller.
///
/// # Errors
/// The node has no usable addresses or routes, a step of the migration failed, or OVS is not available.
pub async fn setup(context: Context) -> anyhow::Result<Gateway> {
    let config = Arc::clone(&context.config);
    let masquerade = masquerade_ranges(&config)?;
    let migration = migration(&context, &masquerade);
    // Before the first one, which may be an interface that was the second one until now.
    let second_left = second_uplink::release_unwanted(&migration, &context).await.err();
    let second_left =
        second_left.map(|error| format!("second uplink of before is not given back: {error:#}"));
    let taken = migration.take(&config.gateway_interface).await?;
    let second = second_uplink::resume(&migration, &context, &taken, &families(&config)).await;
    let seen = migration.observe(&taken.journal).await?;
    let seen = seen.with_context(|| format!("bridge {} no longer exists", taken.bridge))?;
    let addresses = taken.addresses();
    let (found, warnings) = reach::reach(&config, &masquerade, &addresses, &seen.hops, None);
    for warning in warnings {
        warn!(interface = taken.uplink, "{warning}");
    }
    let Some(reach) = found else {
        let names: Vec<&str> = families(&config).into_iter().map(Family::name).collect();
        anyhow::bail!(
            "gateway interface {}: no {} address, but --cluster-subnets has CIDRs of that family",
            taken.uplink,
            names.join(" or ")
        );
    };
    // Without any next hop, pods reach only directly connected networks.
    anyhow::ensure!(
        !reach.next_hops.is_empty(),
        "gateway interface {}: it has no default route through a next hop; add one, or name the gateway of the physical \
         network with --gateway-next-hop",
        taken.uplink
    );
    let userspace = context.ovs.datapath_type() == "netdev";
    let on = uplink::find::with_address(&context.netlink, reach.encap_ip).await?.map(|link| link.name);
    if let Some(reason) =
        uplink::find::unfit_tunnel_end(config.encap_ip, on.as_deref(), &taken.bridge, userspace)
    {
        anyhow::bail!(reason);
    }
    let chassis_config = ChassisConfig {
        node: config.node_name.clone(),
        southbound: config.sb.clone(),
        encap_ip: reach.encap_ip.to_string(),
        bridge: taken.bridge.clone(),
        second_bridge: second.as_ref().map(|second| second.bridge.clone()),
    };
    let chassis = chassis::ensure(&context.ovs, &chassis_config, None).await?;
    let gateway = Gateway {
        taken,
        second,
        second_left,
        reach,
        hops: seen.hops,
        chassis,
        chassis_config,
        masquerade,
        context,
    };
    gateway.ensure_host().await?;
    Ok(gateway)
}

/// Reverts [`setup`] and [`run`], and restores the uplink.
///
/// # Errors
/// All failed steps; a failed step does not stop the others.
pub async fn cleanup(context: Context) -> anyhow::Result<()> {
    let masquerade = masquerade_ranges(&context.config)?;
    let migration = migration(&context, &masquerade);
    let mut failures = Vec::new();
    let mut note = |what: &str, result: anyhow::Result<()>| {
        if let Err(error) = result {
            failures.push(format!("{what}: {error:#}"));
        }
    };
    note("management port", ManagementPort::remove(&context.ovs, &context.netlink).await);
    match migration.store.load() {
        Ok(Some(journal)) => {
            for range in &masquerade {
                let config = host_config(&context.config, range, &journal.bridge, None);
                note("routes of the bridge", host::remove(&context.netlink, &config).await);
            }
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
    note("second uplink", second_uplink::release(&migration, &context).await);
    note("uplink", migration.release().await);
    let tables = nft::removal() + &host_ports::nft::removal();
    note("nftables", crate::kernel::nft::apply(&tables).await.map(drop));
    anyhow::ensure!(failures.is_empty(), "cleanup of the gateway failed: {}", failures.join("; "));
    Ok(())
}

impl Gateway {
    /// The gateway bridge.
    pub fn bridge(&self) -> &str {
        &self.taken.bridge
    }

    /// Whether another program created the bridge (adopted).
    pub fn is_adopted(&self) -> bool {
        self.taken.journal.adopted
    }

    /// The physical interface.
    pub fn uplink(&self) -> &str {
        &self.taken.uplink
    }

    /// Brings the bridge's own addresses, routes and neighbours in line.
    async fn ensure_host(&self) -> anyhow::Result<()> {
        for family in &self.reach.families {
            let node = Some(family.address.addr());
            let config = host_config(&self.context.config, &family.masquerade, &self.taken.bridge, node);
            host::ensure(&self.context.netlink, &config).await?;
        }
        Ok(())
    }

    fn migration(&self) -> Migration {
        migration(&self.context, &self.masquerade)
    }

    fn management_port(&self, subnets: Vec<IpNet>) -> ManagementPort {
        let config = &self.context.config;
        let has_gateway = |net: &IpNet| {
            self.reach.families.iter().any(|family| Family::of_net(&family.address) == Family::of_net(net))
        };
        ManagementPort {
            services_without_gateway: config
                .served_ranges()
                .iter()
                .filter(|net| !has_gateway(net))
                .copied()
                .collect(),
            node: config.node_name.clone(),
            subnets,
            cluster_subnets: config.network.cluster_subnets.iter().map(|s| s.cidr).collect(),
            service_cidrs: config.served_ranges().to_vec(),
            local_services: self.masquerade.iter().map(|range| range.addresses.local_service).collect(),
            mtu: config.network.mtu.into(),
        }
    }
}

fn migration(context: &Context, masquerade: &[MasqueradeRange]) -> Migration {
    Migration {
        netlink: context.netlink.clone(),
        ovs: context.ovs.clone(),
        programs: context.programs.clone(),
        store: uplink::journal::Store::new(&context.config.state_dir),
        interposed: context.interposed,
        leases: context.config.gateway_leases,
        masquerade: masquerade.iter().map(|range| range.subnet).collect(),
    }
}

/// Settings of the host for one family. Their removal does not need `node`.
fn host_config(config: &Config, range: &MasqueradeRange, bridge: &str, node: Option<IpAddr>) -> HostConfig {
    let Masquerade { ovn, host, next_hop, .. } = range.addresses;
    let of_family = |net: &&IpNet| Family::of_net(net) == Family::of_net(&range.subnet);
    HostConfig {
        bridge: bridge.to_owned(),
        node: node.unwrap_or(host),
        masquerade: range.subnet,
        ovn,
        host,
        next_hop,
        service_cidrs: config.served_ranges().iter().filter(of_family).copied().collect(),
        mtu: config.network.mtu.into(),
    }
}
