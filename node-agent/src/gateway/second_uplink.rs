//! The node's second uplink, towards external gateways of pods (`exgw` of ovn-kubernetes): a bridge that takes its place, as the gateway
//! bridge takes the uplink's, with flows of its own. Which pods leave by it is decided in OVN, by routes of the gateway router.

use std::net::IpAddr;

use anyhow::Context as _;
use api::addr::Family;
use api::ovn_name;
use ipnet::IpNet;
use tokio::time::Instant;
use tracing::{info, warn};

use super::bridge::port_number;
use super::flow_writer::FlowWriter;
use super::flows::{self, FamilyInputs, second::Second};
use super::uplink::follow::Follower;
use super::uplink::journal::Store;
use super::uplink::migration::{Migration, Taken};
use super::uplink::role::Role;
use super::uplink::trial::Trial;
use super::{Context, FamilyGateway};
use crate::attach;
use crate::kube::node_annotations::SecondUplinkFacts;
use crate::metrics::Metrics;

/// A second uplink whose bridge is in place.
pub(super) struct SecondUplink {
    migration: Migration,
    pub(super) taken: Taken,
    pub(super) follower: Follower,
    flows: FlowWriter,
    /// OVN's patch port on the bridge.
    pub(super) patch: String,
    /// MTU of pods in bytes.
    pod_mtu: u32,
}

/// The migration of the second uplink: the gateway's, with another journal.
fn migration(gateway: &Migration, context: &Context) -> Migration {
    let store = Store::of(&context.config.state_dir, Role::Second);
    Migration { store, ..gateway.clone() }
}

/// Gives back a second uplink, if there is one.
///
/// # Errors
/// All failed steps; a failed step does not stop the others, and the journal is kept.
pub(super) async fn release(gateway: &Migration, context: &Context) -> anyhow::Result<()> {
    let migration = migration(gateway, context);
    if let Some(journal) = migration.store.load()?.filter(|journal| journal.adopted) {
        let mut writer = FlowWriter::new(&context.config.ofctl, &context.config.ovs_db, &journal.bridge);
        writer.write(&flows::switching()).await.context("flows of the bridge")?;
    }
    migration.release().await
}

/// Gives back a second uplink that no flag names any more.
///
/// # Errors
/// As [`release`].
pub(super) async fn release_unwanted(gateway: &Migration, context: &Context) -> anyhow::Result<()> {
    let wanted = context.config.exgw_interface.as_deref();
    let before = migration(gateway, context).store.load()?;
    if before.is_some_and(|old| wanted.is_none_or(|name| name != old.uplink && name != old.bridge)) {
        Trial::end(&context.config.state_dir, Role::Second)?;
        release(gateway, context).await?;
    }
    Ok(())
}

/// Goes on with the second uplink of an agent before this one; `None`: there was none, or it is no longer there.
pub(super) async fn resume(
    gateway: &Migration,
    context: &Context,
    first: &Taken,
    families: &[Family],
) -> Option<Taken> {
    context.config.exgw_interface.as_ref()?;
    if Trial::would_begin(&context.config.state_dir, Role::Second).unwrap_or(true) {
        return None;
    }
    let taken = match check(gateway, context, first, families).await {
        Ok(()) => take(gateway, context).await,
        Err(error) => Err(error),
    };
    taken.inspect_err(|error| warn!(error = format!("{error:#}"), "second uplink is no longer there")).ok()
}

/// Whether the flag names an interface that can be the second uplink.
///
/// # Errors
/// It does not, or the kernel cannot be asked.
pub(super) async fn check(
    gateway: &Migration,
    context: &Context,
    first: &Taken,
    families: &[Family],
) -> anyhow::Result<()> {
    let migration = migration(gateway, context);
    let name = context.config.exgw_interface.as_deref().context("no second uplink is named")?;
    let (uplink, bridge) = migration.names(name)?;
    if let Some(taken) = in_use(&uplink, &bridge, first) {
        anyhow::bail!(
            "{} {name}: it needs {taken}, which is the gateway's; name another interface, or leave the flag out",
            Role::Second.flag()
        );
    }
    let mut addresses = Vec::new();
    for interface in [&uplink, &bridge] {
        if let Some(link) = migration.netlink.find(interface).await? {
            addresses.extend(migration.look_at(&link).await?.0.iter().map(|saved| saved.address));
        }
    }
    let names: Vec<&str> = families.iter().map(|family| family.name()).collect();
    anyhow::ensure!(
        !one_of_each(&addresses, families).is_empty(),
        "{} {name}: no such interface with an address of {}, the families of --cluster-subnets; set one, or name another with {}",
        Role::Second.interface(),
        names.join(" or "),
        Role::Second.flag()
    );
    Ok(())
}

/// Makes the bridge of a second uplink that [`check`] finds fit.
///
/// # Errors
/// A step of the migration failed; then it is undone.
pub(super) async fn take(gateway: &Migration, context: &Context) -> anyhow::Result<Taken> {
    let name = context.config.exgw_interface.as_deref().context("no second uplink is named")?;
    migration(gateway, context).take(name).await
}

/// The name that a second uplink would have in common with the gateway: names of interfaces are cut to 15 characters.
fn in_use(uplink: &str, bridge: &str, first: &Taken) -> Option<String> {
    let shim = |uplink: &str| [attach::shim_agent_end(uplink), attach::shim_ovs_end(uplink)];
    let of = |uplink: &str, bridge: &str| [[uplink.to_owned(), bridge.to_owned()], shim(uplink)].concat();
    let of_first = of(&first.uplink, &first.bridge);
    of(uplink, bridge).into_iter().find(|name| of_first.contains(name))
}

