//! End-to-end tests on complete clusters of the package `testbed`. One module is one suite, with a test program of the same name in
//! `tests/`; [`harness`] is what they have in common.
#![forbid(unsafe_code)]

pub mod cli;
pub mod demo;
pub mod demonstration;
pub(crate) mod expect;
pub mod fault_injection;
pub mod flow_cache_equivalence;
pub mod flow_cache_invariants;
pub mod harness;
pub mod instruction_count;
pub mod kernel_datapath;
pub mod multus;
pub(crate) mod new_service;
pub mod node_lifecycle;
pub(crate) mod objects;
pub mod ovn_kubernetes_parity;
pub mod pod_churn;
pub(crate) mod process;
pub mod random;
pub(crate) mod reasons;
pub(crate) mod replaced_backend;
pub(crate) mod rolling_update;
pub mod scale;
pub mod scoped_changes;
pub mod service_matrix;
pub(crate) mod service_path;
pub mod snapshot;
pub mod supervision;
pub mod uplink_migration;
pub mod virtual_networks;
pub(crate) mod ways;
