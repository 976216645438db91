//! Reconciliation of the gateway: merges events of cluster, OVS and kernel, and updates everything that depends on them. A failed
//! step does not stop the others, and is retried.

mod bridge;
mod flows;
mod kernel;
mod local;
mod second;

use super::uplink::follow::Follower;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use anyhow::Context as _;
use api::addr::{Family, Masquerade};
use api::{annotation, ovn_name};
use futures::StreamExt;
use ipnet::IpNet;
use kube::Client;
use ovsdb_client::vswitch::{Interface, OpenVSwitch};
use ovsdb_client::{Change, Row, RowChange};
use rtnetlink::{MulticastGroup, new_multicast_connection};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::host_ports;
use super::host_udp::{self, HostUdp};
use super::nft;
use super::nft::udp::{Place, UdpTranslations};
use super::rulesets::Rulesets;
use super::second_uplink::SecondUplink;
use super::stale_udp::{Here, Own, StaleUdp};
use super::watch::{ClusterView, Watches};
use super::{FamilyGateway, Gateway, host, rulesets, tunnels};
use crate::gateway::flow_writer::FlowWriter;
use crate::gateway::health_check_node_port::HealthServers;
use crate::gateway::management_port::ManagementPort;
use crate::kube::announce::{Announcement, Outlet};
use crate::kube::cluster_network::{self, Difference};
use crate::kube::host_ports::HostPorts;
use crate::kube::node_annotations::{self, NodeFacts};
use crate::ovs::{chassis, mappings};
use second::Missing;

/// Debounce time for events.
const GATHER: Duration = Duration::from_millis(10);
/// First and longest retry delay.
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(15));

/// Minimum interval between two restorations of ovn-controller's settings.
const CHASSIS_PAUSE: Duration = Duration::from_secs(1);

/// State of the gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The flows of the bridge are written, with OVN's patch port.
    pub flows: bool,
    /// The management port is set up, with the node's subnet.
    pub management_port: bool,
    /// Failures of the last attempt.
    pub failures: Vec<String>,
    /// Warnings: missing capabilities.
    pub warnings: Vec<String>,
    /// Addresses of the other nodes with their names.
    pub peers: BTreeMap<IpAddr, String>,
    /// Cluster network flags that differ from those of the controller, or why they are unknown.
    pub network: Result<Vec<Difference>, String>,
}

impl Default for Status {
    fn default() -> Self {
        Self {
            flows: false,
            management_port: false,
            failures: Vec::new(),
            warnings: Vec::new(),
            peers: BTreeMap::new(),
            network: Ok(Vec::new()),
        }
    }
}

