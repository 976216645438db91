//! A standby controller: it knows everything, writes nothing, and takes over at once when it becomes the leader.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[allow(dead_code, reason = "shared with the other tests")]
mod common;

use std::time::Duration;

use common::{Controller, Server, config, lists, node, pod, pods};
use controller::engine::{Input, Leadership, Reason};
use controller::metrics::Metrics;
use controller::state::{Annotated, Patch, Watched};
use tokio::sync::{mpsc, watch};

/// Longest wait for anything that should happen.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running engine with its inputs and outputs.
struct Follower {
    lead: watch::Sender<bool>,
    inputs: mpsc::Sender<Input>,
    patches: mpsc::UnboundedReceiver<Patch>,
    reason: watch::Receiver<Reason>,
    metrics: Metrics,
    _annotated: mpsc::UnboundedSender<Annotated>,
}

impl Follower {
    async fn start(server: &Server) -> Self {
        let (lead, held) = watch::channel(false);
        let controller = Controller::led(server.client(), config(), Leadership::elected(held)).await;
        let Controller { engine, patches, reason, metrics, .. } = controller;
        let (inputs, queue) = mpsc::channel(16);
        let (annotated_sender, annotated) = mpsc::unbounded_channel();
        tokio::spawn(engine.run(queue, annotated));
        Self { lead, inputs, patches, reason, metrics, _annotated: annotated_sender }
    }

    async fn feed(&self, inputs: impl IntoIterator<Item = Input>) {
        for input in inputs {
            self.inputs.send(input).await.unwrap();
        }
    }

    /// Waits until the engine reports that it is ready, or that it is not for a reason with this word.
    async fn says(&mut self, word: Option<&str>) {
        let said = |reason: &Reason| match (reason, word) {
            (Some(reason), Some(word)) => reason.contains(word),
            (reason, word) => reason.is_none() && word.is_none(),
        };
        tokio::time::timeout(PATIENCE, self.reason.wait_for(said))
            .await
            .expect("the engine says so")
            .unwrap();
    }
}

/// Names of the ports of pods.
fn ports(server: &Server) -> Vec<String> {
    let names =
        server.nbctl(&["--bare", "--columns=name", "find", "Logical_Switch_Port", "external_ids:pod=true"]);
    let mut names: Vec<String> = names.split_whitespace().map(str::to_owned).collect();
    names.sort();
    names
}

/// Waits until these are the ports, and no others.
async fn wait_for_ports(server: &Server, names: &[&str]) {
    let there = async {
        while ports(server) != names {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, there).await.expect("the ports come");
}

#[tokio::test]
async fn a_follower_is_ready_writes_nothing_and_knows_all_when_it_leads() {
    let server = Server::northbound();
    let mut follower = Follower::start(&server).await;
    follower.says(Some("first list of nodes")).await;
    let first = vec![pod("x", "a", "uid-a", "n1"), pod("x", "b", "uid-b", "n1")];
    follower.feed(lists(vec![node("n1", 1)], first)).await;
    follower.says(None).await;
    follower
        .feed([pods(Watched::Delete(("x", "a"))), pods(Watched::Apply(pod("x", "c", "uid-c", "n1")))])
        .await;
    // Its turn comes after the inputs that were fed before.
    follower.inputs.reserve_many(16).await.unwrap();
    assert_eq!(server.transactions(), 0);
    assert!(follower.patches.try_recv().is_err());
    assert!(follower.metrics.text().contains("slipstream_controller_leader 0"));

    follower.lead.send_replace(true);
    wait_for_ports(&server, &["x_b", "x_c"]).await;
    let mut annotated = Vec::new();
    while let Ok(patch) = follower.patches.try_recv() {
        annotated.push(patch.object.name);
    }
    assert_eq!(annotated, ["n1", "b", "c"]);
    assert!(follower.metrics.text().contains("slipstream_controller_leader 1"));
}

#[tokio::test]
async fn an_elected_leader_takes_the_databases_lock_from_one_that_is_stuck() {
    let server = Server::northbound();
    let mut stuck = Controller::start(server.client(), config()).await;
    stuck.feed(lists(vec![node("n1", 1)], vec![pod("x", "a", "uid-a", "n1")])).await;
    let mut follower = Follower::start(&server).await;
    follower.feed(lists(vec![node("n1", 1)], vec![pod("x", "b", "uid-b", "n1")])).await;
    follower.says(None).await;
    follower.lead.send_replace(true);
    wait_for_ports(&server, &["x_b"]).await;
    // The stuck engine does not know yet that it lost the lock, and cannot write.
    stuck.engine.apply(pods(Watched::Apply(pod("x", "c", "uid-c", "n1"))));
    let _ = stuck.engine.settle().await;
    assert_eq!(ports(&server), ["x_b"]);
}
