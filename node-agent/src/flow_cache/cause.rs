//! The reasons for which everything cached is made invalid, by which metrics tell them apart.

/// Why everything cached was made invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// A flow of br-int changed.
    Flows,
    /// A port, interface or bridge of OVS changed.
    Ports,
    /// Settings of the chassis changed.
    Chassis,
    /// A link of the underlay changed.
    Links,
    /// A neighbour or route of the underlay changed.
    Neighbours,
    /// A pod was taken away.
    Removal,
    /// A path was changed.
    Path,
    /// A burst is over.
    Quiet,
    /// OVS has brought its datapath flows in line.
    Revalidated,
    /// Sight is back, or the agent has started.
    Resync,
}

impl Source {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Flows,
        Self::Ports,
        Self::Chassis,
        Self::Links,
        Self::Neighbours,
        Self::Removal,
        Self::Path,
        Self::Quiet,
        Self::Revalidated,
        Self::Resync,
    ];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flows => "flows",
            Self::Ports => "ports",
            Self::Chassis => "chassis",
            Self::Links => "links",
            Self::Neighbours => "neighbours",
            Self::Removal => "removal",
            Self::Path => "path",
            Self::Quiet => "quiet",
            Self::Revalidated => "revalidated",
            Self::Resync => "resync",
        }
    }
}
