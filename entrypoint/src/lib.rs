//! The first process of each container of the image. By its argument it is one role: it checks the environment, prepares
//! directories and databases, and becomes the program of the role, or starts several programs and ends with the first of them.
#![forbid(unsafe_code)]
#![warn(missing_docs, clippy::missing_errors_doc)]

pub mod args;
pub mod central;
pub mod error;
pub mod exec;
pub mod instance;
pub mod node;
pub mod ovs;
mod paths;
pub mod ready;
pub mod servers;
pub mod settings;
pub mod supervise;
pub mod tls;

use std::fmt;
use std::io::Write;

/// Writes a line to standard error, which is the container's log. A log that is gone is no reason to end.
pub fn say(line: impl fmt::Display) {
    let _ = writeln!(std::io::stderr().lock(), "slipstream-entrypoint: {line}");
}
