//! Full maps, as a scan makes them: a pod sends a million packets, each of a flow of its own, to a pod of the other node
//! and one of its own. The slow path continues, with the running flows and with new ones; nothing arrives that a policy denies; the
//! agent does not grow; the pressure can be seen; and afterwards it is as it was.

mod connect;
mod figures;
mod tally;

use std::ops::RangeInclusive;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::json;
use tokio::time::{Instant, sleep};

use self::connect::{NewConnections, SERVER, Server};
use self::figures::{Figures, node_figures};
use self::tally::{Arrived, Counter, DENIED};
use super::Stage;
use super::load_pods::{NAMESPACE, New};
use super::scene::{Scene, Seen};
use testbed::cluster::config::OvsDatapath;
use testbed::cluster::{Bed, start_agent_in};
use testbed::nodes::PodName;
use testbed::tools::load::{PORT, now};
use testbed::tools::spray::{FIRST_PORT, Sprayed};
use testbed::traffic::Place;
use testbed::ui::say;

/// Packets a second. OVS's userspace datapath forwards about that many of new flows on one core.
const RATE: u32 = 20_000;
/// Flows that the small table can hold, and how many are sprayed at it.
const SMALL: u32 = 1_024;
const SMALL_FLOWS: u32 = 200_000;
/// Connections for which OVS gets room once.
const CONNECTIONS: u32 = 2_000;
/// The agent lists so many at most (`gateway/stale_udp.rs`).
const LISTABLE: u64 = 100_000;
/// As in the part about random changes: the slow path of a busy machine does stall at times.
const SILENCE: Duration = Duration::from_millis(2_500);
/// Part of the allowed packets that must arrive.
const ARRIVE: u64 = 4;
/// The agent may grow by so much, in kilobytes: keys and texts of what it shows.
const GROWTH_KB: u64 = 64 * 1024;
/// Until ended flows are out of the maps: a stretched refresh (10 s), and a limited number every 10 s.
const AGED: Duration = Duration::from_secs(120);
/// As many as the flows of the scene need by far.
const FEW: u64 = 100;
/// As many as cannot be overlooked: what ended seconds ago is still there.
const MANY: u64 = 5_000;
/// Entries of the scene's flows and of the connections that are made beside a scan, learned anew some times.
const LEARNED_BESIDE: u64 = 1_000;
/// Share of the packets that is fast when nothing is in the way: all but refreshes and handshakes.
const FAST: f64 = 0.9;

/// Who sprays, and who is sprayed at.
const SPRAYER: &str = "s";
const TARGETS: [&str; 2] = ["b", "c"];

/// What is watched from the beginning to the end.
struct World<'a> {
    bed: &'a Bed,
    scene: Scene<'a>,
    counters: Vec<Counter>,
    servers: Vec<Server>,
}

/// Runs it and checks.
pub(super) async fn run(stage: &mut Stage<'_>) -> Result<()> {
    let mut scene = Scene::new(stage.bed).await?;
    let nodes = scene.nodes.clone();
    scene.pods.add(New { name: SPRAYER, node: &nodes[0], role: "spray", annotations: &[] }).await?;
    let (mut counters, mut servers) = (Vec::new(), Vec::new());
    for name in TARGETS {
        let node = nodes[usize::from(name == "b") % nodes.len()].as_str();
        let pod = PodName { node, namespace: NAMESPACE, name };
        counters.push(Counter::start(stage.bed, &pod)?);
        servers.push(Server::start(stage.bed, &pod)?);
    }
    let mut world = World { bed: stage.bed, scene, counters, servers };
    without_policy(stage, &world).await?;
    policy(&world).await?;
    let flows = stage.flows;
    if stage.fast() {
        let case = Case { what: "scan", flows: flows.min(SMALL_FLOWS), full: Full::Scan };
        spray(stage, &mut world, case).await?;
    }
    spray(stage, &mut world, Case { what: "spray", flows, full: Full::Nothing }).await?;
    if stage.fast() {
        aged(stage, &world, "spray").await?;
        again(stage, &mut world, "spray").await?;
        agents(&world, &[&format!("--flow-table-size={SMALL}")]).await?;
        world.scene.dial().await?;
        let full = Full::FlowTable(u64::from(SMALL));
        spray(stage, &mut world, Case { what: "small table", flows: flows.min(SMALL_FLOWS), full }).await?;
        again(stage, &mut world, "small table").await?;
        let tracked = dpctl(stage.bed, &nodes[0], &["dpctl/ct-get-nconns"]);
        agents(&world, &[]).await?;
        world.scene.dial().await?;
        not_listed(stage, &world, tracked).await?;
    }
    connections_full(stage, &mut world).await?;
    let World { mut scene, counters, servers, .. } = world;
    drop((counters, servers));
    scene.pods.remove(SPRAYER).await?;
    let api: Api<NetworkPolicy> = Api::namespaced(scene.pods.client.clone(), NAMESPACE);
    api.delete("spray", &DeleteParams::default()).await.context("policy")?;
    scene.end().await
}

