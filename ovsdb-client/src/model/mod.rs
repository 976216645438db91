//! Typed rows of the databases that Slipstream works with, generated from their schema files by `cargo xtask codegen`.

pub mod nb;
pub mod sb;
pub mod server;
pub mod vswitch;
