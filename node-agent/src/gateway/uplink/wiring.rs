//! What differs between the uplinks in a migration: how the programs are attached, and what becomes of an interface that is gone.

use anyhow::Context as _;

use super::journal::Journal;
use super::migration::{Migration, port_name};
use super::role::Role;
use crate::attach;
use crate::bpf::Mode;
use crate::gateway::bridge;

impl Migration {
    /// Whether the journal is of a second uplink whose interface no longer exists. The node's first one may come back, and its addresses are
    /// nowhere else.
    pub(super) async fn is_gone(&self, journal: &Journal) -> anyhow::Result<bool> {
        Ok(self.store.role() == Role::Second && self.netlink.find(&journal.uplink).await?.is_none())
    }

    /// Removes what was made for an interface that is gone, and the journal.
    pub(super) async fn forget(&self, journal: &Journal) -> anyhow::Result<()> {
        self.detach()?;
        bridge::remove_port(&self.ovs, &journal.bridge, &port_name(journal)).await?;
        if journal.created_bridge {
            bridge::remove(&self.ovs, &journal.bridge).await?;
        }
        self.netlink.delete_if_exists(&attach::shim_agent_end(&journal.uplink)).await?;
        tracing::warn!(
            uplink = journal.uplink,
            "the second uplink's interface is gone; its addresses and routes went with it"
        );
        self.store.remove()
    }

    /// Attaches the programs to the uplink.
    pub(super) fn attach(&self, uplink: u32, mode: Mode) -> anyhow::Result<()> {
        let Some(programs) = &self.programs else { return Ok(()) };
        let mut programs = programs.lock();
        match (self.store.role(), mode) {
            (Role::Gateway, _) => programs.set_uplink(uplink, mode),
            (Role::Second, Mode::Interposed { .. }) => programs.set_second_uplink(uplink, mode),
            // The flow cache attaches them, as to every interface of a physical network.
            (Role::Second, Mode::Direct) => return programs.clear_second_uplink().map_err(Into::into),
        }
        .with_context(|| format!("eBPF programs of the {}", self.store.role().interface()))
    }

    /// Detaches the programs from the uplink.
    pub(super) fn detach(&self) -> anyhow::Result<()> {
        let Some(programs) = &self.programs else { return Ok(()) };
        let mut programs = programs.lock();
        match self.store.role() {
            Role::Gateway => programs.clear_uplink(),
            Role::Second => programs.clear_second_uplink(),
        }
        .with_context(|| format!("eBPF programs of the {}", self.store.role().interface()))
    }
}
