//! Which uplink of the node something is about.

/// An uplink of the node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Role {
    /// The gateway bridge's.
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
