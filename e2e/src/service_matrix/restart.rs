//! UDP connections stay with their backends while the agents are replaced. A new agent looks through all tracked connections for those that
//! services do not have any more (`node-agent/src/gateway/stale_udp.rs`); here none is stale.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use crate::harness::Checks;
use anyhow::{Result, ensure};
use testbed::tools::Answer;
use testbed::tools::survey::Call;

use super::cell::{Cell, Client, Node, cells};
use super::oracle::ways;
use super::play::{by_client, call};
use super::scene::{Scene, comes_true};

/// How long a new agent may take.
const BACK: Duration = Duration::from_secs(30);
/// A new agent looks 0.7 s and 4 s after it knows all services. Later times find the same.
const LOOKED: Duration = Duration::from_secs(6);
/// Questions on each connection afterwards.
const QUESTIONS: u32 = 3;

/// What came of the connections of a client.
#[derive(Default)]
struct Tally {
    stayed: usize,
    /// They never were: the trials of the matrix tell why.
    silent: usize,
    wrong: Vec<String>,
}

/// Each cell of UDP that is served has one connection, from before the agents are replaced until after.
pub(super) fn check(scene: &mut Scene<'_>, checks: &mut Checks) -> Result<()> {
    let cells = cells().0.into_iter().filter(|cell| cell.udp && !ways(cell, &scene.world).is_empty());
    let cells: Vec<Cell> = cells.collect();
    let calls =
        by_client(&cells, |cell| Call { connections: 1, ..call(cell, &ways(cell, &scene.world), scene, 0) });
    let before = scene.call(&calls)?;
    scene.restart_agents()?;
    ensure!(comes_true(BACK, || Ok(scene.agents_ready()))?, "an agent is not ready after {BACK:?}");
    thread::sleep(LOOKED);
    let mut after: BTreeMap<_, _> = scene
        .again(QUESTIONS)?
        .into_iter()
        .map(|(client, outcomes)| (client, outcomes.into_iter()))
        .collect();
    let mut before: BTreeMap<_, _> =
        before.into_iter().map(|(client, outcomes)| (client, outcomes.into_iter())).collect();
    let mut tallies: BTreeMap<Client, Tally> = BTreeMap::new();
    for cell in &cells {
        let tally = tallies.entry(cell.client).or_default();
        let talk =
            before.get_mut(&cell.client).and_then(Iterator::next).and_then(|mut first| first.talks.pop());
        let Some(Answer::Reply(first)) = talk.map(|talk| talk.answer) else {
            tally.silent += 1;
            continue;
        };
        match after.get_mut(&cell.client).and_then(Iterator::next) {
            // A datagram may be lost.
            Some(again) if again.other == 0 && again.same > 0 => tally.stayed += 1,
            Some(again) => tally.wrong.push(format!(
                "{cell}: after {first}, {} had the same answer, {} another, {} none",
                again.same, again.other, again.lost
            )),
            None => tally.wrong.push(format!("{cell}: was not asked again")),
        }
    }
    for (client, Tally { stayed, silent, wrong }) in tallies {
        let text = format!("{stayed} stayed, {silent} were silent, {} wrong", wrong.len());
        let good = wrong.is_empty() && stayed > 9 * silent;
        let lines: String = wrong.iter().map(|line| format!("\n    {line}")).collect();
        checks.check(
            format!("{client}: UDP stays with its backend while agents are replaced"),
            if good { Ok(text) } else { Err(text + &lines) },
        );
    }
    // A connection that was ended may get the same backend again, and the same port.
    for node in [Node::N1, Node::N2] {
        let ended = scene.ended(node)?;
        let text = format!("{ended} ended");
        checks.check(
            format!("the new agent of {} takes no UDP connection for stale", node.name()),
            if ended == 0 { Ok(text) } else { Err(text) },
        );
    }
    Ok(())
}
