//! Programs in a node's own network as peers of a policy: without being named they are denied on other nodes, and by the namespace that
//! represents the nodes they are allowed.

use std::net::Ipv4Addr;

use anyhow::{Context, Result};

use super::rows::Try;
use super::workloads::Pods;
use crate::expect::Expect;
use testbed::cluster::Bed;
use testbed::traffic::{Dial, Place};

/// The namespace and a policy that takes it, as an operator would write them.
const HOST_NETWORK: &str = include_str!("../../../deploy/examples/50-host-network.yaml");

fn try_from_n1(bed: &Bed, pods: &Pods, what: &'static str, expect: Expect) -> Result<Try> {
    // The database is on n2, and answers its own node whatever policies say.
    let (_, db) = pods.find("db")?;
    Ok(Try { what, from: Place::Host("n1".to_owned()), dial: Dial::tcp(db, 5432).to_pod(bed), expect })
}

/// Before anything allows it.
pub(super) fn denied(bed: &Bed, pods: &Pods) -> Result<Try> {
    try_from_n1(bed, pods, "policy: node denied", Expect::Dropped)
}

/// Allows it. The node comes by its management port, whose address is the second of its range.
pub(super) fn allowed(bed: &Bed, pods: &Pods) -> Result<Try> {
    bed.apply(HOST_NETWORK).context("50-host-network.yaml")?;
    let (_, web1) = pods.find("web-1")?;
    let [a, b, c, _] = web1.octets();
    let seen = format!("db {}", Ipv4Addr::new(a, b, c, 2));
    try_from_n1(bed, pods, "policy: node allowed", Expect::only(&seen))
}
