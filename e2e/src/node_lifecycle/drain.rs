//! Trial of suite `node_lifecycle`: a node is drained, deleted, and registered again.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::json;

use super::leftovers;
use super::world::{NAMESPACE, World};

const NODE: &str = "n2";
const MOVED: &str = "mover";

pub(super) fn run(world: &World<'_>) -> Result<String> {
    deployment(world)?;
    let begin = Instant::now();
    let drain = ["drain", NODE, "--ignore-daemonsets", "--force", "--delete-emptydir-data", "--timeout=90s"];
    world.bed.kubectl(&drain)?;
    available(world)?;
    let nodes = world.bed.kubectl(&[
        "get",
        "pods",
        "-n",
        NAMESPACE,
        "-l",
        &format!("app={MOVED}"),
        "-o",
        "jsonpath={.items[*].spec.nodeName}",
    ])?;
    ensure!(!nodes.contains(NODE), "the drained node still has pods: {nodes}");
    let moved = begin.elapsed().as_secs_f64();
    world.eventually("each pod has its own", || leftovers::check(world.bed).map(drop))?;
    let old = world.subnet(NODE)?;
    let kept = world.subnet("n1")?;
    // A kubelet that runs would not notice.
    world.bed.host(NODE).stop("kubelet", Duration::from_secs(20))?;
    world.bed.kubectl(&["delete", "node", NODE, "--timeout=60s"])?;
    let gone = world
        .eventually("the northbound database has nothing of it", || nothing_of_it(world, &old.to_string()));
    world.bed.host(NODE).restart("kubelet")?;
    let gone = gone?;
    // The agent's token was bound to the object that went. It reads the new one by itself, within a minute.
    world.eventually("the node has an object and the agent a token", || world.bed.renew_token(NODE))?;
    let back = world.eventually("the node is back and Ready", || {
        let now = world.node_is_ready(NODE)?;
        ensure!(now == "True", "its Ready is {now:?}");
        Ok(())
    })?;
    let new = world.subnet(NODE)?;
    ensure!(new != kept, "both nodes have {new}");
    world.start_staying(NODE)?;
    for pod in ["b1", "b2"] {
        let ip = world.address(pod)?;
        ensure!(new.contains(&ip), "{pod} has {ip}, which is not in {new}");
        world.answers(pod)?;
    }
    world.stream()?.goes_on(Duration::from_secs(2))?;
    world.bed.kubectl(&[
        "delete",
        "deployment",
        "-n",
        NAMESPACE,
        MOVED,
        "--cascade=foreground",
        "--timeout=60s",
    ])?;
    world.eventually("each pod has its own", || leftovers::check(world.bed).map(drop))?;
    Ok(format!(
        "pods moved after {moved:.1} s; deleted: nothing of it in OVN {gone} later; again: Ready after {back}, range {old} \
         then {new}, pods answer"
    ))
}

fn deployment(world: &World<'_>) -> Result<()> {
    let mut template = world.manifest(MOVED, NODE)?;
    let spec = &mut template["spec"];
    spec["nodeName"] = json!(null);
    // One on each node, so that one has to move.
    spec["topologySpreadConstraints"] = json!([{
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": MOVED}},
    }]);
    let spec = spec.clone();
    world.apply(json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": MOVED, "namespace": NAMESPACE},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": MOVED}},
            "template": {"metadata": {"labels": {"app": MOVED}}, "spec": spec},
        },
    }))?;
    available(world)
}

fn available(world: &World<'_>) -> Result<()> {
    let name = format!("deployment/{MOVED}");
    world.bed.kubectl(&["rollout", "status", "-n", NAMESPACE, &name, "--timeout=90s"]).map(drop)
}

/// Neither its switch, router and chassis' names, nor its range, nor a port of a pod in it.
fn nothing_of_it(world: &World<'_>, subnet: &str) -> Result<()> {
    let dump = crate::ovn_kubernetes_parity::northbound(world.bed)?;
    for (table, rows) in dump.as_object().into_iter().flatten() {
        for row in rows.as_array().into_iter().flatten() {
            let text = row.to_string();
            let named = text.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| word == NODE);
            ensure!(
                !named && !text.contains(subnet),
                "{table}: {}",
                text.chars().take(200).collect::<String>()
            );
        }
    }
    Ok(())
}
