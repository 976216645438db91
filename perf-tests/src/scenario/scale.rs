//! Thousands of pods on simulated nodes: how long until every one has its port row and its annotation, and what the
//! controller needs for it.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, PostParams};

use super::controller;
use super::watch_rows::PortRows;
use crate::kubernetes;
use crate::record::Series;

/// Namespace of this scenario.
const NAMESPACE: &str = "bench-scale";
/// Create requests under way at once.
const POSTERS: usize = 16;

/// Makes `nodes` simulated nodes, then `pods` pods spread over them.
pub(crate) async fn run(kubeconfig: &Path, nb: &str, nodes: u8, pods: usize) -> Result<Vec<Series>> {
    let client = kubernetes::client(kubeconfig).await?;
    kubernetes::ensure_namespace(&client, NAMESPACE).await?;
    let names = kubernetes::simulated_nodes(&client, kubeconfig, nodes).await?;

    let api: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let mut rows = PortRows::open(nb).await?;
    let start = Instant::now();
    let posting = stream::iter(0..pods)
        .map(|i| {
            let api = api.clone();
            let node = names[i % names.len()].clone();
            async move {
                let pod = kubernetes::manual_pod(&format!("scale-{i}"), &node)?;
                api.create(&PostParams::default(), &pod).await?;
                anyhow::Ok(())
            }
        })
        .buffer_unordered(POSTERS)
        .try_collect::<Vec<()>>();
    let wanted: HashSet<String> =
        (0..pods).map(|i| api::ovn_name::pod_port(NAMESPACE, &format!("scale-{i}"))).collect();
    let (posted, seen) = tokio::join!(
        async {
            let result = posting.await;
            (result, start.elapsed())
        },
        rows.wait(&wanted, Duration::from_secs(180)),
    );
    posted.0?;
    let last_row = seen?.values().max().copied().context("no pods asked for")?.duration_since(start);
    wait_for_annotations(&api, pods).await?;
    let last_annotation = start.elapsed();

    let mut series = vec![
        single("pods posted", "s", posted.1.as_secs_f64()),
        single("pods posted -> last port row", "s", last_row.as_secs_f64()),
        single("pods posted -> last annotation seen", "s", last_annotation.as_secs_f64()),
    ];
    if let Some(mib) = controller::memory()? {
        series.push(single("controller resident memory", "MB", mib));
    }
    kubernetes::delete_pods(&client, NAMESPACE).await?;
    kubernetes::delete_simulated_nodes(&client).await?;
    Ok(series)
}

pub(super) fn single(name: &str, unit: &str, value: f64) -> Series {
    let mut series = Series::new(name, unit);
    series.samples.push(value);
    series
}

async fn wait_for_annotations(api: &Api<Pod>, pods: usize) -> Result<()> {
    for _ in 0..600 {
        let list = api.list_metadata(&ListParams::default()).await?;
        let done = list
            .iter()
            .filter(|p| {
                p.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(api::annotation::POD_NETWORKS))
            })
            .count();
        if done >= pods {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    bail!("not all pods have {} after 120 s", api::annotation::POD_NETWORKS)
}
