//! Which endpoints, and whether the tunnel and the node, may use the flow cache, with the reason of those that may not.
//!
//! `rules` and `flow_actions` are pure: the former judge rows of the Open_vSwitch database and pods, the latter what br-int's flows
//! do to packets beside forwarding them. `decide` gathers, asks them, and tells the cache.

pub(super) mod decide;
pub mod flow_actions;
pub mod rules;
