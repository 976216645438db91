//! Lets the clients call, many cells at a time, and judges what came of it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::thread;
use std::time::Duration;

use crate::harness::Checks;
use anyhow::{Context, Result};
use testbed::exec;
use testbed::tools::survey::{Call, Outcome};
use testbed::ui::say;

use super::cell::{Backends, Cell, Client, Node, Target, cells};
use super::judge::{self, Answered, Caches, ROUND_TRIPS};
use super::oracle::{Way, ways};
use super::scene::{Scene, comes_true};
use super::world::BACKEND_PORTS;

/// Cells of each client at a time; their connections are open together.
const ROUND: usize = 40;
/// Times that a cell is tried when the cache was invalidated meanwhile, as it is when something changes on a node.
const TRIES: u32 = 5;
/// Times that it is tried otherwise: the OVS of a loaded machine stands still longer than an entry waits for its answer.
const AGAIN: u32 = 2;
/// On an emulated processor OVS revises its flows for seconds after a client that is new to a service with affinity. This much later, times
/// the machine's patience, what was slow is called again, and nothing that is new to a service.
const QUIET: Duration = Duration::from_millis(500);
/// How long OVN may take to carry out all services.
const SETTLED: Duration = Duration::from_secs(45);

/// Waits until the services are there for all clients.
pub(super) fn settle(scene: &mut Scene<'_>) -> Result<()> {
    scene.wait_ovn()?;
    let sample: Vec<Cell> = cells().0.into_iter().filter(is_sample).collect();
    let settled = comes_true(SETTLED, || {
        let calls = by_client(&sample, |cell| {
            let ways = ways(cell, &scene.world);
            Call { connections: 1, warm_up: 0, tries: 1, ..call(cell, &ways, scene, 0) }
        });
        let outcomes = scene.call(&calls)?;
        let mut places: BTreeMap<Client, usize> = BTreeMap::new();
        let good = sample.iter().all(|cell| {
            let place = places.entry(cell.client).or_default();
            let outcome = outcomes.get(&cell.client).and_then(|list| list.get(*place));
            *place += 1;
            let ways = ways(cell, &scene.world);
            outcome.is_some_and(|outcome| judge::answers(cell, &ways, outcome, 0).is_ok())
        });
        Ok(good)
    })?;
    if !settled {
        // The trials say of which.
        say(format_args!("not all services are served after {SETTLED:?}"));
    }
    Ok(())
}

/// A way to every service for each kind of client.
fn is_sample(cell: &Cell) -> bool {
    let target = match cell.client {
        Client::Outside => matches!(cell.target, Target::NodePort(_) | Target::LoadBalancer(_)),
        Client::Itself => false,
        // By NodePorts gateway routers learn their neighbours: of answers to one not yet known OVN holds four back, and drops the rest.
        _ => match cell.target {
            Target::ClusterIp | Target::LoadBalancer(_) => true,
            Target::NodePort(_) => !cell.kind.external_local && !cell.kind.internal_local,
            Target::HostPort | Target::ExternalIp(_) => false,
        },
    };
    target && !cell.udp && !cell.kind.affinity
}

pub(super) fn by_client(cells: &[Cell], call: impl Fn(&Cell) -> Call) -> BTreeMap<Client, Vec<Call>> {
    let mut calls: BTreeMap<Client, Vec<Call>> = BTreeMap::new();
    for cell in cells {
        calls.entry(cell.client).or_default().push(call(cell));
    }
    calls
}

/// What the client of a cell does.
pub(super) fn call(cell: &Cell, ways: &[Way], scene: &Scene<'_>, round_trips: u32) -> Call {
    let wait = |milliseconds: u64| u64::from(exec::patience()) * milliseconds;
    let plain = Call {
        udp: cell.udp,
        to: scene.world.destination(cell),
        warm_up: 0,
        settle_ms: 0,
        connections: 3,
        round_trips,
        timeout_ms: wait(1500),
        tries: 3,
    };
    if ways.is_empty() {
        // OVN's routers refuse 25 times a second at most.
        Call { connections: 1, timeout_ms: wait(300), tries: 20, ..plain }
    } else if cell.kind.affinity {
        // OVN drops the packet by which it learns affinity, and may learn beside the first connection (docs/services.md). What the kernel's
        // datapath remembers of before OVS revises in turns, which take seconds on an emulated processor.
        let settle_ms = wait(1000) - 1000;
        Call { warm_up: 1, settle_ms, connections: 6, timeout_ms: wait(400), tries: 8, ..plain }
    } else {
        plain
    }
}

