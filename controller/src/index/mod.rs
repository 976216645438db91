//! What the controller knows of the cluster: plain structs, changed by synchronous `apply`/`delete`/`reset`, which answer
//! with the [units](crate::plan::Unit) that must be planned again. No client inside; tests feed objects.

pub mod objects;

pub use objects::{ContainerPort, Namespace, Node, Pod, Protocol};
