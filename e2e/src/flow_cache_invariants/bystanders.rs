//! While pods come and go and endpoints change elsewhere, flows that have nothing to do with it stay on the fast path, lose nothing, and
//! are refreshed; a change of *their* policies ends them all the same.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Service, ServiceSpec};
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::load_pods::NAMESPACE;
use super::scene::{FLOWS, Scene, Seen};
use super::{Stage, ms, nanos};
use crate::reasons::Reasons;
use crate::scale::elsewhere::{Elsewhere, Rates};
use testbed::cluster::config::node_ip;
use testbed::tools::load::{PORT, now};

/// What goes on meanwhile.
pub(super) const BUSY: Rates = Rates { pods: 50, endpoints: 20 };
/// New clients a second of a service with affinity.
const NEWCOMERS: u32 = 200;
/// Its affinity, in seconds: flows that are learned go while others come.
const AFFINITY: u32 = 5;
/// How long the flows are watched.
const WATCHED: Duration = Duration::from_secs(12);
/// Fewest packets of a flow's ends that are carried by the cache, of all: refreshes are a packet in 2 s, of 500 a second.
const FAST: f64 = 0.99;
/// Longest that a message may take: the control plane has the same processors.
const LONGEST: Duration = Duration::from_millis(500);
/// Longest from the return of `ovn-nbctl --wait=hv`, when ovn-controller has changed br-int, to the last message that got through:
/// what OVS needs for its own datapath, on a busy machine.
const REVOKED: Duration = Duration::from_millis(150);
/// Flows to a service, beside those of the scene.
const SERVICE_FLOWS: [(u32, bool, &str); 2] = [(4, false, "TCP to a service"), (5, true, "UDP to a service")];
const _: () = assert!(FLOWS.len() == 4, "flows of the scene are numbered from 0");

/// Packets from and to pods, by path, and refreshes, of one node.
#[derive(Clone, Debug, Default)]
struct Counts {
    fast: u64,
    slow: u64,
    refreshed: u64,
    /// Packets by the reason why they went slow, or what was learned.
    reasons: Reasons,
    /// Lines of the metrics about invalidations of everything.
    unscoped: Vec<String>,
    /// Invalidations of everything because br-int changed.
    everything: u64,
}

/// Runs it and checks.
pub(super) async fn run(stage: &mut Stage<'_>) -> Result<()> {
    ensure!(stage.fast(), "without eBPF there is no fast path to stay on: --datapath ebpf");
    let mut scene = Scene::new(stage.bed).await?;
    let address = service(&mut scene, "by", false).await?.cluster_ip.context("the service has no address")?;
    for (number, udp, _) in SERVICE_FLOWS {
        scene.pods.dial_address(number, "a", SocketAddr::new(address.parse()?, PORT), udp)?;
    }
    let elsewhere = Elsewhere::begin(stage.bed, &scene.pods.client, BUSY).await?;
    // Connections to the service, and the first pods' switches, are new.
    sleep(Duration::from_secs(3)).await;
    scene.pods.log.take();
    let before = counts(stage, &scene)?;
    let from = now();
    sleep(WATCHED).await;
    let seen = all_seen(&scene).await;
    let after = counts(stage, &scene)?;
    let (pods, endpoints) = elsewhere.rates();
    let busy = format!("{pods:.0} pods and {endpoints:.0} endpoint changes a second");
    let enough = pods > f64::from(BUSY.pods) * 0.7 && endpoints > f64::from(BUSY.endpoints) * 0.5;
    stage.checks.check("enough goes on elsewhere", if enough { Ok(busy) } else { Err(busy) });
    judge(stage, &seen, from, &before, &after, "while pods and endpoints come and go")?;
    let revoked = revoked(stage, &scene, &all_flows()).await;
    stage.checks.check("a revoked flow ends meanwhile", revoked.map_err(|error| format!("{error:#}")));
    elsewhere.end().await?;
    newcomers(stage, &mut scene).await?;
    let services: Api<Service> = Api::namespaced(scene.pods.client.clone(), NAMESPACE);
    for name in ["by", "sticky"] {
        services.delete(name, &DeleteParams::default()).await?;
    }
    for (number, ..) in SERVICE_FLOWS {
        scene.pods.order("a", &testbed::tools::load::Order::Drop(number))?;
    }
    scene.end().await
}

