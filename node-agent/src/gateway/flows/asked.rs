//! Served ports within the node's ephemeral port range: a packet from outside to such a port may be for the service or a reply to a
//! connection of the node. Connection tracking distinguishes them.

use super::FlowSet;

/// Cookie of these flows.
pub const COOKIE: u64 = 0x0005_1152_1057;
/// Table that separates new connections to a port from replies to the node.
const TABLE: u8 = 8;

/// Action in table 0 for packets from outside to such a port: to `patch`, except replies to the node.
pub fn action(set: &mut FlowSet, patch: &str) -> String {
    for state in ["est", "rel"] {
        set.add(COOKIE, TABLE, 100, format!("ct_state=+{state}+trk,ct_mark=0x2"), "LOCAL");
    }
    set.add(COOKIE, TABLE, 0, "", format!("output:{patch}"));
    format!("ct(table={TABLE},zone=64000)")
}

/// Action as from [`action`], but with `actions` instead of output to OVN.
pub fn action_of(set: &mut FlowSet, patch: &str, matches: &str, actions: &str) -> String {
    set.add(COOKIE, TABLE, 50, matches, actions);
    action(set, patch)
}