/// Restarts the agents of all nodes, with other flags.
async fn agents(world: &World<'_>, flags: &[&str]) -> Result<()> {
    for node in &world.scene.nodes {
        world.scene.pods.kill(node, "node-agent")?;
        tokio::task::block_in_place(|| start_agent_in(world.bed, node, flags, &[]))?;
        world.scene.pods.agent_ready(node).await?;
        world.scene.pods.agent_sees(node).await?;
    }
    Ok(())
}

/// The program that sends, in its pod.
fn sprayer(world: &World<'_>, flows: u32, twice: bool) -> Result<Child> {
    sprayer_of(&world.scene, SPRAYER, flows, twice, &TARGETS)
}

/// The same from any pod of the first node, to any pods.
pub(super) fn sprayer_of(
    scene: &Scene<'_>,
    from: &str,
    flows: u32,
    twice: bool,
    to: &[&str],
) -> Result<Child> {
    let (pods, bed) = (&scene.pods, scene.pods.bed);
    let pod = PodName { node: &scene.nodes[0], namespace: NAMESPACE, name: from };
    let mut command = bed.runtime().pod_command(bed, &pod, &bed.config().program("testbed"))?;
    command.args(["probe", "spray", "--flows", &flows.to_string(), "--rate", &RATE.to_string()]);
    command.args(["--from", &pods.ip(from)?.to_string()]);
    if twice {
        command.arg("--twice");
    }
    for name in to {
        command.arg(pods.ip(name)?.to_string());
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("the sprayer")
}

fn arrived(world: &World<'_>) -> Vec<Arrived> {
    world.counters.iter().map(Counter::arrived).collect()
}

/// A few flows to every port, and what arrives of them.
async fn few(world: &World<'_>) -> Result<Vec<Arrived>> {
    let before = arrived(world);
    let done =
        tokio::task::block_in_place(|| sprayer(world, 64, false)?.wait_with_output().context("the sprayer"))?;
    ensure!(done.status.success(), "the sprayer ended with {}", done.status);
    sleep(Duration::from_millis(700)).await;
    Ok(arrived(world).into_iter().zip(before).map(|(after, before)| after - before).collect())
}

/// A control: the counters see what the policy will deny.
async fn without_policy(stage: &mut Stage<'_>, world: &World<'_>) -> Result<()> {
    for (name, seen) in TARGETS.iter().zip(few(world).await?) {
        let text = format!("{seen:?}");
        let outcome = if seen.least() > 0 && seen.denied > 0 { Ok(text) } else { Err(text) };
        stage.checks.check(format_args!("without a policy packets to all ports reach {name}"), outcome);
    }
    Ok(())
}

/// Lets in what the load tool, the servers and most of the spray need, and waits until that holds.
async fn policy(world: &World<'_>) -> Result<()> {
    let port = |protocol: &str, port: u16| json!({"protocol": protocol, "port": port});
    let mut ports = Vec::new();
    for protocol in ["TCP", "UDP"] {
        ports.extend([port(protocol, PORT), port(protocol, SERVER)]);
        ports.push(json!({"protocol": protocol, "port": FIRST_PORT, "endPort": DENIED - 1}));
    }
    let object = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "spray", "namespace": NAMESPACE},
        "spec": {
            "podSelector": {"matchLabels": {"role": "none"}},
            "policyTypes": ["Ingress"],
            "ingress": [{"ports": ports}],
        },
    });
    let api: Api<NetworkPolicy> = Api::namespaced(world.scene.pods.client.clone(), NAMESPACE);
    let params = PatchParams::apply("laws").force();
    api.patch("spray", &params, &Patch::Apply(&object)).await.context("policy")?;
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let seen = few(world).await?;
        if seen.iter().all(|seen| seen.least() > 0 && seen.denied == 0) {
            return Ok(());
        }
        if Instant::now() > end {
            bail!("the policy does not come into force: {seen:?}");
        }
    }
}