/// Makes a service with `b` behind it. With affinity it has a node port.
async fn service(scene: &mut Scene<'_>, name: &str, affinity: bool) -> Result<ServiceSpec> {
    scene.pods.patch("b", json!({"metadata": {"labels": {"by": "yes"}}})).await?;
    let ports = ["TCP", "UDP"].map(|protocol| {
        json!({"name": protocol.to_lowercase(), "protocol": protocol, "port": PORT, "targetPort": PORT})
    });
    let mut spec = json!({"selector": {"by": "yes"}, "ports": ports});
    if affinity {
        spec["type"] = "NodePort".into();
        spec["sessionAffinity"] = "ClientIP".into();
        spec["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": AFFINITY}});
    }
    let object: Service = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec,
    }))?;
    let services: Api<Service> = Api::namespaced(scene.pods.client.clone(), NAMESPACE);
    let made = services.create(&PostParams::default(), &object).await.context("the service")?;
    sleep(Duration::from_secs(3)).await;
    made.spec.context("the service has no specification")
}

/// Clients that nobody has seen before come to a service with affinity, so that OVS learns a flow for each, and forgets it later.
async fn newcomers(stage: &mut Stage<'_>, scene: &mut Scene<'_>) -> Result<()> {
    let spec = service(scene, "sticky", true).await?;
    let port = spec.ports.iter().flatten().find(|port| port.protocol.as_deref() == Some("UDP"));
    let port = port.and_then(|port| port.node_port).context("the service has no node port")?;
    let node = scene.nodes.first().context("no node")?.clone();
    let to = format!("{}:{port}", node_ip(1));
    let bed = stage.bed;
    let mut command = bed.host("ext").command(bed.config().program("testbed"))?;
    command.args(["probe", "newcomers", "--rate", &NEWCOMERS.to_string(), &to]);
    let mut clients = command.spawn().context("the clients")?;
    sleep(Duration::from_secs(2)).await;
    let learned = || -> Result<u64> {
        let flows = bed.agent(&node).status()?["cache"]["scopedChanges"]["flows"].as_u64();
        flows.context("no count of scoped changes")
    };
    let changes = learned()?;
    scene.pods.log.take();
    let before = counts(stage, scene)?;
    let from = now();
    sleep(WATCHED).await;
    let seen = all_seen(scene).await;
    let after = counts(stage, scene)?;
    let changes = learned()? - changes;
    let ended = clients.try_wait()?;
    clients.kill()?;
    clients.wait()?;
    let said = format!("{changes} changes of flows in {WATCHED:?}, the clients' process: {ended:?}");
    let enough = changes > u64::from(NEWCOMERS) * WATCHED.as_secs() / 4 && ended.is_none();
    stage.checks.check("OVS learns a flow for each new client", if enough { Ok(said) } else { Err(said) });
    judge(stage, &seen, from, &before, &after, "while new clients come")
}

fn judge(
    stage: &mut Stage<'_>,
    seen: &[Seen],
    from: u64,
    before: &BTreeMap<String, Counts>,
    after: &BTreeMap<String, Counts>,
    when: &str,
) -> Result<()> {
    for flow in seen {
        stage.checks.check(format!("{} is not disturbed {when}", flow.name), undisturbed(flow, from));
    }
    for (node, before) in before {
        let after = after.get(node).context("a node is gone")?;
        stage.checks.check(format!("{node}: bystanders stay on the fast path {when}"), stayed(before, after));
    }
    Ok(())
}

/// What has arrived of all flows.
async fn all_seen(scene: &Scene<'_>) -> Vec<Seen> {
    scene.seen_of(&all_flows()).await
}

/// Those of the scene, and those to the service.
fn all_flows() -> Vec<(bool, &'static str)> {
    let names = FLOWS.iter().map(|(_, udp, name)| (*udp, *name));
    names.chain(SERVICE_FLOWS.iter().map(|(_, udp, name)| (*udp, *name))).collect()
}

