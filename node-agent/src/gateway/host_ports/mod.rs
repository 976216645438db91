//! Host ports of this node's pods: served from outside by OVN (flows on the bridge) and for the node's own connections by a table
//! of nftables.

pub mod conntrack;
pub mod flows;
pub mod nft;
