//! Which flow an entry is of.

use std::net::SocketAddr;

use api::admin::{CachedProtocol, FlowSpec};

use crate::flow_cache::Flow;

/// Five-tuple of a flow; `None` for a protocol other than TCP and UDP.
pub(super) fn spec(flow: &Flow) -> Option<FlowSpec> {
    Some(FlowSpec {
        protocol: CachedProtocol::of(flow.protocol)?,
        source: SocketAddr::new(flow.source, flow.source_port),
        destination: SocketAddr::new(flow.destination, flow.destination_port),
    })
}
