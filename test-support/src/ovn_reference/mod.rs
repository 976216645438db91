//! What ovn-kubernetes wrote for a fixed set of objects, and the comparison of our rows with it: [`data`] has the reference,
//! [`normalize`] makes databases comparable, [`compare`] finds differences and knows the reviewed ones.

pub mod compare;
pub mod data;
pub mod normalize;

pub use compare::{Difference, Reviewed, compare};
pub use data::Stage;