/// Reconciles the gateway with nodes, services, OVS and the kernel.
///
/// # Errors
/// A watch on this machine cannot be started or has broken; never returns otherwise.
pub async fn run(
    gateway: Gateway,
    client: Client,
    outlet: Outlet<Announcement>,
    status: watch::Sender<Status>,
) -> anyhow::Result<()> {
    let (connection, _handle, mut kernel) = new_multicast_connection(&[
        MulticastGroup::Link,
        MulticastGroup::Ipv4Ifaddr,
        MulticastGroup::Ipv6Ifaddr,
        MulticastGroup::Ipv4Route,
        MulticastGroup::Ipv6Route,
        MulticastGroup::Ipv4Rule,
        MulticastGroup::Ipv6Rule,
    ])
    .context("watch links, addresses, routes and rules")?;
    tokio::spawn(connection);
    let mut changes = gateway.context.ovs.replica().changes();
    let config = &gateway.context.config;
    let metrics = gateway.context.metrics.clone();
    let mut watches = Watches::new(&client, &config.node_name, config.network.default_network, metrics);
    let mut host_ports = gateway.context.host_ports.clone();
    let (counter, mut sessions) = watch::channel(0);
    let socket = crate::ovs::openflow::management_socket(&config.ovs_db, gateway.bridge());
    let keep_session = async {
        match socket {
            Some(socket) => crate::ovs::openflow::watch_sessions(socket, counter).await,
            // The database is not on a Unix socket of this node, so the bridge's OpenFlow socket is not known.
            None => std::future::pending().await,
        }
    };
    tokio::pin!(keep_session);
    let mut worker = Worker::new(gateway.clone(), client, outlet);
    let mut keep_warm = tokio::time::interval(tunnels::REFRESH);
    let mut check = tokio::time::interval(rulesets::CHECK);
    let mut due = Some(Instant::now());
    let mut wait = RETRY.0;
    loop {
        let mut dirty = false;
        tokio::select! {
            changed = watches.next(&mut worker.view) => {
                dirty = changed.context("cluster watches ended")?;
                let stale = worker.view.services.take_stale_udp();
                if worker.view.is_complete() {
                    worker.stale_udp.add(stale, Instant::now());
                }
            }
            () = sleep_until(worker.stale_udp.next()) => {
                let families = worker.gateway.reach.families.iter();
                let own = families.map(|f| Own { address: f.address.addr(), masquerade: f.masquerade.addresses.host });
                let (host_ports, local) = (worker.host_ports.as_ref().map(host_ports::udp), worker.is_local());
                let here = Here { own: own.collect(), host_ports, node_serves_outside: local };
                worker.stale_udp.end_due(worker.view.services.udp_in_force(), here, &worker.gateway.context);
            }
            changed = host_ports.changed() => {
                changed.context("watch of this node's pods ended")?;
                worker.host_ports = host_ports.borrow_and_update().clone();
                dirty = true;
            }
            change = changes.next() => match change.context("the Open_vSwitch database session ended")? {
                Change::Rows(rows) => dirty = rows.iter().any(|row| worker.concerns(row)),
                Change::Resync => dirty = true,
            },
            message = kernel.next() => {
                dirty = worker.kernel_event(message.context("the kernel's notifications ended")?.0, &mut kernel);
            }
            changed = sessions.changed() => {
                changed.context("OpenFlow watch ended")?;
                debug!(bridge = worker.gateway.bridge(), "new OpenFlow session; comparing flows");
                worker.lost_flows();
                dirty = true;
            }
            () = &mut keep_session => {}
            _ = keep_warm.tick() => {
                worker.probed.clear();
                dirty = true;
            }
            () = worker.rulesets.lost() => dirty = true,
            // Periodic check for removed tables, rules and routes without a notification.
            _ = check.tick() => {
                worker.rulesets.are_gone();
                dirty = true;
            }
            () = sleep_until(due) => {
                let failures = worker.reconcile().await;
                due = if failures.is_empty() {
                    wait = RETRY.0;
                    worker.look_again.take()
                } else {
                    let again = Instant::now() + wait;
                    wait = (wait * 2).min(RETRY.1);
                    Some(again)
                };
                worker.report(&status, failures);
            }
        }
        if dirty {
            let soon = Instant::now() + GATHER;
            due = Some(due.map_or(soon, |at| at.min(soon)));
        }
    }
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

struct Worker {
    gateway: Gateway,
    outlet: Outlet<Announcement>,
    /// When the chassis settings were last restored.
    chassis_put_back: Option<Instant>,
    view: ClusterView,
    stale_udp: StaleUdp,
    host_udp: HostUdp,
    /// Addresses of this node, as last read.
    own: BTreeSet<IpAddr>,
    flows: FlowWriter,
    rulesets: Rulesets,
    /// Serving pod of each host port; `None` until all pods have been listed.
    host_ports: Option<HostPorts>,
    /// Host ports whose translations have been written.
    host_ports_written: HostPorts,
    health: HealthServers,
    /// Tunnel endpoints whose MAC has been requested.
    probed: BTreeSet<IpAddr>,
    flows_written: bool,
    management: Option<ManagementPort>,
    names: Names,
    follower: Follower,
    second: Option<SecondUplink>,
    /// The second uplink, where it is not there yet.
    missing: Missing,
    /// The cluster's API.
    client: Client,
    /// When to check the bridge again.
    look_again: Option<Instant>,
    /// Indexes of the interfaces whose routes matter.
    interfaces: BTreeSet<u32>,
    warnings: Vec<String>,
    /// Warning about rules of the node that may drop what pods send.
    firewall: Option<String>,
}

/// Interfaces whose changes matter.
struct Names {
    bridge: String,
    uplink: String,
    port: String,
    patch: String,
}

impl Names {
    fn contains(&self, name: &str) -> bool {
        [&self.bridge, &self.uplink, &self.port, &self.patch].into_iter().any(|n| n == name)
            || name == ManagementPort::NAME
    }
}

impl FamilyGateway {
    fn nft(&self) -> nft::FamilyInputs {
        let masquerade_local = self.masquerade.addresses.local_service;
        nft::FamilyInputs { node: self.address.addr(), masquerade_local }
    }

    fn flows(&self) -> super::flows::FamilyInputs {
        let Masquerade { ovn, host, .. } = self.masquerade.addresses;
        super::flows::FamilyInputs {
            node: self.address,
            service_cidrs: self.service_cidrs.clone(),
            masquerade_ovn: ovn,
            masquerade_host: host,
        }
    }
}

impl Worker {
    fn new(gateway: Gateway, client: Client, outlet: Outlet<Announcement>) -> Self {
        let config = &gateway.context.config;
        let names = Names {
            bridge: gateway.taken.bridge.clone(),
            uplink: gateway.taken.uplink.clone(),
            port: gateway.taken.port.clone(),
            patch: ovn_name::patch_port(&gateway.taken.bridge, &config.node_name),
        };
        let host_ports = gateway.context.host_ports.borrow().clone();
        Self {
            host_ports,
            host_ports_written: HostPorts::new(),
            outlet,
            chassis_put_back: None,
            view: ClusterView::new(
                &config.node_name,
                cluster_network::ranges(config),
                gateway.context.service_names.clone(),
            ),
            stale_udp: StaleUdp::default(),
            host_udp: HostUdp::new(gateway.context.metrics.clone()),
            own: BTreeSet::new(),
            flows: FlowWriter::new(&config.ofctl, &config.ovs_db, &gateway.taken.bridge),
            rulesets: Rulesets::new(gateway.context.metrics.clone()),
            health: HealthServers::default(),
            probed: BTreeSet::new(),
            flows_written: false,
            management: None,
            names,
            follower: Follower::new(gateway.hops.clone()),
            second: gateway
                .second
                .clone()
                .map(|taken| SecondUplink::new(&gateway.migration(), &gateway.context, taken)),
            missing: Missing::default(),
            client,
            look_again: None,
            interfaces: BTreeSet::new(),
            warnings: Vec::new(),
            firewall: None,
            gateway,
        }
    }

    /// Call after a restart of OVS: its flows and neighbour cache are lost.
    fn lost_flows(&mut self) {
        self.flows.forget();
        self.second.iter_mut().for_each(SecondUplink::lost_flows);
        self.probed.clear();
    }

    /// Whether flows, tunnels or the management port depend on the row.
    fn concerns(&self, change: &RowChange) -> bool {
        if change.table == Interface::TABLE {
            return [change.old::<Interface>(), change.new_row::<Interface>()]
                .into_iter()
                .flatten()
                .any(|row| row.r#type == "geneve" || self.has(&row.name));
        }
        if change.table != OpenVSwitch::TABLE {
            return false;
        }
        match (change.old::<OpenVSwitch>(), change.new_row::<OpenVSwitch>()) {
            (Some(old), Some(new)) => old.external_ids != new.external_ids || old.bridges != new.bridges,
            _ => true,
        }
    }

    /// Runs all steps and returns their failures.
    async fn reconcile(&mut self) -> Vec<String> {
        let mut failures = Vec::new();
        let mut note = |what: &str, result: anyhow::Result<()>| {
            if let Err(error) = result {
                failures.push(format!("{what}: {error:#}"));
            }
        };
        note("addresses of the bridge", self.bridge().await);
        note("second uplink", self.second_uplink().await);
        note("chassis settings", self.chassis().await);
        note("management port", self.management_port().await);
        if let (true, Some(ports)) = (self.view.is_complete(), self.host_ports.clone()) {
            let nodes = self.node_addresses().await;
            self.view.services.set_node_addresses(nodes);
            let mut services = self.view.services.services();
            if !self.gateway.context.config.node_port {
                services.iter_mut().for_each(super::services::NodeService::without_node_ports);
            }
            // What comes from outside to a service is OVN's. Where the node has its translation and the datapath not yet the bridge's flow,
            // the node would take it, and hide the client; so flows come first, and go last.
            let flows = self.bridge_flows(&services, &ports);
            if let Ok((flows, _)) = &flows {
                note("new flows", self.widen(flows, &services).await);
            }
            note("nftables", self.translations(&services).await);
            note("nftables of OVS's ports", self.isolation().await);
            note("host ports", self.host_ports(&ports).await);
            note("flows", self.write_flows(flows).await);
            note("flows of the second uplink's bridge", self.second_flows().await);
            self.rulesets.written();
            self.firewall = self.firewall();
            self.health.update(&services).await;
        } else {
            note("connection of the node", self.flows.ensure_connected().await);
            note("connection by the second uplink", self.second_connected().await);
        }
        note("addresses of the node", self.announce().await);
        self.warm_tunnels().await;
        failures
    }

    /// Addresses of all nodes. If this node's addresses cannot be read from the kernel, they are left out here; `announce` reads them
    /// again and reports the error.
    async fn node_addresses(&mut self) -> BTreeSet<IpAddr> {
        let gateway = &self.gateway;
        let masquerade: Vec<IpNet> = gateway.masquerade.iter().map(|range| range.subnet).collect();
        let here = node_annotations::host_cidrs(&gateway.context.netlink, &masquerade).await;
        let here = here.unwrap_or_default().into_iter().map(|net| net.addr());
        let own = gateway.reach.families.iter().map(|family| family.address.addr());
        let mut addresses: BTreeSet<IpAddr> = own.chain(here).collect();
        gateway.context.flow_cache.services().set_node_addresses(addresses.clone());
        self.own.clone_from(&addresses);
        addresses.extend(self.view.all_remote_addresses());
        addresses
    }

    /// Restores settings of ovn-controller that another process changed, with a minimum interval.
    async fn chassis(&mut self) -> anyhow::Result<()> {
        let gateway = &self.gateway;
        let context = &gateway.context;
        let changed = chassis::changed_by_others(&context.ovs, &gateway.chassis_config, &gateway.chassis);
        if changed.is_empty() {
            return Ok(());
        }
        let keys = changed.join(", ");
        if let Some(at) = self.chassis_put_back {
            anyhow::ensure!(
                at.elapsed() >= CHASSIS_PAUSE,
                "another process repeatedly changes {keys} in Open_vSwitch, which the agent manages"
            );
        }
        chassis::ensure(&context.ovs, &gateway.chassis_config, Some(&gateway.chassis)).await?;
        self.chassis_put_back = Some(Instant::now());
        for key in &changed {
            context.metrics.chassis_restored(key);
        }
        warn!(
            keys,
            "settings of ovn-controller in Open_vSwitch were changed by another process; restoring them"
        );
        Ok(())
    }

    async fn management_port(&mut self) -> anyhow::Result<()> {
        let Some(text) = self.view.own_annotations().and_then(|a| a.get(annotation::NODE_SUBNETS)) else {
            return Ok(());
        };
        let subnets = annotation::NodeSubnets::default_of(text)?;
        let port = self.gateway.management_port(subnets);
        let context = &self.gateway.context;
        port.ensure(&context.ovs, &context.netlink).await?;
        self.management = Some(port);
        Ok(())
    }

    async fn translations(&mut self, services: &[super::services::NodeService]) -> anyhow::Result<()> {
        let management = match &self.management {
            Some(port) => Some((ManagementPort::NAME.to_owned(), port.addresses()?)),
            None => None,
        };
        let inputs = nft::Inputs {
            families: self.gateway.reach.families.iter().map(FamilyGateway::nft).collect(),
            management,
            remote_nodes: self.view.remote_nodes(),
            nodes: self.view.other_nodes(),
            local: self.local_gateway(),
        };
        if self.rulesets.services.write(nft::services_table(&inputs, services)).await? {
            debug!(services = services.len(), "nftables ruleset applied");
        }
        let families = &self.gateway.reach.families;
        self.host_udp.follow(host_udp::InForce {
            translations: UdpTranslations::of(&inputs, services),
            place: Place {
                own: self.own.clone(),
                host_ports: self.host_ports.as_ref().map(host_ports::udp).unwrap_or_default(),
                service_cidrs: families.iter().flat_map(|family| family.service_cidrs.clone()).collect(),
            },
            families: families.iter().map(|family| Family::of(family.address.addr())).collect(),
        });
        Ok(())
    }

    /// Restores the tables by which the migration keeps the node's stack from handling packets that OVS reads.
    async fn isolation(&mut self) -> anyhow::Result<()> {
        if self.gateway.context.ovs.datapath_type() == "netdev" {
            self.rulesets.ports.write(nft::ports_tables()).await?;
        }
        Ok(())
    }

    /// The node's addresses on the gateway bridge.
    fn own_addresses(&self) -> Vec<IpAddr> {
        self.gateway.reach.families.iter().map(|family| family.address.addr()).collect()
    }

    /// Applies the nftables table of host ports, which serves the node's own connections.
    async fn host_ports(&mut self, ports: &HostPorts) -> anyhow::Result<()> {
        if self.rulesets.host_ports.write(host_ports::nft::table(ports)).await? {
            debug!(ports = ports.len(), "nftables table of host ports applied");
        }
        // At start it is not known what has been written, so every port may be stale.
        for port in host_ports::conntrack::stale(&self.host_ports_written, ports) {
            crate::kernel::conntrack::forget(port).await?;
        }
        self.host_ports_written.clone_from(ports);
        // Only after the table is written, as one of its rules drops packets of others to loopback addresses.
        if self.management.is_some() && host_ports::nft::on_loopback(ports) {
            host::ensure_sysctl("ipv4", ManagementPort::NAME, "route_localnet", "1")?;
        }
        Ok(())
    }

    /// Passes the current facts of the node to the task that writes them to the Node object.
    async fn announce(&self) -> anyhow::Result<()> {
        let Some(current) = self.view.own_annotations() else { return Ok(()) };
        let gateway = &self.gateway;
        let masquerade: Vec<IpNet> = gateway.masquerade.iter().map(|range| range.subnet).collect();
        let host_cidrs = node_annotations::host_cidrs(&gateway.context.netlink, &masquerade).await?;
        let facts = NodeFacts {
            node: gateway.context.config.node_name.clone(),
            chassis: gateway.chassis.clone(),
            encap_ip: gateway.reach.encap_ip,
            bridge: gateway.taken.bridge.clone(),
            mac: gateway.taken.journal.found.mac,
            addresses: gateway.reach.families.iter().map(|family| family.address).collect(),
            next_hops: gateway.reach.next_hops.clone(),
            masquerade,
            host_cidrs,
            gateway_mode: gateway.context.config.gateway_mode,
            node_port: gateway.context.config.node_port,
            userspace_tso: gateway.context.ovs.datapath_type() == "netdev"
                && gateway.context.ovs.userspace_tso(),
            physical_networks: self.physical_networks().names,
            second_uplink: self.second.as_ref().map(|second| second.facts(&gateway.reach.families)),
        };
        self.outlet.put(Announcement { facts, current: current.clone() });
        Ok(())
    }

    fn physical_networks(&self) -> mappings::PhysicalNetworks {
        mappings::physical_networks(&self.gateway.context.ovs, self.gateway.bridge())
    }

    /// Resolves new remotes. Only the userspace datapath needs it, as it resolves tunnel endpoints itself.
    async fn warm_tunnels(&mut self) {
        let context = &self.gateway.context;
        if context.ovs.datapath_type() != "netdev" {
            return;
        }
        let remotes = tunnels::remotes(&context.ovs);
        let new: BTreeSet<IpAddr> = remotes.difference(&self.probed).copied().collect();
        tunnels::probe(&context.netlink, self.gateway.bridge(), &new).await;
        self.probed = remotes;
    }

    fn report(&self, status: &watch::Sender<Status>, failures: Vec<String>) {
        let peers = self.view.other_nodes().into_iter();
        let peers = peers.flat_map(|(name, ips)| ips.into_iter().map(move |ip| (ip, name.clone()))).collect();
        let (flows, management_port) = (self.flows_written, self.management.is_some());
        let own = self.view.own_annotations();
        let told = cluster_network::of(&self.gateway.context.config);
        let network = own.map_or(Ok(Vec::new()), |own| cluster_network::check(own, &told));
        let mut warnings = self.warnings.clone();
        warnings.extend(self.physical_networks().warnings);
        warnings.extend(self.firewall.clone());
        warnings.extend(self.second_warnings());
        let new = Status { flows, management_port, failures, warnings, peers, network };
        status.send_if_modified(|old| {
            if *old == new {
                return false;
            }
            for failure in new.failures.iter().filter(|f| !old.failures.contains(f)) {
                warn!("gateway: {failure}");
            }
            *old = new;
            true
        });
    }
}
