//! Two controllers on a real API server and a real database: one leads, the other is ready. However the first one ends, the
//! second takes over within the promised time.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[allow(dead_code, reason = "shared with the other tests")]
mod cluster;
#[allow(dead_code, reason = "shared with the other tests")]
mod common;

use std::time::{Duration, Instant};

use cluster::{Cluster, Replica};

/// Number of pods before the failure.
const PODS: usize = 600;
/// Longest wait for events without a promised time.
const PATIENCE: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ready_follower_goes_on_soon_after_the_leader_was_killed_and_at_once_when_it_ended_in_order() {
    let cluster = Cluster::start().await;
    let first = Replica::start(&cluster);
    first.is_ready("ok", PATIENCE).await;
    let second = Replica::start(&cluster);
    second.is_ready("standby", PATIENCE).await;

    cluster.create_nodes(3).await;
    cluster.create_pods(PODS, 3).await;
    cluster.wait_for_ports(PODS, PATIENCE).await;
    first.is_ready("ok", PATIENCE).await;
    for counter in ["nb_transactions_total", "annotations_total", "leader"] {
        assert_eq!(second.metric(counter).await, 0, "{counter} of the follower");
    }

    let killed = Instant::now();
    first.kill();
    cluster.create_pod("after-the-kill", "node-0").await;
    cluster
        .wait_for_port("default_after-the-kill", Duration::from_secs(17).saturating_sub(killed.elapsed()))
        .await;
    eprintln!("a pod has its row {:?} after the leader was killed", killed.elapsed());
    second.is_ready("ok", PATIENCE).await;

    let third = Replica::start(&cluster);
    third.is_ready("standby", PATIENCE).await;
    let ended = Instant::now();
    second.terminate();
    cluster.create_pod("after-the-end", "node-1").await;
    cluster
        .wait_for_port("default_after-the-end", Duration::from_secs(2).saturating_sub(ended.elapsed()))
        .await;
    eprintln!("a pod has its row {:?} after the leader was told to end", ended.elapsed());
    assert!(second.ended().await.success(), "an orderly end is no failure");
    third.is_ready("ok", PATIENCE).await;
    cluster.wait_for_ports(PODS + 2, PATIENCE).await;
}
