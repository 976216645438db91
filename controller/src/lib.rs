//! Slipstream's controller: Kubernetes objects → [index] → pure [plan] → reconciliation with the OVN northbound database.
#![forbid(unsafe_code)]

pub mod config;
pub mod index;
pub mod plan;
