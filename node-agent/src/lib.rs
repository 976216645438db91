//! The node agent: plugs pods into OVS, keeps the node's gateway, attaches the eBPF programs, and reports the node's state.
//!
//! One directory for each concern; `cargo xtask lint` checks that imports between them point one way, from the bottom of this
//! list upwards:
//!
//! | room | what |
//! |---|---|
//! | `config`, `attach`, `health`, `metrics`, `lock` | settings, attach modes and interface names, node conditions, Prometheus registry, instance lock |
//! | `kernel` | links, addresses, routes, namespaces, sysctls, nftables, conntrack; only `kernel::netns` enters other namespaces |
//! | `ovs` | Open_vSwitch database session, ports, chassis settings, `unixctl`, OpenFlow messages |
//! | `kube` | API client, the watch of this node's pods, host ports, annotations of the Node object |
//! | `flow_cache` | when to invalidate, who is eligible, what the flow cache can be told and asked ([`flow_cache::FlowCache`]) |
//! | `bpf` | loading, pinning, attaching, maps; implements [`flow_cache::FlowCache`]; only user of aya |
//! | `datapath` | which datapath and attach mode this node uses, and why |
//! | `node` | what the rooms above share: handles, CNI calls under way |
//! | `pod` | veth pair, shim, and the pod's side of its interface |
//! | `cni` | ADD, DEL, CHECK, GC, the CNI server, installing the CNI configuration |
//! | `gateway` | gateway bridge, take-over of the uplink, flows and translations, services, host ports |
//! | `admin` | HTTP: metrics, health, status, what `slipctl` asks, audit |
//! | `run`, `cleanup`, `args` | order of start and end, command line |

pub mod admin;
pub mod args;
pub mod attach;
pub mod bpf;
pub mod cleanup;
pub mod cni;
pub mod config;
pub mod datapath;
pub mod flow_cache;
pub mod gateway;
pub mod health;
pub mod kernel;
pub mod kube;
pub mod lock;
pub mod metrics;
pub mod node;
pub mod ovs;
pub mod pod;
pub mod run;
