//! [`Manager`]: handle of the rest of the agent on the flow cache.

pub(super) mod control;
pub(super) mod tasks;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use api::admin::{CacheStatus, NodePath, PathStatus};

use super::cache::{Flow, FlowCache};
use super::invalidation::{Cause, Input};
use super::path_file::{Store, StoreError};
use super::services::Services;
use super::state::Shared;
use super::state::ports::host_veth;

/// Manager of the node's flow cache. Clones share state.
#[derive(Debug, Clone)]
pub struct Manager {
    shared: Arc<Shared>,
}

impl Manager {
    /// Creates the manager of `cache`. `netdev`: OVS uses its userspace datapath. `without`: why there is no cache, if `cache`
    /// is `None`. Has no effect before [`Manager::start`].
    ///
    /// # Errors
    /// The requested paths, persisted under `state_dir`, cannot be read.
    pub fn new(
        cache: Option<Arc<dyn FlowCache>>,
        netdev: bool,
        without: &str,
        state_dir: &Path,
    ) -> Result<Self, StoreError> {
        let store = Store::new(state_dir);
        let wanted = store.load()?;
        let services = Services::new(cache.clone(), state_dir)?;
        Ok(Self { shared: Arc::new(Shared::new(cache, netdev, without, store, wanted, services)) })
    }

    /// Creates a manager without a flow cache, for `cleanup`.
    pub fn none(netdev: bool) -> Self {
        let store = Store::new(Path::new("/nonexistent"));
        let shared = Shared::new(None, netdev, "", store, NodePath::Ovs, Services::none());
        Self { shared: Arc::new(shared) }
    }

    /// Status of the flow cache and of all endpoints.
    pub fn status(&self) -> CacheStatus {
        self.shared.status()
    }

    /// Services that are kept off the cache, and what it carries for each.
    pub fn services(&self) -> &Services {
        self.shared.services()
    }

    /// Requested path of the node.
    pub fn wanted(&self) -> NodePath {
        self.shared.wanted()
    }

    /// Sets the requested path of the node at once, and persists it for later agents. Returns the resulting path. Writes a small
    /// file.
    ///
    /// # Errors
    /// The path cannot be persisted under the state directory; nothing is changed then.
    pub fn set_node_path(&self, path: NodePath) -> Result<PathStatus, StoreError> {
        self.shared.request(path)?;
        let view = self.shared.view.get();
        Ok(view.map_or_else(|| self.status().node, |view| view.node(&self.shared)))
    }

    /// Whether a cached flow is one of these; true if they cannot be read. Blocks: iterates over all entries.
    pub fn has_flow(&self, is_one: impl Fn(&Flow) -> bool) -> bool {
        let mut found = false;
        let mut look = |flow: &Flow| {
            found = is_one(flow);
            if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let read = self.shared.cache.as_ref().is_none_or(|cache| cache.each_flow(&mut look).is_ok());
        found || !read
    }

    /// Call before and after tracked connections are ended in OVS: entries repeat what the connections did.
    pub fn connections_end(&self) {
        if self.shared.cache.is_some() {
            self.shared.take(Input::Changed(Cause::Connections));
        }
    }

    /// Call after the programs of endpoint `id` were attached or attached again.
    pub fn endpoint_added(&self, id: &str) {
        self.shared.forget_endpoint(id);
        self.shared.decide.notify_one();
    }

    /// Call after the programs of endpoint `id` were detached and before its links are deleted: invalidates its flows, so that no
    /// packet is redirected to these links.
    pub fn endpoint_removed(&self, id: &str) {
        if self.shared.cache.is_none() {
            return;
        }
        self.shared.forget_endpoint(id);
        self.shared.endpoint_gone(id, host_veth(id));
    }
}
