//! Uplink migration: moves the node's addresses and routes from the uplink to the gateway bridge, and back. All steps are idempotent,
//! so that an interrupted migration can be resumed at any step recorded in the journal.
//!
//! Addresses and routes are added on the new interface before they are removed from the old one.

use crate::attach;
use crate::kernel::sysctl;
use parking_lot::Mutex;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use ipnet::IpNet;
use tracing::{info, warn};

use super::journal::{Found, Journal, Phase, Step, Store};
use super::{observed, own};
use crate::bpf::{Mode, Programs};
use crate::config::Leases;
use crate::gateway::bridge::{self, BridgeSpec};
use crate::gateway::nft::{self, OVS_ONLY_GROUP};
use crate::gateway::uplink;
use crate::gateway::uplink::snapshot::{SavedAddress, SavedRoute};
use crate::kernel::link::{Link, Netlink, Veth, ethtool};
use crate::ovs::Ovs;

/// Everything the migration works with.
#[derive(Clone)]
pub struct Migration {
    /// Kernel side.
    pub netlink: Netlink,
    /// OVS side.
    pub ovs: Ovs,
    /// eBPF side; `None` on the plain OVS path.
    pub programs: Option<Arc<Mutex<Programs>>>,
    /// The journal.
    pub store: Store,
    /// Interposed mode: OVS gets the far end of the shim instead of the uplink.
    pub interposed: bool,
    /// Handling of an uplink with a DHCP lease.
    pub leases: Leases,
    /// Masquerade subnets, whose addresses represent node and OVN to each other; they are not the node's own.
    pub masquerade: Vec<IpNet>,
}

/// Bridge and uplink after a migration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// The bridge, with the node's addresses on it.
    pub bridge: String,
    /// The physical interface.
    pub uplink: String,
    /// The interface that is the bridge's port: the uplink or OVS's end of the shim.
    pub port: String,
    /// The journal as written.
    pub journal: Journal,
}

impl Taken {
    /// The node's own addresses.
    pub fn addresses(&self) -> Vec<IpNet> {
        self.journal.found.addresses.iter().map(|a| a.address).collect()
    }
}

/// Called before each step. Tests of the journal stop the migration there.
pub type Hook<'a> = &'a (dyn Fn(Step) -> anyhow::Result<()> + Sync);

/// Name of the gateway bridge for an interface.
pub fn bridge_name(interface: &str) -> String {
    attach::fitting(format!("br{interface}"))
}

impl Migration {
    /// Moves the node's addresses to the bridge, from whatever state an earlier run left. When a step fails, the migration is undone.
    ///
    /// # Errors
    /// A step failed. The error names the step, and what could not be undone.
    pub async fn take(&self, interface: &str) -> anyhow::Result<Taken> {
        self.take_with(interface, &|_| Ok(())).await
    }

    /// Does what [`Migration::take`] does. `hook` is called before each step, and its failure stops everything at once, as a crash would.
    ///
    /// # Errors
    /// As [`Migration::take`], or `hook` failed.
    pub async fn take_with(&self, interface: &str, hook: Hook<'_>) -> anyhow::Result<Taken> {
        let mut journal = self.begin(interface).await?;
        if let Err(Stopped { step, error, crashed }) = self.steps(&mut journal, hook).await {
            let what = self.store.role().bridge();
            let error = error.context(format!("{what} {}: step {step:?}", journal.bridge));
            if crashed || journal.adopted {
                return Err(error);
            }
            warn!(error = format!("{error:#}"), "uplink migration failed; undoing it");
            return Err(match self.roll_back(&mut journal, &|_| Ok(())).await {
                Ok(()) => error.context("the uplink migration was undone"),
                Err(more) => error.context(format!("{more:#}")),
            });
        }
        journal.phase = Phase::Done;
        journal.bridge_index = Some(self.netlink.get(&journal.bridge).await?.index);
        self.store.save(&journal)?;
        let what = self.store.role().bridge();
        info!(bridge = %journal.bridge, uplink = %journal.uplink, interposed = journal.interposed, "{what} ready");
        Ok(self.taken(journal))
    }