/// A row of the matrix: the cells that differ in protocol, policies and affinity.
type Row = (Client, Target, Backends);

/// What came of a row.
#[derive(Debug, Default)]
struct Tally {
    fast: usize,
    slow: usize,
    refused: usize,
    /// Fast only when called again.
    later: usize,
    wrong: Vec<String>,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fast, slow, refused, later, wrong } = self;
        write!(f, "{fast} fast, {slow} by OVS, {refused} refused, {} wrong", wrong.len())?;
        if *later > 0 {
            write!(f, "; {later} fast when called again")?;
        }
        wrong.iter().try_for_each(|line| write!(f, "\n    {line}"))
    }
}

/// All cells with such an address, of a family.
pub(super) fn check(
    scene: &mut Scene<'_>,
    ebpf: bool,
    six: bool,
    takes: impl Fn(Target) -> bool,
    checks: &mut Checks,
) -> Result<()> {
    let cells = cells().0.into_iter().filter(|cell| cell.six == six && takes(cell.target));
    let mut queue: BTreeMap<Client, VecDeque<(Cell, u32)>> = BTreeMap::new();
    let mut rows: BTreeMap<Row, Tally> = BTreeMap::new();
    for cell in cells {
        rows.entry((cell.client, cell.target, cell.kind.backends)).or_default();
        queue.entry(cell.client).or_default().push_back((cell, 1));
    }
    let mut ports = BTreeSet::new();
    let before = if ebpf { scene.reasons()? } else { BTreeMap::new() };
    // On a slow machine the first ones' entries must not be gone before all are looked at.
    let of_round = (ROUND / exec::patience() as usize).max(1);
    while queue.values().any(|list| !list.is_empty()) {
        let round: Vec<(Cell, u32)> =
            queue.values_mut().flat_map(|list| list.drain(..list.len().min(of_round))).collect();
        let played = play(scene, ebpf, &round)?;
        for ((cell, tries), seen) in round.into_iter().zip(played.seen) {
            if let Ok(Seen { port: Some(port), .. }) = seen
                && !cell.kind.affinity
            {
                ports.insert(port);
            }
            let row = rows.entry((cell.client, cell.target, cell.kind.backends)).or_default();
            row.later += usize::from(matches!(seen, Ok(Seen { later: true, .. })));
            match seen {
                Ok(Seen { wrong_speed: Some(_), .. })
                    if tries < exec::patience() * if played.invalidated { TRIES } else { AGAIN } =>
                {
                    queue.entry(cell.client).or_default().push_back((cell, tries + 1));
                }
                Ok(Seen { wrong_speed: Some(why), .. }) | Err(why) => {
                    row.wrong.push(format!("{cell}: {why}"))
                }
                Ok(Seen { fast: true, .. }) => row.fast += 1,
                Ok(Seen { port: None, .. }) => row.refused += 1,
                Ok(_) => row.slow += 1,
            }
        }
    }
    let family = if six { "IPv6" } else { "IPv4" };
    let wrong = rows.values().any(|tally| !tally.wrong.is_empty());
    for ((client, target, backends), tally) in rows {
        let what = format!("{client} -> {target}, backend {backends}, {family}");
        let text = tally.to_string();
        checks.check(what, if tally.wrong.is_empty() { Ok(text) } else { Err(text) });
    }
    if ebpf && wrong {
        // Why packets went through OVS, for who looks for the cause.
        for ((node, before), after) in before.iter().zip(scene.reasons()?.values()) {
            say(format_args!("{} counted meanwhile: {}", node.name(), after.since(before, 0)));
        }
    }
    // Otherwise affinity would show nothing. A host port has one.
    if !takes(Target::HostPort) {
        let all = ports.len() == BACKEND_PORTS.concat().len();
        let text = format!("ports {ports:?}");
        checks.check("without affinity all endpoints answer", if all { Ok(text) } else { Err(text) });
    }
    Ok(())
}

