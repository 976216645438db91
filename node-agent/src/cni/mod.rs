//! Server side of the CNI plugin; the plugin executable only forwards requests.
//!
//! `request` validates, `interfaces` says what a pod gets, `add`, `del` and `check` execute, `result` formats the response, `server`
//! listens, `gc` collects garbage, `installer` installs the plugin. Implements CNI specification 1.1, and older versions in their own formats.

pub mod add;
pub mod check;
pub mod del;
pub mod error;
mod further;
pub mod gc;
pub mod installer;
pub mod interfaces;
pub mod request;
pub mod result;
pub mod server;

pub use error::CniError;
