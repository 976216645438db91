//! Eligibility: whether the node, the tunnel and each endpoint may use the flow cache, and the reason if not.
//!
//! `rules` looks at database rows and pods, `physical` at bridges that lead to physical networks, `flow_actions` at flows of br-int. Pure: `decide.rs`, beside this directory, collects their
//! inputs, evaluates them and writes the result to the cache.

pub mod error;
pub mod flow_actions;
pub mod physical;
pub mod rules;
