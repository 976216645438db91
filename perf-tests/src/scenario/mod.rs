//! What is measured. Each scenario runs inside a host of the test bed and answers with its series.

pub(crate) mod cni;
mod controller;
pub(crate) mod elsewhere;
pub(crate) mod ingest;
pub(crate) mod rows;
pub(crate) mod scale;
mod steps;
pub(crate) mod watch_rows;
