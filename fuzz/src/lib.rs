//! Fuzz targets: one function for each place where input comes from outside. Each takes any bytes. It panics if reading them
//! panics, and also if the result violates a rule.
//!
//! libFuzzer calls them through `targets/` (`cargo xtask fuzz`), and an ordinary test calls them with every file of `seeds/`.
#![allow(clippy::unwrap_used, reason = "a target fails by panicking")]

mod annotations;
mod bytes;
mod cli_ranges;
mod cni_request;
mod flow;
mod geneve;
mod network_attachments;
mod openflow_monitor;
mod ovsdb_framing;
mod pod_attachments;
mod traffic_protocol;
mod virtual_network;

pub use annotations::annotations;
pub use cli_ranges::cli_ranges;
pub use cni_request::cni_request;
pub use flow::flow;
pub use geneve::geneve;
pub use network_attachments::network_attachments;
pub use openflow_monitor::openflow_monitor;
pub use ovsdb_framing::ovsdb_framing;
pub use pod_attachments::pod_attachments;
pub use traffic_protocol::traffic_protocol;
pub use virtual_network::virtual_network;

/// A function of this library.
pub type Target = fn(&[u8]);

/// All targets by name, which is also the name of their program and of their directory in `seeds/`.
pub const TARGETS: [(&str, Target); 11] = [
    ("cni_request", cni_request),
    ("annotations", annotations),
    ("geneve", geneve),
    ("flow", flow),
    ("ovsdb_framing", ovsdb_framing),
    ("openflow_monitor", openflow_monitor),
    ("cli_ranges", cli_ranges),
    ("virtual_network", virtual_network),
    ("network_attachments", network_attachments),
    ("pod_attachments", pod_attachments),
    ("traffic_protocol", traffic_protocol),
];
