//! `nics-to-bridge` and `bridges-to-nics`: the uplink's migration as commands of their own, as ovn-kubernetes has them. The agent that
//! starts later finds the migration done, and goes on from there.

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Duration;

use anyhow::Context as _;
use ipnet::IpNet;

use super::uplink::find;
use super::uplink::journal::Store;
use super::uplink::migration::{Migration, bridge_name};
use super::{MasqueradeRange, masquerade_ranges};
use crate::config::Config;
use crate::kernel::link::Netlink;
use crate::ovs::Ovs;

/// Timeout for OVS, and for another agent to exit.
const WAIT: Duration = Duration::from_secs(10);

/// Makes `interface` a port of a new bridge, with its addresses and routes on the bridge. With `dry_run` it only says so.
///
/// # Errors
/// Another agent runs, the interface cannot be the uplink, or a step failed; then what was done is undone.
pub async fn to_bridge(config: Config, interfaces: Vec<String>, dry_run: bool) -> anyhow::Result<()> {
    let interface = one(&interfaces)?;
    if dry_run {
        return say(&plan(&config, interface).await?);
    }
    let _held = crate::lock::hold(&config, false, WAIT).await?;
    let taken = migration(&config).await?.take(interface).await?;
    let addresses: Vec<String> = taken.addresses().iter().map(IpNet::to_string).collect();
    say(&format!("{} is a port of {}, which has {}\n", taken.uplink, taken.bridge, addresses.join(", ")))
}

/// Gives the uplink of `bridges` its addresses and routes back.
///
/// # Errors
/// Another agent runs, the bridge is not one that was made by [`to_bridge`] or the agent, or a step failed.
pub async fn to_nics(config: Config, bridges: Vec<String>) -> anyhow::Result<()> {
    let bridge = one(&bridges)?;
    let _held = crate::lock::hold(&config, false, WAIT).await?;
    let journal = Store::new(&config.state_dir).load()?.with_context(|| {
        format!("bridge {bridge}: no uplink was migrated, by the journal in {}", config.state_dir.display())
    })?;
    anyhow::ensure!(
        journal.bridge == bridge,
        "bridge {bridge}: not the gateway bridge; that is {}, with uplink {}",
        journal.bridge,
        journal.uplink
    );
    migration(&config).await?.release().await?;
    say(&format!("{} has its addresses and routes again\n", journal.uplink))
}

fn one(names: &[String]) -> anyhow::Result<&str> {
    match names {
        [name] => Ok(name),
        _ => anyhow::bail!("exactly one interface can be the uplink of a node"),
    }
}

async fn migration(config: &Config) -> anyhow::Result<Migration> {
    Ok(Migration {
        netlink: Netlink::open()?,
        ovs: Ovs::connect(&config.ovs_db, WAIT).await.context("Open_vSwitch database (--ovs-db)")?,
        programs: None,
        store: Store::new(&config.state_dir),
        // Without programs the interface itself is the port; an agent in interposed mode changes that when it starts.
        interposed: false,
        leases: config.gateway_leases,
        masquerade: masquerade_ranges(config)?.iter().map(|MasqueradeRange { subnet, .. }| *subnet).collect(),
    })
}

/// What [`to_bridge`] would do.
async fn plan(config: &Config, interface: &str) -> anyhow::Result<String> {
    let migration = migration(config).await?;
    let link = migration.netlink.get(interface).await?;
    let (addresses, routes) = migration.look_at(&link).await?;
    find::look(&migration.netlink, migration.store.role(), &link, &addresses, migration.leases).await?;
    let bridge = bridge_name(interface);
    let mut text = format!("{interface} would become a port of {bridge}, and to {bridge} would move\n");
    for address in &addresses {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  address {address}");
    }
    for route in &routes {
        let _ = writeln!(text, "  route {route}");
    }
    Ok(text)
}

fn say(text: &str) -> anyhow::Result<()> {
    std::io::stdout().write_all(text.as_bytes()).context("write to standard output")
}
