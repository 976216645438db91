//! The kernel as the agent uses it: links, addresses and routes, namespaces, sysctls, nftables, connection tracking
//! and unix sockets.

pub mod conntrack;
pub mod link;
pub mod netns;
pub mod nft;
pub mod sysctl;
pub mod unix_socket;
