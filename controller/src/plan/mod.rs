//! Pure planning: from the [index](crate::index) to the rows and edges that NB must hold. Nothing here does I/O or knows a
//! client, and the same index always gives the same items.

pub mod item;

pub use item::{DesiredRow, Edge, Item, Member, NamespacedName, RowKey, Table, Unit};
