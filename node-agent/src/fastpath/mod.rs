//! The agent's side of the flow cache: sees that OVS has changed and makes what is cached invalid, holds or closes the
//! cache while it cannot see, and decides which endpoints may use it. What it steers through is
//! [`crate::fast_path::FastPath`], which `bpf` implements.
//!
//! `engine` has the rules of invalidation, without I/O.

pub mod engine;
pub mod status;
