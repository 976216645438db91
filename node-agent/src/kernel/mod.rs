//! The kernel as the agent uses it: links, addresses and routes, namespaces, sysctls, nftables and connection tracking.

pub mod conntrack;
pub mod link;
pub mod netns;
pub mod nft;
pub mod sysctl;
