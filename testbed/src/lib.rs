//! A complete cluster on one machine: hosts made of namespaces, a real Kubernetes control plane, real OVN and OVS, and the programs of
//! Slipstream.
//!
//! [`cluster`] brings clusters up and down; [`host`] is one host of them; [`nodes`] plays scheduler and kubelet;
//! [`images`] makes the container images of real nodes; [`tools`] makes and answers traffic; [`traffic`] has them used and says
//! what came of it; [`metrics`] reads what processes have counted. What clusters must do is in the package `e2e`, its demonstration
//! too.
#![forbid(unsafe_code)]

pub mod cli;
pub mod cluster;
pub mod exec;
pub mod host;
pub mod images;
pub mod metrics;
pub mod nodes;
pub mod pod;
pub mod runtime;
pub mod tools;
pub mod traffic;
pub mod ui;
