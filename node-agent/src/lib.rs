//! Node agent: connects pods to OVS, manages the gateway of the node, attaches eBPF programs, and reports the state of the node.
//!
//! One module per concern; `cargo xtask lint` checks that imports between them point one way, from the bottom of this
//! list upwards:
//!
//! | module | content |
//! |---|---|
//! | `config`, `attach`, `health`, `metrics`, `lock` | settings, attach modes and interface names, node conditions, Prometheus registry, instance lock |
//! | `kernel` | links, addresses, routes, namespaces, sysctls, nftables, conntrack; only `kernel::netns` enters other namespaces |
//! | `ovs` | Open_vSwitch database session, ports, chassis settings, `unixctl`, OpenFlow messages |
//! | `kube` | API client, the watch of this node's pods, host ports, annotations of the Node object |
//! | `flow_cache` | invalidation, eligibility, interface to the flow cache ([`flow_cache::FlowCache`]) |
//! | `bpf` | loading, pinning, attaching, maps; implements [`flow_cache::FlowCache`]; only user of aya |
//! | `datapath` | choice of datapath and attach mode |
//! | `node` | shared handles and state, CNI calls in progress |
//! | `pod` | veth pair, shim, and the pod's side of its interface |
//! | `cni` | ADD, DEL, CHECK, GC, the CNI server, installing the CNI configuration |
//! | `gateway` | gateway bridge, uplink migration, flows, address translation, services, host ports |
//! | `admin` | HTTP servers: metrics, health, status, admin socket, audit |
//! | `run`, `cleanup`, `args` | start and exit, command line |

#![warn(missing_docs, clippy::missing_errors_doc)]

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
