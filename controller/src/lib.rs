//! Slipstream's controller: Kubernetes objects → [index] → pure [plan] → [reconcile]iation with the OVN northbound
//! database.
#![forbid(unsafe_code)]
#![warn(missing_docs, clippy::missing_errors_doc)]

pub mod admin;
pub mod alloc;
pub mod args;
pub mod certificates;
pub mod cleanup;
pub mod config;
pub mod engine;
pub mod index;
pub mod kubernetes;
pub mod metrics;
pub mod network_api;
pub mod plan;
pub mod reconcile;
pub mod run;
pub mod state;
pub mod unit;
