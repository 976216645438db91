//! Slipstream's controller: Kubernetes objects → [index] → pure [plan] → reconciliation with the OVN northbound database.
#![forbid(unsafe_code)]

pub mod alloc;
pub mod config;
pub mod index;
pub mod plan;
pub mod reconcile;
pub mod state;