/// What was right of a cell.
struct Seen {
    /// Of the endpoint that answered last; none where it was refused.
    port: Option<u16>,
    /// It had to be fast on some node, and was.
    fast: bool,
    /// Only when it was called again.
    later: bool,
    wrong_speed: Option<String>,
}

/// One round.
struct Played {
    /// For each cell, or what was wrong.
    seen: Vec<Result<Seen, String>>,
    /// A node's cache was invalidated meanwhile.
    invalidated: bool,
}

fn play(scene: &mut Scene<'_>, ebpf: bool, round: &[(Cell, u32)]) -> Result<Played> {
    let cells: Vec<Cell> = round.iter().map(|(cell, _)| *cell).collect();
    let round_trips = if ebpf { ROUND_TRIPS } else { ROUND_TRIPS / 10 };
    let before = if ebpf { scene.changes()? } else { Vec::new() };
    let calls = by_client(&cells, |cell| call(cell, &ways(cell, &scene.world), scene, round_trips));
    let outcomes = scene.call(&calls)?;
    let caches = if ebpf { caches(scene)? } else { Caches::new() };
    let after = if ebpf { scene.changes()? } else { Vec::new() };
    let mut outcomes = in_turn(outcomes);
    let mut seen = Vec::new();
    for cell in &cells {
        let outcome = outcomes.get_mut(&cell.client).and_then(Iterator::next);
        let outcome = outcome.with_context(|| format!("nothing came of {cell}"))?;
        let ways = ways(cell, &scene.world);
        let answered = judge::answers(cell, &ways, &outcome, round_trips);
        seen.push(answered.map(|answered| judge_speed(cell, ebpf, answered.as_ref(), &caches)));
    }
    if exec::patience() > 1 && seen.iter().any(is_slow) {
        judge_again(scene, &cells, &mut seen, round_trips)?;
    }
    Ok(Played { seen, invalidated: before != after })
}

fn caches(scene: &Scene<'_>) -> Result<Caches> {
    [Node::N1, Node::N2].into_iter().map(|node| Ok((node, scene.flows(node)?))).collect()
}

fn in_turn(outcomes: BTreeMap<Client, Vec<Outcome>>) -> BTreeMap<Client, std::vec::IntoIter<Outcome>> {
    outcomes.into_iter().map(|(client, list)| (client, list.into_iter())).collect()
}

fn is_slow(judged: &Result<Seen, String>) -> bool {
    matches!(judged, Ok(Seen { wrong_speed: Some(_), .. }))
}

/// Calls what was slow once more, and nothing else, and judges that: by now no client is new to its service.
fn judge_again(
    scene: &mut Scene<'_>,
    cells: &[Cell],
    seen: &mut [Result<Seen, String>],
    round_trips: u32,
) -> Result<()> {
    thread::sleep(exec::patient(QUIET));
    let slow: Vec<Cell> =
        cells.iter().zip(&*seen).filter(|(_, judged)| is_slow(judged)).map(|(cell, _)| *cell).collect();
    let calls = by_client(&slow, |cell| call(cell, &ways(cell, &scene.world), scene, round_trips));
    let mut outcomes = in_turn(scene.call(&calls)?);
    let caches = caches(scene)?;
    for (cell, judged) in cells.iter().zip(seen).filter(|(_, judged)| is_slow(judged)) {
        let outcome = outcomes.get_mut(&cell.client).and_then(Iterator::next);
        let outcome = outcome.with_context(|| format!("nothing came of {cell} when it was called again"))?;
        let ways = ways(cell, &scene.world);
        let answered = judge::answers(cell, &ways, &outcome, round_trips);
        *judged = answered.map(|answered| {
            let seen = judge_speed(cell, true, answered.as_ref(), &caches);
            Seen { later: seen.wrong_speed.is_none(), ..seen }
        });
    }
    Ok(())
}

fn judge_speed(cell: &Cell, ebpf: bool, answered: Option<&Answered<'_>>, caches: &Caches) -> Seen {
    let Some(answered) = answered else {
        return Seen { port: None, fast: false, later: false, wrong_speed: None };
    };
    let fast = ebpf && answered.way.legs.iter().any(|leg| !leg.back);
    let wrong_speed = if ebpf { answered.wrong_speed(cell.udp, caches) } else { None };
    Seen { port: Some(answered.way.endpoint.port), fast, later: false, wrong_speed }
}