    fn taken(&self, journal: Journal) -> Taken {
        Taken {
            bridge: journal.bridge.clone(),
            uplink: journal.uplink.clone(),
            port: port_name(&journal),
            journal,
        }
    }

    /// Decides how to start: resume an interrupted migration, start a new one, or adopt an existing bridge.
    async fn begin(&self, interface: &str) -> anyhow::Result<Journal> {
        let old = self.store.load()?;
        let (uplink, bridge) = self.names(interface)?;
        let link = self.netlink.get(&uplink).await.with_context(|| {
            format!(
                "{} {interface}: no such interface with the node's address",
                self.store.role().interface()
            )
        })?;
        if let Some(mut journal) = old.clone()
            && journal.uplink == uplink
        {
            let unfinished = journal.phase != Phase::Done;
            let left = self.netlink.saved_addresses(link.index, &uplink).await?;
            let moved_back = !own::own(&left, &journal.found.addresses).is_empty();
            if journal.is_of_this_boot()? && (unfinished || !moved_back) {
                self.refresh(&mut journal).await?;
                journal.phase = Phase::TakingOver;
                journal.interposed = self.interposed;
                return Ok(journal);
            }
        }
        let found = self.look(&link).await?;
        if !found.addresses.is_empty() {
            let role = self.store.role();
            uplink::find::look(&self.netlink, role, &link, &found.addresses, self.leases).await?;
            let mut journal = Journal::new(&uplink, &bridge, self.interposed, found)?;
            // A bridge that the agent created in an earlier boot belongs to the agent, too.
            journal.created_bridge = self.ovs.bridge(&bridge).is_none()
                || old.is_some_and(|old| old.bridge == bridge && old.created_bridge);
            self.store.save(&journal)?;
            return Ok(journal);
        }
        if let Some(on_bridge) = self.netlink.find(&bridge).await?
            && self.ovs.bridge(&bridge).is_some()
        {
            let mut found = self.look(&on_bridge).await?;
            if !found.addresses.is_empty() {
                found.promiscuous = link.promiscuous;
                found.group = link.group;
                info!(bridge, uplink, "bridge exists and has the node's address; adopting it");
                let mut journal = Journal::new(&uplink, &bridge, self.interposed, found)?;
                journal.adopted = true;
                self.store.save(&journal)?;
                return Ok(journal);
            }
        }
        let role = self.store.role();
        bail!(
            "{} {interface}: neither {uplink} nor {bridge} has an address; add the node's address to {uplink}, \
             or name another interface with {}",
            role.interface(),
            role.flag()
        );
    }

    /// Uplink and bridge for the interface the operator named, which may be either.
    pub(in crate::gateway) fn names(&self, interface: &str) -> anyhow::Result<(String, String)> {
        let Some(row) = self.ovs.bridge(interface) else {
            return Ok((interface.to_owned(), bridge_name(interface)));
        };
        let uplink = row.external_ids.get("bridge-uplink").cloned().with_context(|| {
            let what = self.store.role().interface();
            format!("{what} {interface} is an OVS bridge without external_ids:bridge-uplink, which must name its physical interface")
        })?;
        Ok((uplink, interface.to_owned()))
    }

    /// Updates the journal with changes of the bridge made by others, so that undoing the migration keeps them. After the interface
    /// was recreated, the recorded state stays.
    async fn refresh(&self, journal: &mut Journal) -> anyhow::Result<()> {
        if journal.phase != Phase::Done {
            return Ok(());
        }
        if let Some(seen) = self.observe(journal).await?
            && journal.bridge_index.is_none_or(|index| index == seen.index)
            && seen.up
            && !seen.addresses.is_empty()
            && !observed::is_recorded(journal, &seen)
        {
            self.record(journal, seen)?;
        }
        Ok(())
    }

