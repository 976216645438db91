//! The CNI plugin, as far as it decides anything: the executable only carries the request here.
//!
//! `request` validates, `add`, `del`, `check` do, `result` words the answer, `server` listens. Holds the CNI
//! specification 1.1 and answers older versions in their own shape.

pub mod add;
pub mod attach;
pub mod check;
pub mod del;
pub mod error;
pub mod guard;
pub mod in_use;
pub mod install;
pub mod locks;
pub mod podside;
pub mod request;
pub mod result;
pub mod server;
pub mod steps;

pub use error::CniError;
