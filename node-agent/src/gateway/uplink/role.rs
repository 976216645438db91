//! Which uplink of the node a migration is for, and how the programs are attached to it.

use anyhow::Context as _;

use super::migration::Migration;
use crate::bpf::Mode;

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