    /// Addresses and routes of an interface, without those that an earlier agent added for OVN.
    pub(in crate::gateway) async fn look_at(
        &self,
        link: &Link,
    ) -> anyhow::Result<(Vec<SavedAddress>, Vec<SavedRoute>)> {
        let mut addresses = self.netlink.saved_addresses(link.index, &link.name).await?;
        let mut routes = self.netlink.saved_routes(link.index, &link.name).await?;
        addresses.retain(|a| !self.masquerade.iter().any(|net| net.contains(&a.address.addr())));
        routes.retain(|r| !self.masquerade.iter().any(|net| r.involves(net)));
        Ok((addresses, routes))
    }

    async fn look(&self, link: &Link) -> anyhow::Result<Found> {
        let (addresses, routes) = self.look_at(link).await?;
        Ok(Found {
            mac: link.mac.with_context(|| format!("interface {} has no Ethernet address", link.name))?,
            mtu: link.mtu,
            promiscuous: link.promiscuous,
            group: link.group,
            addresses: own::own(&addresses, &[]),
            routes,
        })
    }

    async fn steps(&self, journal: &mut Journal, hook: Hook<'_>) -> Result<(), Stopped> {
        for step in Step::ALL {
            let stop = |error, crashed| Stopped { step, error, crashed };
            if !journal.begun.contains(&step) {
                journal.begun.push(step);
                self.store.save(journal).map_err(|e| stop(e, false))?;
            }
            hook(step).map_err(|e| stop(e, true))?;
            self.step(journal, step).await.map_err(|e| stop(e, false))?;
        }
        Ok(())
    }

    async fn step(&self, journal: &Journal, step: Step) -> anyhow::Result<()> {
        let uplink = self.netlink.get(&journal.uplink).await?;
        match step {
            Step::Shim if journal.interposed => self.make_shim(journal).await,
            Step::Shim => Ok(()),
            Step::Bridge => self.make_bridge(journal).await,
            Step::Addresses => {
                let bridge = self.netlink.get(&journal.bridge).await?;
                for address in &journal.found.addresses {
                    self.netlink.put_saved_address(bridge.index, &bridge.name, address).await?;
                }
                Ok(())
            }
            Step::Uplink => {
                let bridge = self.netlink.get(&journal.bridge).await?;
                self.netlink.copy_neighbours(uplink.index, bridge.index).await;
                self.connect(journal, &uplink).await
            }
            Step::Routes => self.move_routes(journal, &journal.uplink, &journal.bridge).await,
            Step::Release => {
                for address in &journal.found.addresses {
                    self.netlink.take_saved_address(uplink.index, &uplink.name, address).await?;
                }
                // The kernel removed routes with this source address together with the address.
                self.move_routes(journal, &journal.uplink, &journal.bridge).await
            }
            Step::Isolate => self.isolate(journal, &uplink).await,
        }
    }

    async fn make_shim(&self, journal: &Journal) -> anyhow::Result<()> {
        let (agent, ovs) = (attach::shim_agent_end(&journal.uplink), attach::shim_ovs_end(&journal.uplink));
        if self.netlink.find(&agent).await?.is_none() {
            let veth = Veth {
                name: &agent,
                mac: None,
                group: 0,
                peer: &ovs,
                peer_mac: None,
                peer_group: 0,
                peer_netns: None,
                mtu: journal.found.mtu,
            };
            self.netlink.create_veth(&veth).await?;
        }
        for name in [&agent, &ovs] {
            sysctl::disable_ipv6(name)?;
            let link = self.netlink.get(name).await?;
            if link.mtu != journal.found.mtu {
                self.netlink.set_mtu(link.index, name, journal.found.mtu).await?;
            }
            self.netlink.set_up(link.index, name).await?;
        }
        // OVS's packet socket sends through it: packets must fit the MTU and have their checksums.
        ethtool::disable_tx_offloads(&agent)?;
        Ok(())
    }

    async fn make_bridge(&self, journal: &Journal) -> anyhow::Result<()> {
        let spec = BridgeSpec {
            name: &journal.bridge,
            uplink: &journal.uplink,
            datapath_type: &self.ovs.datapath_type(),
            mac: journal.found.mac,
        };
        bridge::ensure(&self.ovs, &spec).await?;
        let link = self.netlink.get(&journal.bridge).await?;
        if !link.up {
            self.netlink.set_up(link.index, &link.name).await?;
        }
        Ok(())
    }