/// OVS's connection tracking has room for a few connections: those that it has seen continue. (New connections do not, with any
/// datapath: their answers belong to no tracked connection.) With room again there are new connections again.
async fn connections_full(stage: &mut Stage<'_>, world: &mut World<'_>) -> Result<()> {
    if stage.bed.config().ovs_datapath != OvsDatapath::Netdev {
        return Ok(());
    }
    let mut usual = Vec::new();
    for node in &world.scene.nodes {
        usual.push(dpctl(stage.bed, node, &["dpctl/ct-get-maxconns"])?);
        dpctl(stage.bed, node, &["dpctl/ct-set-maxconns", &CONNECTIONS.to_string()])?;
    }
    let what = "OVS tracks too many connections";
    let full = Full::Connections;
    spray(stage, world, Case { what, flows: SMALL_FLOWS.min(stage.flows), full }).await?;
    for (node, usual) in world.scene.nodes.iter().zip(&usual) {
        let now = dpctl(stage.bed, node, &["dpctl/ct-get-nconns"])?;
        let good = now.parse::<u32>().is_ok_and(|now| now >= CONNECTIONS / 2);
        let text = format!("{now} with room for {CONNECTIONS}");
        let outcome = if good { Ok(text) } else { Err(text) };
        stage.checks.check(format_args!("{what}: on {node} it did"), outcome);
        dpctl(stage.bed, node, &["dpctl/ct-set-maxconns", usual])?;
    }
    let mut connections = NewConnections::default();
    connect(world, &mut connections)?;
    stage.checks.check(format_args!("{what}: with room again new ones are made"), connections.judge());
    Ok(())
}

/// An agent that starts looks through all connections, but not where the list of so many would keep the thread that forwards.
async fn not_listed(stage: &mut Stage<'_>, world: &World<'_>, tracked: Result<String>) -> Result<()> {
    if stage.bed.config().ovs_datapath != OvsDatapath::Netdev {
        return Ok(());
    }
    // It does so when it knows all services.
    sleep(Duration::from_secs(3)).await;
    let tracked: u64 = tracked?.parse().context("connections")?;
    let said = world.scene.pods.agent(&world.scene.nodes[0]).metrics()?;
    let said: u64 = said.sum("slipstream_node_stale_udp_failures_total", &[])?;
    let text = format!("{tracked} connections, said {said} times");
    let outcome = if tracked > LISTABLE && said > 0 { Ok(text) } else { Err(text) };
    stage.checks.check("an agent that starts does not list very many connections, and says so", outcome);
    Ok(())
}

/// Asks the switch of a node about its datapath.
fn dpctl(bed: &Bed, node: &str, args: &[&str]) -> Result<String> {
    Ok(bed.ovs(node, "ovs-appctl", args)?.trim().to_owned())
}

/// New connections to all targets.
fn connect(world: &World<'_>, connections: &mut NewConnections) -> Result<()> {
    let node = world.scene.nodes[0].clone();
    let client = Place::Pod { node, namespace: NAMESPACE.into(), name: "a".into() };
    for name in TARGETS {
        let to = world.scene.pods.ip(name)?;
        tokio::task::block_in_place(|| connections.make(world.bed, &client, to));
    }
    Ok(())
}

/// What has less room than the spray needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Full {
    Nothing,
    /// The flow cache, with room for so many flows.
    FlowTable(u64),
    /// OVS's connection tracking.
    Connections,
    /// Nothing: no flow has a second packet, and none is learned.
    Scan,
}

/// One spray.
#[derive(Clone, Copy, Debug)]
struct Case<'a> {
    what: &'a str,
    flows: u32,
    full: Full,
}

