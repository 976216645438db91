//! Causes of invalidation, with their names in metrics and status, and the bridges whose flows are monitored.

/// Why all entries were invalidated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// A flow of br-int changed.
    Flows,
    /// A flow of the gateway bridge changed.
    GatewayFlows,
    /// A flow of a bridge that leads to a physical network changed.
    PhysicalFlows,
    /// A port, interface, bridge or mirror of OVS changed.
    Ports,
    /// `external_ids` or `other_config` of the chassis changed.
    Chassis,
    /// A link of the underlay changed.
    Links,
    /// A neighbour or route of the underlay changed.
    Neighbours,
    /// A pod was removed.
    Removal,
    /// Tracked connections to a removed backend were ended.
    Connections,
    /// The path of the node, the tunnel or an endpoint changed.
    Path,
    /// The debounce window after a burst of changes ended.
    Quiet,
    /// A round of OVS's revalidators ended.
    Revalidated,
    /// OVS gave another answer than an entry, without a change.
    Diverged,
    /// Monitoring of OVS was restored, or the agent started.
    Resync,
}

impl Cause {
    /// All causes.
    pub const ALL: [Self; 14] = [
        Self::Flows,
        Self::GatewayFlows,
        Self::PhysicalFlows,
        Self::Ports,
        Self::Chassis,
        Self::Links,
        Self::Neighbours,
        Self::Removal,
        Self::Connections,
        Self::Path,
        Self::Quiet,
        Self::Revalidated,
        Self::Diverged,
        Self::Resync,
    ];

    /// Label value in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flows => "flows",
            Self::GatewayFlows => "gateway_flows",
            Self::PhysicalFlows => "physical_flows",
            Self::Ports => "ports",
            Self::Chassis => "chassis",
            Self::Links => "links",
            Self::Neighbours => "neighbours",
            Self::Removal => "removal",
            Self::Connections => "connections",
            Self::Path => "path",
            Self::Quiet => "quiet",
            Self::Revalidated => "revalidated",
            Self::Diverged => "diverged",
            Self::Resync => "resync",
        }
    }
}

/// A bridge whose flows are monitored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watched {
    /// br-int. Without its monitor the cache is closed, after a grace period.
    Integration,
    /// The gateway bridge. Without its monitor the traffic that crosses it takes the slow path.
    Gateway,
    /// A bridge that leads to a physical network, by a number that no other had. Without its monitor the traffic of pods with the physical network
    /// takes the slow path.
    Physical(u32),
}

impl Watched {
    /// Cause of invalidation when a flow changes.
    pub const fn cause(self) -> Cause {
        match self {
            Self::Integration => Cause::Flows,
            Self::Gateway => Cause::GatewayFlows,
            Self::Physical(_) => Cause::PhysicalFlows,
        }
    }
}
