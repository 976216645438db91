//! Ports of the node that its own connections may have as source port too: by the port alone a packet from outside may be
//! for who serves the port, or an answer to the node. Connection tracking tells them apart.

use super::FlowSet;

/// Cookie of these flows.
pub const COOKIE: u64 = 0x0005_1152_1057;
/// Table that tells new connections to a port from answers to the node.
const TABLE: u8 = 8;

/// What a flow of table 0 does with packets from outside for such a port: they go to `patch` but for answers to the node.
pub fn action(set: &mut FlowSet, patch: &str) -> String {
    for state in ["est", "rel"] {
        set.add(COOKIE, TABLE, 100, format!("ct_state=+{state}+trk,ct_mark=0x2"), "LOCAL");
    }
    set.add(COOKIE, TABLE, 0, "", format!("output:{patch}"));
    format!("ct(table={TABLE},zone=64000)")
}

/// As [`action`], for a port that is not OVN's to serve: its packets have `actions` of their own.
pub fn action_of(set: &mut FlowSet, patch: &str, matches: &str, actions: &str) -> String {
    set.add(COOKIE, TABLE, 50, matches, actions);
    action(set, patch)
}