/// Sprays, watches, and judges.
async fn spray(stage: &mut Stage<'_>, world: &mut World<'_>, case: Case<'_>) -> Result<()> {
    let Case { what, flows, full } = case;
    let before = arrived(world);
    let at_first = figures(stage, world)?;
    world.scene.pods.log.take();
    let from = now();
    let mut child = sprayer(world, flows, !matches!(full, Full::Connections | Full::Scan))?;
    let mut connections = NewConnections::default();
    let mut most = at_first.clone();
    while child.try_wait()?.is_none() {
        if full != Full::Connections {
            connect(world, &mut connections)?;
        }
        for (most, now) in most.iter_mut().zip(figures(stage, world)?) {
            most.raise(&now);
        }
        sleep(Duration::from_millis(500)).await;
    }
    let to = now();
    let done = child.wait_with_output()?;
    let sprayed: Sprayed = serde_json::from_slice(&done.stdout).context("the sprayer said something else")?;
    let seen = world.scene.seen().await;
    // The counters report four times a second.
    sleep(Duration::from_secs(1)).await;
    say(format_args!(
        "  {what}: {} flows sent in {:.1} s ({} refused)",
        sprayed.sent, sprayed.seconds, sprayed.refused
    ));
    let whole = u64::from(flows);
    let outcome =
        if sprayed.sent == whole { Ok(String::new()) } else { Err(format!("{} of {whole}", sprayed.sent)) };
    stage.checks.check(format_args!("{what}: every packet was sent"), outcome);
    let came: Vec<_> = arrived(world).into_iter().zip(before).map(|(after, before)| after - before).collect();
    targets(stage, what, whole, &came);
    flows_go_on(stage, what, from..=to, &seen);
    if full != Full::Connections {
        stage.checks.check(format_args!("{what}: new connections are made"), connections.judge());
    }
    memory(stage, world, what, &at_first, &most);
    if stage.fast() && full != Full::Connections {
        pressure(stage, world, case, &at_first, &most);
    }
    Ok(())
}

/// What of a spray of so many packets came to the targets.
fn targets(stage: &mut Stage<'_>, what: &str, whole: u64, came: &[Arrived]) {
    // Six of eight ports are allowed, and each target gets its part, half of it by TCP.
    let share = whole * 3 / 4 / 2 / 2;
    for (name, came) in TARGETS.iter().zip(came) {
        let Arrived { tcp, udp, denied, missed } = *came;
        let text = format!("{tcp} of {share} by TCP, {udp} by UDP");
        let outcome = if came.least() >= share / ARRIVE { Ok(text) } else { Err(text) };
        stage.checks.check(format_args!("{what}: OVS goes on, what is allowed reaches {name}"), outcome);
        let outcome = if denied == 0 && missed == 0 {
            Ok(String::new())
        } else {
            Err(format!("{denied} arrived, {missed} were not seen"))
        };
        stage.checks.check(format_args!("{what}: nothing denied reaches {name}"), outcome);
    }
}

/// Whether the flows that ran already went on meanwhile.
fn flows_go_on(stage: &mut Stage<'_>, what: &str, time: RangeInclusive<u64>, flows: &[Seen]) {
    for seen in flows {
        let silence = Duration::from_nanos(seen.longest_silence(*time.start(), *time.end()));
        let text = format!(
            "{} messages, the longest silence {} ms, {} lost",
            seen.arrivals.len(),
            silence.as_millis(),
            seen.lost()
        );
        let outcome = if silence <= SILENCE { Ok(text) } else { Err(text) };
        stage.checks.check(format_args!("{what}: {} goes on", seen.name), outcome);
    }
}

/// Whether the agents took more memory meanwhile.
fn memory(stage: &mut Stage<'_>, world: &World<'_>, what: &str, first: &[Figures], most: &[Figures]) {
    for ((node, first), most) in world.scene.nodes.iter().zip(first).zip(most) {
        let text = format!("{} kB before, {} kB at most", first.resident_kb, most.resident_kb);
        let grown = most.resident_kb.saturating_sub(first.resident_kb);
        let outcome = if grown <= GROWTH_KB && first.resident_kb > 0 { Ok(text) } else { Err(text) };
        stage.checks.check(format_args!("{what}: the agent of {node} does not grow"), outcome);
    }
}

