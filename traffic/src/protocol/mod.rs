//! What the two ends say to each other: lines of JSON on the control connection ([`control`]), and the heads of data connections
//! and datagrams ([`data`]).

pub(crate) mod any;
pub(crate) mod control;
pub(crate) mod data;
pub(crate) mod lines;
