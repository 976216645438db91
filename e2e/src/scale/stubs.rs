//! Pods on nodes that exist as objects only, so that a cluster of few real nodes is as large for the controller as one of many.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use kube::Client;

use super::policy::{Labels, labels};
use super::world::Pod;
use super::{load, node};
use crate::snapshot;
use testbed::cluster::Bed;
use testbed::exec;

/// Where they are. Sorts behind the namespaces of tests, as what the controller looks at late is what it may forget.
pub(super) const NAMESPACE: &str = "stubs";
/// Pods on one node, whose range is a /24.
const ON_A_NODE: usize = 175;

/// So many of them.
pub(super) fn pods(count: usize) -> Vec<Pod> {
    let one = |i: usize| Pod {
        namespace: NAMESPACE.to_owned(),
        name: format!("stub-{i:04}"),
        node: node::name(i / ON_A_NODE),
        labels: labels([("stub", "yes")]),
    };
    (0..count).map(one).collect()
}

/// Makes so many, with their nodes, and waits until the northbound database has them.
pub(crate) async fn create(bed: &Bed, client: &Client, count: usize) -> Result<()> {
    load::namespaces(client, [(&NAMESPACE.to_owned(), &Labels::new())]).await?;
    load::nodes(client, count.div_ceil(ON_A_NODE)).await?;
    load::pods(client, &pods(count)).await?;
    let end = Instant::now() + exec::patient(Duration::from_secs(120));
    loop {
        let there = snapshot::logical_ports(bed, NAMESPACE)?;
        if there == count {
            return Ok(());
        }
        ensure!(Instant::now() < end, "{there} of {count} stub pods have a logical port");
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}