/// The first address of each family.
fn one_of_each(addresses: &[IpNet], families: &[Family]) -> Vec<IpNet> {
    let of = |family: &Family| addresses.iter().copied().find(|net| Family::of_net(net) == *family);
    families.iter().filter_map(of).collect()
}

impl SecondUplink {
    /// Tracks a bridge that [`take`] has made.
    pub(super) fn new(gateway: &Migration, context: &Context, taken: Taken) -> Self {
        let config = &context.config;
        Self {
            migration: migration(gateway, context),
            follower: Follower::new(Vec::new()),
            flows: FlowWriter::new(&config.ofctl, &config.ovs_db, &taken.bridge),
            patch: ovn_name::patch_port(&taken.bridge, &config.node_name),
            pod_mtu: config.network.mtu.into(),
            taken,
        }
    }

    /// Whether an interface of this name matters to it.
    pub(super) fn has(&self, name: &str) -> bool {
        [&self.taken.bridge, &self.taken.uplink, &self.taken.port, &self.patch]
            .into_iter()
            .any(|own| own == name)
    }

    /// Call after a restart of OVS: its flows are lost.
    pub(super) fn lost_flows(&mut self) {
        self.flows.forget();
    }

    /// Records or restores the bridge's addresses and routes. Returns when to look again, if it must be looked again.
    pub(super) async fn follow(&mut self, metrics: &Metrics) -> anyhow::Result<Option<Instant>> {
        self.migration.keep_in_line(&mut self.taken, &mut self.follower, metrics).await
    }

    /// What the cluster is told of it.
    pub(super) fn facts(&self, gateway: &[FamilyGateway]) -> SecondUplinkFacts {
        SecondUplinkFacts {
            bridge: self.taken.bridge.clone(),
            mac: self.taken.journal.found.mac,
            addresses: self.addresses(gateway),
        }
    }

    /// Addresses of the bridge that are of the gateway's families, one of each.
    fn addresses(&self, gateway: &[FamilyGateway]) -> Vec<IpNet> {
        let families: Vec<Family> = gateway.iter().map(|family| Family::of_net(&family.address)).collect();
        one_of_each(&self.taken.addresses(), &families)
    }

    /// Makes the bridge's flows what they have to be. `first`: what the gateway bridge's flows are computed from.
    pub(super) async fn write_flows(
        &mut self,
        context: &Context,
        first: &flows::Inputs,
    ) -> anyhow::Result<()> {
        let port = &self.taken.port;
        let uplink = port_number(&context.ovs, port)
            .with_context(|| format!("OVS has not assigned a port number to {port} yet"))?;
        let node: Vec<IpAddr> = first.families.iter().map(|family| family.node.addr()).collect();
        let family = |family: &FamilyInputs| {
            let own = |net: &IpNet| Family::of_net(net) == Family::of_net(&family.node);
            let own = self.taken.addresses().into_iter().find(own)?;
            Some(FamilyInputs { node: own, ..family.clone() })
        };
        let inputs = flows::Inputs {
            uplink,
            patch: port_number(&context.ovs, &self.patch),
            mac: self.taken.journal.found.mac,
            families: first.families.iter().filter_map(family).collect(),
            ..first.clone()
        };
        let set = flows::second::compute(&Second { inputs, node });
        if self.flows.write(&set).await? {
            info!(
                bridge = self.taken.bridge,
                flows = set.len(),
                "flows of the second uplink's bridge written"
            );
        }
        Ok(())
    }

    /// Keeps the node connected by it while it is not known which flows it has to have.
    pub(super) async fn ensure_connected(&mut self) -> anyhow::Result<()> {
        self.flows.ensure_connected().await
    }

    /// A warning, if what pods send may be too long for it.
    pub(super) fn too_small(&self) -> Option<String> {
        let Taken { uplink, journal, .. } = &self.taken;
        (journal.found.mtu < self.pod_mtu).then(|| {
            format!(
                "{} {uplink}: its MTU is {}, less than that of pods, {} (--mtu); longer packets of pods to external gateways are lost",
                Role::Second.interface(),
                journal.found.mtu,
                self.pod_mtu
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::uplink::journal::{Found, Journal};
    use crate::gateway::uplink::migration::bridge_name;

    #[test]
    fn interfaces_whose_names_are_cut_to_the_same_are_not_both_uplinks() {
        let first = |uplink: &str| {
            let bridge = bridge_name(uplink);
            let journal = Journal::new(uplink, &bridge, false, Found::for_test()).unwrap();
            Taken { port: uplink.to_owned(), uplink: uplink.to_owned(), bridge, journal }
        };
        let in_use = |name: &str, of: &str| in_use(name, &bridge_name(name), &first(of));
        assert_eq!(in_use("eth1", "eth0"), None);
        assert_eq!(in_use("eth0", "eth0").as_deref(), Some("eth0"));
        assert_eq!(in_use("enp129s0f0.101", "enp129s0f0.100").as_deref(), Some("brenp129s0f0.10"));
        assert_eq!(in_use("enp129s0f0np1", "enp129s0f0np0").as_deref(), Some("sa-enp129s0f0np"));
    }

    #[test]
    fn one_address_of_each_family_of_the_cluster_is_told() {
        let nets = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpNet>>();
        let all = nets(&["172.19.0.2/16", "172.19.0.3/16", "fd00:19::2/64"]);
        assert_eq!(one_of_each(&all, &[Family::V4]), nets(&["172.19.0.2/16"]));
        assert_eq!(one_of_each(&all, &[Family::V4, Family::V6]), nets(&["172.19.0.2/16", "fd00:19::2/64"]));
        assert_eq!(one_of_each(&all[..2], &[Family::V6]), nets(&[]));
    }
}
