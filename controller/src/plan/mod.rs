//! Pure planning: from the [index](crate::index) to the rows and edges that NB must hold. Nothing here does I/O or knows a
//! client, and the same index always gives the same items.

pub mod cluster;
pub mod gateway;
pub mod item;
pub mod key;
pub mod node;
pub mod pod;

pub use item::{DesiredRow, Edge, Item, Member, NamespacedName, RowKey, Table, Unit};

use crate::config::Config;
use crate::index::Index;

/// The items of a unit; none when what it is about does not exist (any more).
pub fn plan(index: &Index, config: &Config, unit: &Unit) -> Vec<Item> {
    match unit {
        Unit::Cluster => cluster::items(config),
        Unit::Node(name) => index.nodes.get(name).map(|node| node::items(node, config)).unwrap_or_default(),
        Unit::Pod(name) => index.pods.get(name).map(|pod| pod::items(index, pod)).unwrap_or_default(),
        Unit::Service(_) | Unit::PolicyNamespace(_) | Unit::Policy(_) => Vec::new(),
    }
}
