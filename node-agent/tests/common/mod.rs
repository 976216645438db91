//! What several of the agent's test programs need.

#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;

use test_support::namespaces::Netns;
pub(crate) use test_support::namespaces::on_a_node;

/// A pod's network namespace; gone when dropped.
pub(crate) struct Pod(Netns);

impl Pod {
    pub(crate) fn new() -> Self {
        Self(Netns::new("pod"))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

/// Sets the loopback interface of the test's node up.
pub(crate) async fn lo_up() {
    let netlink = node_agent::kernel::link::Netlink::open().unwrap();
    let lo = netlink.get("lo").await.unwrap();
    netlink.set_up(lo.index, "lo").await.unwrap();
}
