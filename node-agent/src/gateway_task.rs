//! Setting up the gateway and keeping it, with what is wrong told as conditions of the node.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::announce::{Announcement, Outlet};
use crate::args::Config;
use crate::cluster_network;
use crate::datapath::Mode;
use crate::gateway::{self, Context, Status, UplinkPrograms};
use crate::node::Node;

/// Condition of the node.
const GATEWAY: &str = "gateway";

/// Seconds between attempts, the last one for ever.
const WAITS: [u64; 4] = [1, 2, 5, 10];

/// What the gateway works with.
pub(crate) fn context(config: &Arc<Config>, node: &Node) -> Context {
    let datapath = &node.datapath;
    let programs = datapath.uplink.clone().map(|programs| programs as Arc<dyn UplinkPrograms>);
    Context {
        config: Arc::clone(config),
        netlink: node.netlink.clone(),
        ovs: node.ovs.clone(),
        programs,
        interposed: datapath.mode == Mode::Interposed,
        host_ports: node.pods.host_ports(),
        metrics: node.metrics.clone(),
    }
}

/// Sets the gateway up and keeps it, for ever. What goes wrong is told and tried again: the rest of the node goes on.
pub(crate) async fn keep(node: Node, context: Context, client: kube::Client, outlet: Outlet<Announcement>) {
    let mut waits = WAITS.into_iter().chain(std::iter::repeat(WAITS[3]));
    loop {
        let reason = match attempt(&node, context.clone(), client.clone(), outlet.clone()).await {
            Ok(()) => "ended".to_owned(),
            Err(error) => format!("{error:#}"),
        };
        node.health.bad(GATEWAY, reason);
        tokio::time::sleep(Duration::from_secs(waits.next().unwrap_or(WAITS[3]))).await;
    }
}

async fn attempt(
    node: &Node,
    context: Context,
    client: kube::Client,
    outlet: Outlet<Announcement>,
) -> anyhow::Result<()> {
    node.health.bad(GATEWAY, "being set up");
    let gateway = gateway::setup(context).await?;
    let (sender, receiver) = watch::channel(Status::default());
    tokio::select! {
        done = gateway::run(gateway, client, outlet, sender) => done,
        () = report(node, receiver) => Ok(()),
    }
}

async fn report(node: &Node, mut status: watch::Receiver<Status>) {
    loop {
        let now = status.borrow_and_update().clone();
        match missing(&now) {
            None => node.health.good(GATEWAY),
            Some(reason) => node.health.bad(GATEWAY, reason),
        }
        node.health.warning(GATEWAY, (!now.warnings.is_empty()).then(|| now.warnings.join("; ")));
        node.peers.set(now.peers);
        match now.network {
            Ok(differences) => {
                let flags: Vec<_> = differences.iter().map(|difference| difference.flag).collect();
                node.metrics.network_differs(&flags);
                let texts: Vec<String> = differences.iter().map(ToString::to_string).collect();
                node.health
                    .warning(cluster_network::CONDITION, (!texts.is_empty()).then(|| texts.join("; ")));
            }
            Err(error) => node.health.warning(cluster_network::CONDITION, Some(error)),
        }
        if status.changed().await.is_err() {
            return;
        }
    }
}

fn missing(status: &Status) -> Option<String> {
    if !status.failures.is_empty() {
        return Some(status.failures.join("; "));
    }
    match (status.flows, status.management_port) {
        (true, true) => None,
        (false, _) => {
            Some("OVN's patch port is not on the bridge yet, so its flows are not written".to_owned())
        }
        (true, false) => {
            Some("the node has no pod range yet (annotation k8s.ovn.org/node-subnets)".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_before_what_is_merely_not_there_yet() {
        let failed = Status { failures: vec!["x: no".to_owned()], ..Status::default() };
        assert_eq!(missing(&failed).as_deref(), Some("x: no"));
        assert!(missing(&Status::default()).unwrap().contains("patch port"));
        let no_subnet = Status { flows: true, ..Status::default() };
        assert!(missing(&no_subnet).unwrap().contains("node-subnets"));
        assert_eq!(missing(&Status { management_port: true, ..no_subnet }), None);
    }
}
