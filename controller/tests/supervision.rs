//! Each task of a controller is ended in turn: the process ends with it and logs which, and after a restart nothing is lost.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[allow(dead_code, reason = "shared with the other tests")]
mod cluster;
#[allow(dead_code, reason = "shared with the other tests")]
mod common;

use std::time::Duration;

use cluster::{Cluster, Replica};

const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_any_task_is_the_end_of_the_process_and_nothing_is_lost() {
    let cluster = Cluster::start().await;
    cluster.create_nodes(1).await;
    let mut replica = Replica::start(&cluster);
    replica.is_ready("ok", PATIENCE).await;
    let answer = replica.ask("GET", "/test/tasks").await.unwrap();
    let tasks: Vec<String> = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    for expected in ["admin", "annotations", "engine", "events", "lease", "nb-session", "watch-pods"] {
        assert!(tasks.iter().any(|task| task == expected), "{expected} is not among {tasks:?}");
    }
    for (n, task) in tasks.iter().enumerate() {
        // The answer may be lost when the process ends.
        let _ = replica.ask("POST", &format!("/test/end?task={task}")).await;
        assert_eq!(replica.ended().await.code(), Some(1), "{task}: the process ends with an error");
        assert!(replica.log().contains(&format!("`{task}` ended: ")), "{task}: {}", replica.log());
        cluster.create_pod(&format!("pod-{n}"), "node-0").await;
        replica = Replica::start(&cluster);
        replica.is_ready("ok", PATIENCE).await;
        cluster.wait_for_ports(n + 1, PATIENCE).await;
    }
    let answer = replica.ask("POST", "/test/end?task=nothing").await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
}
