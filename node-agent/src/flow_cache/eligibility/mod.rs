//! Eligibility: whether the node, the tunnel and each endpoint may use the flow cache, and the reason if not.
//!
//! `rules` (database rows and pods) and `flow_actions` (flows of br-int) are pure. `decide` collects their inputs, evaluates them
//! and writes the result to the cache.

pub(super) mod decide;
pub mod flow_actions;
pub mod rules;
