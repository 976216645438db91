//! Loads, by name.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A load on the command line, and in files of scenarios.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LoadName {
    TcpRr,
    UdpRr,
    UdpPps,
    TcpStream,
    Crr,
    CrrAll,
    WaysTcpRr,
    WaysUdpRr,
    WaysUdpPps,
    WaysTcpStream,
}
