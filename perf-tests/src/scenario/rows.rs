//! Pod created → port row in NB, one pod after another.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};

use super::watch_rows::PortRows;
use crate::kubernetes;
use crate::record::Series;

/// Namespace of this scenario.
const NAMESPACE: &str = "bench-rows";

/// Creates `count` pods on `node`, 50 ms apart.
pub(crate) async fn run(kubeconfig: &Path, nb: &str, node: &str, count: usize) -> Result<Vec<Series>> {
    let client = kubernetes::client(kubeconfig).await?;
    kubernetes::ensure_namespace(&client, NAMESPACE).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let mut rows = PortRows::open(nb).await?;
    let mut from_request = Series::new("pod create request sent -> port row", "ms");
    let mut from_answer = Series::new("pod created -> port row", "ms");
    for i in 0..count {
        let name = format!("row-{i}");
        let sent = Instant::now();
        pods.create(&PostParams::default(), &kubernetes::manual_pod(&name, node)?).await?;
        let created = Instant::now();
        let port = api::ovn_name::pod_port(NAMESPACE, &name);
        let seen = rows.wait(&HashSet::from([port.clone()]), Duration::from_secs(30)).await?[&port];
        from_request.samples.push(seen.duration_since(sent).as_secs_f64() * 1e3);
        from_answer.samples.push(seen.saturating_duration_since(created).as_secs_f64() * 1e3);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    kubernetes::delete_pods(&client, NAMESPACE).await?;
    Ok(vec![from_request, from_answer])
}
