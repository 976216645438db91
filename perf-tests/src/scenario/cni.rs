//! CNI ADD as a runtime does it: from the start of the executable to its answer.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

use super::steps;
use crate::kubernetes;
use crate::record::Series;

/// Namespace of this scenario.
const NAMESPACE: &str = "bench-cni";
/// The plugin as the agent installed it.
const PLUGIN: &str = "/opt/cni/bin/slipstream-cni";
/// The configuration that the agent wrote.
const CONFIG: &str = "/etc/cni/net.d/10-slipstream.conf";

/// Steps of the agent that wait for no other process: the links and the OVS rows.
const OURS: &[&str] = &["pair", "shim", "plug"];

/// A pod with its sandbox.
struct Sandbox {
    pod: String,
    uid: String,
    id: String,
}

/// Runs the three situations on this node: port row long there, right after creation, and many at once.
pub(crate) async fn run(kubeconfig: &Path, node: &str, count: usize, burst: usize) -> Result<Vec<Series>> {
    let client = kubernetes::client(kubeconfig).await?;
    kubernetes::ensure_namespace(&client, NAMESPACE).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let config =
        std::fs::read_to_string(CONFIG).with_context(|| format!("{CONFIG}: is the node agent ready?"))?;

    let mut settled = Series::new("CNI ADD, port row long there", "ms");
    let boxes = create(&pods, node, "settled", count).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    for sandbox in &boxes {
        settled.samples.push(add(sandbox, &config)?);
    }
    let settled_ids: Vec<String> = boxes.iter().map(|s| s.id.clone()).collect();
    remove(&boxes, &config)?;
    kubernetes::delete_pods(&client, NAMESPACE).await?;

    let mut fresh = Series::new("CNI ADD, right after the pod was created", "ms");
    let mut from_request = Series::new("pod create request sent -> CNI ADD answered", "ms");
    let mut made = Vec::new();
    for i in 0..count {
        let start = Instant::now();
        let sandbox = create(&pods, node, &format!("fresh-{i}"), 1).await?.remove(0);
        fresh.samples.push(add(&sandbox, &config)?);
        from_request.samples.push(start.elapsed().as_secs_f64() * 1e3);
        made.push(sandbox);
    }
    let fresh_ids: Vec<String> = made.iter().map(|s| s.id.clone()).collect();
    remove(&made, &config)?;
    kubernetes::delete_pods(&client, NAMESPACE).await?;

    let boxes = create(&pods, node, "burst", burst).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    for sandbox in &boxes {
        namespace(sandbox, true)?;
    }
    let start = Instant::now();
    let children: Vec<_> = boxes.iter().map(|s| spawn(s, "ADD", &config)).collect::<Result<_>>()?;
    let mut last = Series::new(format!("{burst} CNI ADDs at once, last answer"), "ms");
    for child in children {
        finish(child, "ADD")?;
    }
    last.samples.push(start.elapsed().as_secs_f64() * 1e3);
    remove(&boxes, &config)?;
    kubernetes::delete_pods(&client, NAMESPACE).await?;

    let (ratio, ten_ids) = ten_interfaces(&client, &pods, node, count.min(MOST_TENS), &config).await?;

    let mut series = vec![settled, fresh, from_request, last, ratio];
    let calls = steps::last_calls()?;
    series.extend(steps::series(&calls, &settled_ids, "settled ADD", OURS));
    series.extend(steps::series(&calls, &fresh_ids, "fresh ADD", OURS));
    series.extend(steps::series(&calls, &ten_ids, "ADD of ten interfaces", &[]));
    Ok(series)
}

/// The most pods with ten interfaces that are made.
const MOST_TENS: usize = 20;
/// Before each of them, and before the one that it is held against: what OVN still has to do for the last one must not count for the next.
const REST: Duration = Duration::from_millis(700);

