//! Interfaces to the kernel: links, addresses and routes, network namespaces, sysctls, nftables, connection tracking, unix sockets.

pub mod conntrack;
pub mod link;
pub mod netns;
pub mod nft;
pub mod sysctl;
pub mod unix_socket;
