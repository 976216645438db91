//! Interfaces to the kernel: links, addresses and routes, network namespaces, sysctls, nftables, connection tracking, unix sockets.

pub mod atomic_file;
pub mod child_input;
pub mod conntrack;
pub mod conntrack_events;
pub mod link;
pub mod netns;
mod nfnetlink;
pub mod nft;
pub mod sysctl;
pub mod sysctl_record;
pub mod unix_socket;
