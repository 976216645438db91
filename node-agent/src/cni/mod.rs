//! The CNI plugin, as far as it decides anything: the executable only carries the request here.
//!
//! `request` validates, `add`, `del`, `check` do, `result` words the answer, `server` listens. Holds the CNI
//! specification 1.1 and answers older versions in their own shape.

pub mod add;
pub mod check;
pub mod del;
pub mod error;
pub mod gc;
pub mod installer;
pub mod request;
pub mod result;
pub mod server;

pub use error::CniError;