/// A pod with ten interfaces and one with a single one, in turns, port rows long there: the ratio of their ADDs. Also the ids of the former's
/// sandboxes.
async fn ten_interfaces(
    client: &Client,
    pods: &Api<Pod>,
    node: &str,
    count: usize,
    config: &str,
) -> Result<(Series, Vec<String>)> {
    kubernetes::ensure_network(client, NAMESPACE, "bench", "172.30.0.0/20").await?;
    let asked: Vec<Value> =
        (1..10).map(|number| json!({"name": "bench", "interface": format!("net{number}")})).collect();
    let annotations = BTreeMap::from([("ovnNetwork".to_owned(), json!(asked).to_string())]);
    let ones = create(pods, node, "one", count).await?;
    let mut tens = Vec::new();
    for number in 0..count {
        let mut pod = kubernetes::manual_pod(&format!("ten-{number}"), node)?;
        pod.metadata.annotations = Some(annotations.clone());
        tens.push(create_pod(pods, &pod).await?);
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    let mut ratio = Series::new("CNI ADD of ten interfaces, of one", "times");
    for (one, ten) in ones.iter().zip(&tens) {
        tokio::time::sleep(REST).await;
        let one = add(one, config)?;
        tokio::time::sleep(REST).await;
        ratio.samples.push(add(ten, config)? / one);
    }
    remove(&ones, config)?;
    remove(&tens, config)?;
    kubernetes::delete_pods(client, NAMESPACE).await?;
    Ok((ratio, tens.into_iter().map(|sandbox| sandbox.id).collect()))
}

async fn create(pods: &Api<Pod>, node: &str, prefix: &str, count: usize) -> Result<Vec<Sandbox>> {
    let mut made = Vec::new();
    for i in 0..count {
        made.push(create_pod(pods, &kubernetes::manual_pod(&format!("{prefix}-{i}"), node)?).await?);
    }
    Ok(made)
}

async fn create_pod(pods: &Api<Pod>, pod: &Pod) -> Result<Sandbox> {
    let metadata = pods.create(&PostParams::default(), pod).await?.metadata;
    let (Some(pod), Some(uid)) = (metadata.name, metadata.uid) else {
        bail!("the API server gave the pod no name or uid")
    };
    Ok(Sandbox { pod, uid, id: uuid::Uuid::new_v4().simple().to_string() })
}

/// Makes or removes the sandbox's network namespace.
fn namespace(sandbox: &Sandbox, make: bool) -> Result<()> {
    let verb = if make { "add" } else { "del" };
    #[expect(clippy::disallowed_methods, reason = "a benchmark plays the container runtime")]
    let status = Command::new("ip").args(["netns", verb, &sandbox.id]).status()?;
    if !status.success() {
        bail!("ip netns {verb} {}: {status}", sandbox.id);
    }
    Ok(())
}

fn spawn(sandbox: &Sandbox, verb: &str, config: &str) -> Result<std::process::Child> {
    let args = format!(
        "IgnoreUnknown=1;K8S_POD_NAMESPACE={NAMESPACE};K8S_POD_NAME={};K8S_POD_INFRA_CONTAINER_ID={};K8S_POD_UID={}",
        sandbox.pod, sandbox.id, sandbox.uid
    );
    #[expect(clippy::disallowed_methods, reason = "a benchmark plays the container runtime")]
    let mut child = Command::new(PLUGIN)
        .env_clear()
        .env("CNI_COMMAND", verb)
        .env("CNI_CONTAINERID", &sandbox.id)
        .env("CNI_NETNS", format!("/run/netns/{}", sandbox.id))
        .env("CNI_IFNAME", "eth0")
        .env("CNI_PATH", "/opt/cni/bin")
        .env("CNI_ARGS", args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| PLUGIN.to_owned())?;
    child.stdin.take().context("no standard input")?.write_all(config.as_bytes())?;
    Ok(child)
}

fn finish(child: std::process::Child, verb: &str) -> Result<()> {
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("CNI {verb}: {} {}", output.status, String::from_utf8_lossy(&output.stdout));
    }
    Ok(())
}

/// One ADD in a new namespace, in milliseconds from the start of the executable.
fn add(sandbox: &Sandbox, config: &str) -> Result<f64> {
    namespace(sandbox, true)?;
    let start = Instant::now();
    finish(spawn(sandbox, "ADD", config)?, "ADD")?;
    Ok(start.elapsed().as_secs_f64() * 1e3)
}

fn remove(boxes: &[Sandbox], config: &str) -> Result<()> {
    for sandbox in boxes {
        finish(spawn(sandbox, "DEL", config)?, "DEL")?;
        namespace(sandbox, false)?;
    }
    Ok(())
}
