//! A whole cluster on one machine: hosts made of namespaces, a real Kubernetes control plane, real OVN and OVS,
//! and the programs of Slipstream.
//!
//! [`bed`] brings clusters up and down; [`host`] is one host of them; [`nodes`] plays scheduler and kubelet;
//! [`images`] makes the container images of real nodes; [`probe`] is the traffic tool; [`metrics`] reads what processes have counted; [`demo`], [`golden`], [`churn`],
//! [`hardship`], [`life`], [`kernel`], [`icount`], [`laws`], [`exact`], [`scale`] and [`supervise`] are what is run on a cluster.
#![forbid(unsafe_code)]

pub mod bed;
pub mod churn;
pub mod cli;
pub mod demo;
pub mod exact;
pub mod exec;
pub mod golden;
pub mod hardship;
pub mod host;
pub mod icount;
pub mod images;
pub mod kernel;
pub mod laws;
pub mod life;
pub mod metrics;
pub mod nodes;
pub mod pod;
pub mod probe;
pub mod random;
pub mod scale;
pub mod supervise;
pub mod traffic;
pub mod ui;
pub mod uplink;