    /// Adds the port to the bridge and attaches the programs: from here on the uplink's packets go through the bridge.
    async fn connect(&self, journal: &Journal, uplink: &Link) -> anyhow::Result<()> {
        let wanted = port_name(journal);
        if wanted != journal.uplink {
            bridge::remove_port(&self.ovs, &journal.bridge, &journal.uplink).await?;
        } else {
            bridge::remove_port(&self.ovs, &journal.bridge, &attach::shim_ovs_end(&journal.uplink)).await?;
        }
        bridge::ensure_port(&self.ovs, &journal.bridge, &wanted).await?;
        let link = self.netlink.get(&journal.bridge).await?;
        if link.mtu != journal.found.mtu {
            // OVS sets the MTU of its own interfaces to the smallest of the bridge's ports, shortly after a port was added.
            self.netlink.set_mtu(link.index, &link.name, journal.found.mtu).await?;
        }
        let shim = match journal.interposed {
            true => {
                let agent = self.netlink.get(&attach::shim_agent_end(&journal.uplink)).await?;
                let ovs = self.netlink.get(&attach::shim_ovs_end(&journal.uplink)).await?;
                Some((agent.index, ovs.index))
            }
            false => None,
        };
        if !journal.interposed {
            // An earlier agent may have used interposed mode.
            self.netlink.delete_if_exists(&attach::shim_agent_end(&journal.uplink)).await?;
        }
        if self.programs.is_none() && journal.interposed {
            bail!("interposed mode needs eBPF programs, which are not available on this node")
        }
        self.attach(uplink.index, Mode::of_shim(shim))?;
        if journal.interposed && !uplink.promiscuous {
            // The gateway router and pods of local networks have MACs other than the uplink's.
            self.netlink.set_promiscuous(uplink.index, &uplink.name, true).await?;
        }
        Ok(())
    }

    async fn move_routes(&self, journal: &Journal, from: &str, to: &str) -> anyhow::Result<()> {
        let to = self.netlink.get(to).await?;
        for route in &journal.found.routes {
            // A route recorded from a bridge in use may have a next hop that is unreachable by now.
            if journal.bridge_index.is_some() {
                self.netlink.put_usable_route(to.index, &to.name, route).await?;
            } else {
                self.netlink.put_saved_route(to.index, &to.name, route).await?;
            }
        }
        let Some(from) = self.netlink.find(from).await? else { return Ok(()) };
        for route in journal.found.routes.iter().rev() {
            self.netlink.take_saved_route(from.index, &from.name, route).await?;
        }
        Ok(())
    }

    /// Keeps the node's own stack from handling the uplink's packets a second time. Only the userspace datapath leaves it a copy of
    /// every packet; in interposed mode a program drops that copy.
    async fn isolate(&self, journal: &Journal, uplink: &Link) -> anyhow::Result<()> {
        if self.ovs.datapath_type() != "netdev" {
            return Ok(());
        }
        crate::kernel::nft::apply(&nft::ports_tables()).await?;
        let group = if journal.interposed { journal.found.group } else { OVS_ONLY_GROUP };
        if uplink.group != group {
            self.netlink.set_group(uplink.index, &uplink.name, group).await?;
        }
        Ok(())
    }

    /// Undoes the migration: restores the uplink.
    ///
    /// # Errors
    /// All failed steps; a failed step does not stop the others, and the journal is kept.
    pub async fn release(&self) -> anyhow::Result<()> {
        self.release_with(&|_| Ok(())).await
    }

    /// Does what [`Migration::release`] does. `hook` is called before each step, and its failure stops everything at once.
    ///
    /// # Errors
    /// As [`Migration::release`], or `hook` failed.
    pub async fn release_with(&self, hook: Hook<'_>) -> anyhow::Result<()> {
        let Some(mut journal) = self.store.load()? else { return Ok(()) };
        self.roll_back(&mut journal, hook).await
    }