fn figures(stage: &Stage<'_>, world: &World<'_>) -> Result<Vec<Figures>> {
    let one = |node: &String| node_figures(stage, &world.scene, node);
    tokio::task::block_in_place(|| world.scene.nodes.iter().map(one).collect())
}

/// What could be seen of the maps while it went on.
fn pressure(stage: &mut Stage<'_>, world: &World<'_>, case: Case<'_>, first: &[Figures], most: &[Figures]) {
    let Case { what, full, .. } = case;
    let too_full: Vec<_> = most.iter().flat_map(Figures::too_full).collect();
    let outcome = if too_full.is_empty() { Ok(String::new()) } else { Err(too_full.join(", ")) };
    stage.checks.check(format_args!("{what}: no map has more entries than room"), outcome);
    // The sender has an entry for each UDP flow that OVS let out, the other node for each that arrived.
    let map = "FLOWS";
    for index in 0..2 {
        let (node, first, most) = (&world.scene.nodes[index], &first[index], &most[index]);
        let (entries, room) = most.map(map);
        let learned = most.learned.saturating_sub(first.learned);
        let text = format!("{entries} of {room} in {map}, {learned} learned");
        let good = match full {
            // The kernel keeps a few slots of each processor free.
            Full::FlowTable(room_wanted) => room == room_wanted && entries >= room / 2 && learned > 2 * room,
            Full::Scan => learned <= LEARNED_BESIDE && entries <= LEARNED_BESIDE,
            _ => learned > MANY && entries > MANY,
        };
        let outcome = if good { Ok(text) } else { Err(text) };
        let shows =
            if full == Full::Scan { "nothing is learned of it" } else { "slipctl shows the pressure" };
        stage.checks.check(format_args!("{what}: {shows} on {node}"), outcome);
        if full == Full::Scan {
            continue;
        }
        let shown = most.metrics.get(map).copied().unwrap_or_default();
        let text = format!("{} of {} entries", shown.0, shown.1);
        let good = shown.0 >= entries / 2 && shown.0 > FEW && shown.1 == room;
        let outcome = if good { Ok(text) } else { Err(text) };
        stage.checks.check(format_args!("{what}: the metrics show the pressure on {node}"), outcome);
    }
}

/// What has ended leaves the maps, and refreshes come as often as before.
async fn aged(stage: &mut Stage<'_>, world: &World<'_>, what: &str) -> Result<()> {
    let start = Instant::now();
    loop {
        let now = figures(stage, world)?;
        let left: u64 = now.iter().map(|f| f.map("FLOWS").0).sum();
        let refresh = now.iter().map(|f| f.refresh_ms).max().unwrap_or_default();
        let text =
            format!("after {} s {left} entries, refreshed every {refresh} ms", start.elapsed().as_secs());
        let good = left <= FEW && refresh == 2_000;
        if good || start.elapsed() > AGED {
            let outcome = if good { Ok(text) } else { Err(text) };
            stage.checks.check(format_args!("{what}: what has ended leaves the maps"), outcome);
            return Ok(());
        }
        sleep(Duration::from_secs(1)).await;
    }
}

/// New flows are learned and carried.
async fn again(stage: &mut Stage<'_>, world: &mut World<'_>, what: &str) -> Result<()> {
    world.scene.dial().await?;
    let before = figures(stage, world)?;
    sleep(Duration::from_secs(3)).await;
    let after = figures(stage, world)?;
    for ((node, before), after) in world.scene.nodes.iter().zip(&before).zip(&after) {
        let (fast, slow) = (after.fast - before.fast, after.slow - before.slow);
        #[expect(clippy::cast_precision_loss, reason = "a share of some thousand packets")]
        let share = fast as f64 / (fast + slow).max(1) as f64;
        let text = format!("{fast} packets of its tunnels fast, {slow} slow");
        let outcome = if share >= FAST && fast > FEW { Ok(text) } else { Err(text) };
        stage.checks.check(format_args!("{what}: afterwards new flows are fast on {node}"), outcome);
    }
    Ok(())
}
