//! What a node is on its wire with.

use serde::{Deserialize, Serialize};

/// Tag of the nodes' packets on the wire, where their uplink is a VLAN interface.
pub const UPLINK_VLAN: u16 = 100;

/// The interface that a node has its address on. All but the first need modules of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Uplink {
    /// A plain interface.
    #[default]
    Plain,
    /// A VLAN interface; only the nodes' packets have tags.
    Vlan,
    /// A bond of two interfaces, of which one is in use.
    Bond,
    /// A VLAN interface on such a bond.
    BondVlan,
}

impl Uplink {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "eth0",
            Self::Vlan => "eth0.100",
            Self::Bond => "bond0",
            Self::BondVlan => "bond0.100",
        }
    }

    /// The interface that is below the VLAN interface, if it is one.
    #[must_use]
    pub fn tags_on(self) -> Option<&'static str> {
        match self {
            Self::Plain | Self::Bond => None,
            Self::Vlan => Some("eth0"),
            Self::BondVlan => Some("bond0"),
        }
    }

    /// Whether it is, or is on, a bond.
    #[must_use]
    pub fn is_bond(self) -> bool {
        matches!(self, Self::Bond | Self::BondVlan)
    }
}
