//! What the admin socket asks of the flow cache.

use api::admin::{CacheStatus, NodePath, PathStatus};

use super::Manager;
use crate::flow_cache::path_file::StoreError;
use crate::flow_cache::services::Services;

/// Control of the flow cache, as the admin socket uses it.
pub trait CacheControl: std::fmt::Debug + Send + Sync {
    /// Status of the flow cache and of all endpoints.
    fn status(&self) -> CacheStatus;
    /// Sets the requested path of the node and returns the resulting one.
    ///
    /// # Errors
    /// The path cannot be persisted; nothing is changed then.
    fn set_node_path(&self, path: NodePath) -> Result<PathStatus, StoreError>;
    /// Services that are kept off the cache, and what it carries for each.
    fn services(&self) -> &Services;
    /// Counts a divergence found by the audit.
    fn diverged(&self);
}

impl CacheControl for Manager {
    fn status(&self) -> CacheStatus {
        self.status()
    }

    fn set_node_path(&self, path: NodePath) -> Result<PathStatus, StoreError> {
        self.set_node_path(path)
    }

    fn services(&self) -> &Services {
        self.services()
    }

    fn diverged(&self) {
        self.shared.diverged(1);
    }
}
