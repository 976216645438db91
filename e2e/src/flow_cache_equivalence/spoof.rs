//! A pod sends what another pod's cached flow looks like: with the other's addresses, or with one of them; and the right pod
//! sends its own cached flow with another's MAC, or to another station. Nothing of it may arrive, and the entry must not move.
//! The same bytes with the right MACs do arrive by the cache, so that the packets were right.

use std::thread;
use std::time::Duration;

use anyhow::Result;

use super::bytes::gather;
use super::cases::{Addresses, Case, Kind};
use super::frame::Packet;
use super::scene::{Scene, Who};
use super::warm_up::{Caches, learn};
use crate::harness::Checks;

/// Number of the first flow; those below are cases of the comparison.
const FIRST: u16 = 500;
/// Copies of each packet.
const COPIES: u64 = 3;
/// Until what passes has come.
const SETTLE: Duration = Duration::from_millis(100);

/// Runs it and checks.
pub(super) fn run(scene: &mut Scene<'_>, checks: &mut Checks) -> Result<()> {
    let addresses = Addresses::of(scene);
    let flows: Vec<Case> =
        (FIRST..).zip(Kind::all()).map(|(number, kind)| Case::flow(kind, number)).collect();
    for case in &flows {
        // Who is not the sender: on the sender's node, where the receiver is on the other, else on the other node.
        let (attacker, node) = if case.kind.far { (Who::C, 0) } else { (Who::B, 1) };
        let right = addresses.pair(case.kind, case.number).there;
        let right = Packet { id: Case::id(case.number), ..right };
        let own = addresses.packet(attacker, case.kind.to(), case.kind.six, right.ports, right.upper.clone());
        let other = addresses.packet(Who::C, Who::A, case.kind.six, right.ports, right.upper.clone());
        let [mac, station] = [other.macs[1], right.macs[0]];
        let mut wrong = vec![
            (
                attacker,
                node,
                "with the address and MAC of a",
                [own.macs[0], right.macs[1]],
                right.source,
                REASON,
            ),
            (attacker, node, "with the address of a", own.macs, right.source, REASON),
            (attacker, node, "with the MAC of a", [own.macs[0], right.macs[1]], own.source, REASON),
            (Who::A, 0, "its flow with the MAC of c", [station, mac], right.source, REASON),
        ];
        if case.kind.far {
            // On one node OVN's router would take it to where it belongs.
            wrong.push((
                Who::A,
                0,
                "its flow to the MAC of c",
                [mac, right.macs[1]],
                right.source,
                OTHER_MAC,
            ));
        }
        for (from, node, what, macs, source, reason) in wrong {
            let packet = Packet { macs, source, ..right.clone() };
            let outcome = attempt(scene, &addresses, case, &packet, (from, node), reason);
            checks.check(format!("{}: {} sends {what}", case.kind.name(), from.name()), outcome?);
        }
        checks.check(
            format_args!("{}: a sends the same", case.kind.name()),
            control(scene, &addresses, case, &right)?,
        );
    }
    Ok(())
}

/// Teaches the flow; what is known then.
fn known(scene: &mut Scene<'_>, addresses: &Addresses, case: &Case) -> Result<Caches> {
    learn(scene, addresses, &[case])?;
    scene.forget();
    Caches::read(scene)
}

/// The attacker sends; what came of it.
fn attempt(
    scene: &mut Scene<'_>,
    addresses: &Addresses,
    case: &Case,
    packet: &Packet,
    (attacker, node): (Who, usize),
    reason: &str,
) -> Result<Result<String, String>> {
    let mut before = known(scene, addresses, case)?;
    for _ in 0..2 {
        // What changed just before may end what was learned after it.
        if !before.know(addresses, case) {
            before = known(scene, addresses, case)?;
        }
    }
    let refused = scene.reason(node, reason)?;
    scene.tap(attacker)?.send(vec![packet.frame(); usize::try_from(COPIES)?], Duration::from_millis(1))?;
    thread::sleep(SETTLE);
    let came = gather(scene).get(&case.number).map_or(0, |seen| seen.count());
    let after = Caches::read(scene)?;
    let refused = scene.reason(node, reason)?.saturating_sub(refused);
    let [out, into] = addresses.keys(case.kind, case.number);
    let used = (before.carried(&after, 0, &out), before.carried(&after, 1, &into));
    if !before.know(addresses, case) {
        return Ok(Err("the cache does not know the flow".to_owned()));
    }
    let good = came == 0 && refused == COPIES && used == (Some(0), Some(0));
    let text =
        format!("{came} of {COPIES} came, {refused} refused as {reason}, the entries carried {used:?}");
    Ok(if good { Ok(format!("{refused} refused")) } else { Err(text) })
}

/// How the programs call it.
const REASON: &str = "source_mismatch";
/// The reason for a station that the entry is not for.
const OTHER_MAC: &str = "mac_mismatch";

/// The right pod sends the same packet.
fn control(
    scene: &mut Scene<'_>,
    addresses: &Addresses,
    case: &Case,
    packet: &Packet,
) -> Result<Result<String, String>> {
    learn(scene, addresses, &[case])?;
    scene.forget();
    let before = Caches::read(scene)?;
    scene.tap(Who::A)?.send(vec![packet.frame()], Duration::from_millis(1))?;
    thread::sleep(SETTLE);
    let came = gather(scene).get(&case.number).map_or(0, |seen| seen.count());
    let after = Caches::read(scene)?;
    let carried = before.carried(&after, 0, &addresses.keys(case.kind, case.number)[0]);
    let good = came == 1 && carried == Some(1);
    Ok(if good {
        Ok("arrives by the cache".to_owned())
    } else {
        Err(format!("{came} came, the cache carried {carried:?}"))
    })
}
