//! Which uplink of the node a migration is for, and how the programs are attached to it.

use anyhow::Context as _;

use super::journal::Journal;
use super::migration::{Migration, port_name};
use crate::attach;
use crate::bpf::Mode;
use crate::gateway::bridge;

/// An uplink of the node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Role {
    /// That of the gateway bridge.
    #[default]
    Gateway,
    /// The second one, towards external gateways of pods (`exgw` of ovn-kubernetes).
    Second,
}

impl Role {
    /// Name of the journal in the state directory.
    pub(super) const fn file(self) -> &'static str {
        match self {
            Self::Gateway => "gateway.json",
            Self::Second => "second-uplink.json",
        }
    }

    /// Name of the file of its trial in the state directory.
    pub(super) const fn trial(self) -> &'static str {
        match self {
            Self::Gateway => "gateway-trial.json",
            Self::Second => "second-uplink-trial.json",
        }
    }

    /// The flag that names the interface.
    pub const fn flag(self) -> &'static str {
        match self {
            Self::Gateway => "--gateway-interface",
            Self::Second => "--exgw-interface",
        }
    }

    /// The interface in messages.
    pub const fn interface(self) -> &'static str {
        match self {
            Self::Gateway => "gateway interface",
            Self::Second => "second uplink",
        }
    }

    /// The bridge in messages.
    pub const fn bridge(self) -> &'static str {
        match self {
            Self::Gateway => "gateway bridge",
            Self::Second => "bridge of the second uplink",
        }
    }
}

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