fn undisturbed(flow: &Seen, from: u64) -> Result<String, String> {
    let (longest, silence) = (flow.longest_way(), flow.longest_silence(from, now()));
    let text = format!(
        "{} messages, {} lost, the longest took {} ms",
        flow.arrivals.len(),
        flow.lost(),
        ms(longest)
    );
    let good = !flow.arrivals.is_empty()
        && (flow.lost() == 0 || !flow.udp)
        && longest < nanos(LONGEST)
        && silence < nanos(LONGEST) * 2;
    if good { Ok(text) } else { Err(text) }
}

fn stayed(before: &Counts, after: &Counts) -> Result<String, String> {
    let (fast, slow) = (after.fast - before.fast, after.slow - before.slow);
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    let share = fast as f64 / (fast + slow).max(1) as f64;
    let (refreshed, everything) = (after.refreshed - before.refreshed, after.everything - before.everything);
    let unscoped = after.unscoped.join(", ");
    let text = format!(
        "{:.2} % of {} packets, {refreshed} refreshes, {everything} times everything was invalidated ({unscoped}); {}",
        share * 100.0,
        fast + slow,
        after.reasons.since(&before.reasons, 20)
    );
    if share >= FAST && refreshed > 0 { Ok(text) } else { Err(text) }
}

fn counts(stage: &Stage<'_>, scene: &Scene<'_>) -> Result<BTreeMap<String, Counts>> {
    let one = |node: &String| {
        let agent = stage.bed.agent(node);
        let (counters, status) = (agent.counters()?, agent.status()?);
        let endpoints = counters["endpoints"].as_array().context("no endpoints")?;
        let sum = |path: &str| -> u64 {
            let of = |one: &Value, way: &str| one[way][path]["packets"].as_u64().unwrap_or_default();
            endpoints.iter().map(|one| of(one, "in") + of(one, "out")).sum()
        };
        Ok((
            node.clone(),
            Counts {
                fast: sum("fast"),
                slow: sum("slow"),
                unscoped: agent
                    .page("/metrics")?
                    .lines()
                    .filter(|line| line.contains("fastpath_unscoped") || line.contains("fastpath_bumps"))
                    .filter(|line| !line.starts_with('#') && !line.ends_with(" 0"))
                    .map(str::to_owned)
                    .collect(),
                reasons: Reasons::of(&status)?,
                refreshed: status["packetReasons"]["refreshed"].as_u64().unwrap_or_default(),
                everything: status["cache"]["bumps"]["flows"]
                    .as_u64()
                    .context("no count of invalidations")?,
            },
        ))
    };
    scene.nodes.iter().take(2).map(one).collect()
}

/// An ACL on the receiver's port drops what the cache carries; what was sent after that must not arrive. `flows` as for [`Scene::seen_of`].
pub(super) async fn revoked(
    stage: &Stage<'_>,
    scene: &Scene<'_>,
    flows: &[(bool, &'static str)],
) -> Result<String> {
    let mut latest = 0;
    for _ in 0..3 {
        let port = api::ovn_name::pod_port(NAMESPACE, "b");
        let matched = format!("outport == \"{port}\" && udp");
        let acl =
            ["--wait=hv", "--type=switch", "acl-add", &scene.nodes[1], "to-lport", "30000", &matched, "drop"];
        stage.bed.nbctl(&acl)?;
        let began = now();
        scene.pods.log.take();
        sleep(Duration::from_secs(1)).await;
        let seen = scene.seen_of(flows).await;
        let to_b = seen.iter().filter(|flow| flow.udp && flow.name != "UDP on one node");
        let last = to_b.flat_map(|flow| flow.arrivals.iter().map(|arrival| arrival.sent)).max().unwrap_or(0);
        latest = latest.max(last.saturating_sub(began));
        stage.bed.nbctl(&[
            "--wait=hv",
            "--type=switch",
            "acl-del",
            &scene.nodes[1],
            "to-lport",
            "30000",
            &matched,
        ])?;
        sleep(Duration::from_secs(2)).await;
        let back = scene.seen_of(flows).await;
        ensure!(back.iter().all(|flow| !flow.arrivals.is_empty()), "not every flow came back: {back:?}");
    }
    let text =
        format!("the last message that got through was sent {} ms after OVN had changed br-int", ms(latest));
    ensure!(latest < nanos(REVOKED), "{text}");
    Ok(text)
}
