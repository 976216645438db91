//! The node agent: plugs pods into OVS, keeps the node's gateway, attaches the eBPF programs, and says how the node is.
//!
//! `run` is the order of start-up. `cni` serves the container runtime; `link`, `netns`, `ovs` and `pods` are what it is
//! made of; `sync` puts right what an earlier agent left. `fast_path` is what the flow cache can be told and asked, `bpf`
//! does it, and `fastpath` is who tells it: when to forget, when to hold, who may use it. Only `netns` enters other
//! namespaces, only `bpf` names aya.

pub mod admin;
pub mod announce;
pub mod args;
pub mod bpf;
pub mod chassis;
pub mod cleanup;
pub mod cluster_network;
pub mod cni;
pub mod ctl;
pub mod datapath;
pub mod fast_path;
pub mod fastpath;
pub mod gateway;
mod gateway_task;
pub mod kube_api;
pub mod link;
pub mod lock;
pub mod management_port;
pub mod metrics;
pub mod netns;
pub mod node;
pub mod node_annotations;
pub mod ovs;
pub mod pods;
pub mod programs;
mod proxy_health;
pub mod run;
pub mod sync;
