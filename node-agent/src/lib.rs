//! The node agent: plugs pods into OVS, keeps the node's gateway, attaches the eBPF programs, and says how the node is.
//!
//! `run` is the order of start-up. `cni` serves the container runtime; `link`, `netns` and `ovs` are what it is made of.
//! Only `netns` enters other namespaces, only `bpf` names aya.

pub mod args;
pub mod bpf;
pub mod link;
pub mod netns;
pub mod run;
