//! The answer of the classifier: which cached entries changes of br-int can concern.

use std::collections::BTreeSet;
use std::net::IpAddr;

use api::MacAddr;

/// A set of cached entries, by a property that they have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Entries with this source or destination address, before or after a translation.
    Address(IpAddr),
    /// Entries whose packets come in or go out by this OpenFlow port of br-int; never a tunnel's or a patch port.
    Port(u32),
    /// Entries whose packets are sent from this MAC address, or delivered to it.
    Mac(MacAddr),
    /// Entries of a tunnel with this key as ingress or egress port in Geneve's option (OVN, `tunnel_key` of a `Port_Binding`).
    Key {
        /// Geneve network identifier: the key of a logical datapath, 24 bits.
        vni: u32,
        /// Key of the logical port: 15 bits for an ingress port, 16 for an egress port.
        key: u16,
    },
    /// Entries of a tunnel with this network identifier.
    Datapath {
        /// Geneve network identifier: the key of a logical datapath, 24 bits.
        vni: u32,
    },
}

/// A rule of the module's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// R0.
    NeverCached,
    /// R1.
    Address,
    /// R2.
    LocalPort,
    /// R3.
    Group,
    /// R4.
    Conjunction,
    /// R5.
    NextHop,
    /// R6.
    Original,
    /// R7.
    Mac,
    /// R8.
    RemotePort,
    /// R9.
    FarDatapath,
    /// None of them: every entry.
    Everything,
}

impl Rule {
    /// Rules by which a flow concerns something.
    pub const CONCERNING: [Self; 10] = [
        Self::Address,
        Self::LocalPort,
        Self::Group,
        Self::Conjunction,
        Self::NextHop,
        Self::Original,
        Self::Mac,
        Self::RemotePort,
        Self::FarDatapath,
        Self::Everything,
    ];

    /// Name of one of them in the environment of a test.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NeverCached => "never-cached",
            Self::Address => "address",
            Self::LocalPort => "local-port",
            Self::Group => "group",
            Self::Conjunction => "conjunction",
            Self::NextHop => "next-hop",
            Self::Original => "original",
            Self::Mac => "mac",
            Self::RemotePort => "remote-port",
            Self::FarDatapath => "far-datapath",
            Self::Everything => "everything",
        }
    }

    /// The rule with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::CONCERNING.into_iter().find(|rule| rule.name() == name)
    }
}

/// Why a change concerns every entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Why {
    /// A flow that matches a prefix or mask of addresses, as a route does, on a datapath that local packets may pass.
    Prefix,
    /// A flow of a logical datapath that local packets may pass, which names neither an address nor a port.
    Datapath,
    /// A flow that names no logical datapath.
    Bridge,
    /// A flow on a port of br-int that is not known as a local endpoint's: a tunnel, a patch port.
    UnknownPort,
    /// More updates at once than are worth looking at.
    ManyUpdates,
    /// More scopes at once than are worth naming.
    ManyScopes,
    /// OVS paused the monitor, or resumed it.
    Paused,
    /// An update that could not be read, since the monitor connected.
    Unreadable,
    /// The flow table is not as the rules assume ([`Classifier::lint`](super::Classifier::lint)).
    Lint,
}

impl Why {
    /// All reasons.
    pub const ALL: [Self; 9] = [
        Self::Prefix,
        Self::Datapath,
        Self::Bridge,
        Self::UnknownPort,
        Self::ManyUpdates,
        Self::ManyScopes,
        Self::Paused,
        Self::Unreadable,
        Self::Lint,
    ];

    /// Label value in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Prefix => "prefix",
            Self::Datapath => "datapath",
            Self::Bridge => "bridge",
            Self::UnknownPort => "unknown_port",
            Self::ManyUpdates => "many_updates",
            Self::ManyScopes => "many_scopes",
            Self::Paused => "paused",
            Self::Unreadable => "unreadable",
            Self::Lint => "lint",
        }
    }
}

/// Which cached entries the updates of a burst concern.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Impact {
    /// Every entry, for the first such reason; the scopes may then be incomplete.
    pub everything: Option<Why>,
    /// Entries in any of these scopes.
    pub scopes: BTreeSet<Scope>,
    /// Number of updates that concern no entry.
    pub nothing: usize,
    /// Number of updates in all.
    pub updates: usize,
}

impl Impact {
    /// Whether no entry is concerned, of whatever kind.
    pub fn is_nothing(&self) -> bool {
        self.everything.is_none() && self.nothing == self.updates
    }
}
