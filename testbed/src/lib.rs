//! A complete cluster on one machine: hosts made of namespaces, a real Kubernetes control plane, real OVN and OVS, and the programs of
//! Slipstream.
//!
//! [`config`] describes a cluster; [`host`] is one host of it; [`bed`] is a running one with its control plane; [`nodes`] plays scheduler
//! and kubelet; [`cluster`] brings clusters up and down;
//! [`images`] makes the container images of real nodes; [`tools`] makes and answers traffic; [`traffic`] has them used and says
//! what came of it; [`metrics`] reads what processes have counted. What clusters must do is in the package `e2e`, its demonstration
//! too.
#![forbid(unsafe_code)]

pub mod bed;
pub mod cli;
pub mod cluster;
pub mod config;
pub mod exec;
pub mod host;
pub mod images;
pub mod loader;
pub mod metrics;
pub mod nodes;
pub mod pod;
pub mod runtime;
pub mod tools;
pub mod traffic;
pub mod ui;
