//! Why tunnelled packets take the slow path.

use std::net::{AddrParseError, Ipv6Addr};

/// Why the tunnel endpoint of the database cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TunnelError {
    /// Nothing is known yet.
    #[error("the Open_vSwitch database is empty")]
    NoDatabase,
    /// Packets of any node are accepted.
    #[error("tunnel {tunnel} has no fixed remote_ip; the remote endpoints that OVS accepts are unknown")]
    AnyRemote {
        /// Name of its interface.
        tunnel: String,
    },
    /// The underlay is IPv6.
    #[error("the underlay is IPv6 (tunnel endpoint {address}); the fast path supports IPv4 only")]
    Ipv6 {
        /// The endpoint.
        address: Ipv6Addr,
    },
    /// ovn-controller is not configured yet.
    #[error("no tunnel endpoint yet (ovn-encap-ip is not set)")]
    NoEndpoint,
    /// No address, or a list.
    #[error("ovn-encap-ip is `{text}`: {problem}")]
    Malformed {
        /// The value.
        text: String,
        /// What is wrong with it.
        problem: AddrParseError,
    },
    /// No bridge is mapped to the physical network.
    #[error("no gateway bridge yet")]
    NoBridge,
    /// A mirror concerns the uplink.
    #[error("the uplink, in bridge {bridge}, {what}")]
    Mirrored {
        /// The gateway bridge.
        bridge: String,
        /// What the mirror does.
        what: String,
    },
    /// The uplink is several interfaces.
    #[error("OVS port {port} of the uplink is a bond")]
    Bond {
        /// Name of the port.
        port: String,
    },
    /// OVS shapes what leaves by the uplink.
    #[error("OVS port {port} of the uplink has a QoS setting")]
    Shaped {
        /// Name of the port.
        port: String,
    },
}