    async fn roll_back(&self, journal: &mut Journal, hook: Hook<'_>) -> anyhow::Result<()> {
        if self.is_gone(journal).await? {
            return self.forget(journal).await;
        }
        if journal.adopted {
            self.give_back_adopted(journal).await?;
            return self.store.remove();
        }
        if !journal.is_of_this_boot()? {
            // After a reboot, addresses and routes are as configured at boot; only OVS's rows remain.
            journal.found.addresses.clear();
            journal.found.routes.clear();
        }
        self.refresh(journal).await?;
        journal.phase = Phase::RollingBack;
        self.store.save(journal)?;
        let mut failures = Vec::new();
        for step in Step::UNDONE.into_iter().filter(|s| journal.begun.contains(s)) {
            hook(step)?;
            if let Err(error) = self.undo(journal, step).await {
                failures.push(format!("{step:?}: {error:#}"));
            }
        }
        if failures.is_empty() {
            info!(uplink = %journal.uplink, "uplink restored");
            return self.store.remove();
        }
        bail!(
            "the uplink cannot be restored completely (the journal is kept for another attempt): {}",
            failures.join("; ")
        )
    }

    /// An adopted bridge keeps its addresses; only its port becomes the uplink again.
    async fn give_back_adopted(&self, journal: &Journal) -> anyhow::Result<()> {
        let uplink = self.netlink.get(&journal.uplink).await?;
        if journal.interposed {
            self.disconnect(journal, &uplink).await?;
            bridge::ensure_port(&self.ovs, &journal.bridge, &journal.uplink).await?;
            self.netlink.delete_if_exists(&attach::shim_agent_end(&journal.uplink)).await?;
        } else {
            self.detach()?;
        }
        if uplink.group != journal.found.group {
            self.netlink.set_group(uplink.index, &uplink.name, journal.found.group).await?;
        }
        Ok(())
    }

    async fn undo(&self, journal: &Journal, step: Step) -> anyhow::Result<()> {
        let uplink = self.netlink.get(&journal.uplink).await?;
        let bridge = self.netlink.find(&journal.bridge).await?;
        match step {
            Step::Isolate => {
                if uplink.group != journal.found.group {
                    self.netlink.set_group(uplink.index, &uplink.name, journal.found.group).await?;
                }
            }
            Step::Release => {
                for address in &journal.found.addresses {
                    self.netlink.put_saved_address(uplink.index, &uplink.name, address).await?;
                }
                if let Some(bridge) = bridge {
                    self.netlink.copy_neighbours(bridge.index, uplink.index).await;
                }
            }
            Step::Routes => self.move_routes(journal, &journal.bridge, &journal.uplink).await?,
            Step::Uplink => self.disconnect(journal, &uplink).await?,
            Step::Addresses => {
                if let Some(bridge) = bridge {
                    for address in &journal.found.addresses {
                        self.netlink.take_saved_address(bridge.index, &bridge.name, address).await?;
                    }
                }
                // The source address of these routes was on the bridge as well until now.
                self.move_routes(journal, &journal.bridge, &journal.uplink).await?;
            }
            Step::Bridge => {
                if journal.created_bridge {
                    bridge::remove(&self.ovs, &journal.bridge).await?;
                }
            }
            Step::Shim => {
                self.netlink.delete_if_exists(&attach::shim_agent_end(&journal.uplink)).await?;
            }
        }
        Ok(())
    }

    async fn disconnect(&self, journal: &Journal, uplink: &Link) -> anyhow::Result<()> {
        self.detach()?;
        if uplink.promiscuous && !journal.found.promiscuous {
            self.netlink.set_promiscuous(uplink.index, &uplink.name, false).await?;
        }
        bridge::remove_port(&self.ovs, &journal.bridge, &port_name(journal)).await?;
        Ok(())
    }
}

/// The interface that is the bridge's port.
pub(super) fn port_name(journal: &Journal) -> String {
    if journal.interposed { attach::shim_ovs_end(&journal.uplink) } else { journal.uplink.clone() }
}

/// Where and why the migration stopped.
struct Stopped {
    step: Step,
    error: anyhow::Error,
    /// Stopped by the test's hook: nothing is undone.
    crashed: bool,
}
