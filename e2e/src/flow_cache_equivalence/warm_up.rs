//! Teaching the caches: both directions of a flow go through OVS, a TCP connection from its SYN on, until the entries are there;
//! and what the entries say.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use super::cases::{Addresses, Case, tcp};
use super::frame::{ACK, Packet, SYN};
use super::scene::{Flow, FlowKey, Scene, Who};
use testbed::tools::packets::Frame;

/// Between two packets that teach.
const BRISK: Duration = Duration::from_micros(300);
/// How often a flow is taught before it is given up.
const LESSONS: u32 = 12;
/// How often flows are taught anew that were ended in between.
const ENDED: u32 = 3;
/// Before they are: a change is dealt with in steps, and without a pause one of them ends the flows every time.
const AGAIN: Duration = Duration::from_millis(500);
/// How often OVS is to be asked for a confirmation before that is given up.
const CONFIRMATIONS: u32 = 4;
/// Between the deadlines of entries that are learned in one lesson, of both directions.
const APART: Duration = Duration::from_millis(500);
/// For how long no refresh is due when flows are learned, unless something is forgotten: for what is done with a few packets.
const QUIET: Duration = Duration::from_secs(2);

/// A station that no switch knows: OVS drops what is sent to it.
pub(super) const NOBODY: [u8; 6] = [0x0a, 0x58, 0xff, 0xff, 0xff, 0xfe];

/// A packet of the same flow that OVS drops. UDP is learned from the second packet of a flow: sent before `packet`, it makes that one the
/// second, which is noted.
pub(super) fn herald(packet: &Packet) -> Frame {
    let mut herald = packet.clone();
    herald.macs[0] = NOBODY;
    herald.frame()
}

/// Lets OVS see both directions of each flow, a TCP connection from its SYN on.
pub(super) fn teach(scene: &mut Scene<'_>, addresses: &Addresses, list: &[&Case], rounds: u32) -> Result<()> {
    greet(scene, addresses, list)?;
    for _ in 0..rounds {
        talk(scene, addresses, list)?;
    }
    Ok(())
}

/// The handshakes.
fn greet(scene: &mut Scene<'_>, addresses: &Addresses, list: &[&Case]) -> Result<()> {
    for (who, flags) in [(false, SYN), (true, SYN | ACK), (false, ACK)] {
        lesson(scene, addresses, list.iter().filter(|case| !case.kind.udp), who, Some(flags))?;
    }
    Ok(())
}

/// A packet in each direction, two of UDP.
fn talk(scene: &mut Scene<'_>, addresses: &Addresses, list: &[&Case]) -> Result<()> {
    lesson(scene, addresses, list.iter(), false, None)?;
    lesson(scene, addresses, list.iter(), true, None)
}

fn lesson<'c>(
    scene: &mut Scene<'_>,
    addresses: &Addresses,
    list: impl Iterator<Item = &'c &'c Case>,
    back: bool,
    flags: Option<u8>,
) -> Result<()> {
    let mut frames: BTreeMap<Who, Vec<Frame>> = BTreeMap::new();
    for case in list {
        let pair = addresses.pair(case.kind, case.number);
        let (who, mut packet) = if back { (case.kind.to(), pair.back) } else { (Who::A, pair.there) };
        if let Some(flags) = flags {
            // SYN is a byte of its own (RFC 9293, 3.4), and the first one acknowledges nothing.
            packet.sequence -= u32::from(flags & SYN != 0);
            packet.acknowledged *= u32::from(flags & ACK != 0);
            packet.upper = tcp(flags);
            packet.payload.clear();
        }
        // UDP is learned from the second packet of a flow.
        let count = if case.kind.udp { 2 } else { 1 };
        frames.entry(who).or_default().extend(vec![packet.frame(); count]);
    }
    for (who, frames) in frames {
        scene.tap(who)?.send(frames, BRISK)?;
    }
    thread::sleep(Duration::from_millis(60));
    Ok(())
}

/// Teaches until the caches know the flows, and no refresh is due for a while. Those that they never know are seen in what was carried.
pub(super) fn learn(scene: &mut Scene<'_>, addresses: &Addresses, list: &[&Case]) -> Result<()> {
    learn_for(scene, addresses, list, QUIET)
}

/// The same, and no refresh is due for this time.
pub(super) fn learn_for(
    scene: &mut Scene<'_>,
    addresses: &Addresses,
    list: &[&Case],
    quiet: Duration,
) -> Result<()> {
    let mut left = list.to_vec();
    for _ in 0..ENDED {
        let never = until_known(scene, addresses, &left)?;
        confirm(scene, addresses, list, quiet)?;
        // The last step of dealing with an earlier change, which comes when OVS has revalidated, ends what was learned before it.
        let caches = Caches::read(scene)?;
        let is_never = |case: &Case| never.iter().any(|one| std::ptr::eq(*one, case));
        left.retain(|case| !caches.know(addresses, case) && !is_never(case));
        if left.is_empty() {
            break;
        }
        thread::sleep(AGAIN);
    }
    Ok(())
}

/// Teaches until the caches know the flows; those that they do not know after all rounds.
fn until_known<'c>(scene: &mut Scene<'_>, addresses: &Addresses, list: &[&'c Case]) -> Result<Vec<&'c Case>> {
    scene.open()?;
    let mut left = list.to_vec();
    greet(scene, addresses, &left)?;
    for round in 1..=LESSONS {
        talk(scene, addresses, &left)?;
        let caches = Caches::read(scene)?;
        left.retain(|case| !caches.know(addresses, case));
        if left.is_empty() {
            break;
        }
        if round % 4 == 0 {
            // A note of a flow that is no longer used is in the way for a second.
            thread::sleep(Duration::from_secs(1));
            greet(scene, addresses, &left)?;
        }
    }
    Ok(left)
}

/// Lets OVS confirm what is due within this time: above all what was just learned, as its first refresh comes soon.
fn confirm(scene: &mut Scene<'_>, addresses: &Addresses, list: &[&Case], quiet: Duration) -> Result<()> {
    let quiet = i64::try_from(quiet.as_millis())?;
    for _ in 0..CONFIRMATIONS {
        let caches = Caches::read(scene)?;
        let left = list.iter().filter_map(|&case| Some((case, caches.refresh_in_ms(addresses, case)?)));
        let soon: Vec<(&Case, i64)> = left.filter(|(_, left)| *left < quiet).collect();
        let Some(last) = soon.iter().map(|(_, left)| *left).max() else { return Ok(()) };
        thread::sleep(Duration::from_millis(u64::try_from(last).unwrap_or_default()) + APART);
        let soon: Vec<&Case> = soon.iter().map(|(case, _)| *case).collect();
        talk(scene, addresses, &soon)?;
    }
    Ok(())
}

/// What the caches of both nodes hold.
pub(super) struct Caches([BTreeMap<FlowKey, Flow>; 2]);

impl Caches {
    /// Reads them.
    pub(super) fn read(scene: &Scene<'_>) -> Result<Self> {
        let of =
            |node: usize| scene.nodes.get(node).context("no such node").and_then(|node| scene.flows(node));
        Ok(Self([of(0)?, of(1)?]))
    }

    /// Whether packets of the case's flow may use it all the way.
    pub(super) fn know(&self, addresses: &Addresses, case: &Case) -> bool {
        let known = |node: usize, key: &FlowKey| self.0[node].get(key).is_some_and(|flow| flow.valid);
        let [out, into] = addresses.keys(case.kind, case.number);
        known(0, &out) && (!case.kind.far || known(1, &into))
    }

    /// Milliseconds until the first refresh of the entries that carry the case's packets is due; nothing if the caches do not know the flow.
    fn refresh_in_ms(&self, addresses: &Addresses, case: &Case) -> Option<i64> {
        let [out, into] = addresses.keys(case.kind, case.number);
        let left = |node: usize, key: &FlowKey| {
            self.flow(node, key).filter(|flow| flow.valid).map(|flow| flow.refresh_in_ms)
        };
        let out = left(0, &out)?;
        if case.kind.far { Some(out.min(left(1, &into)?)) } else { Some(out) }
    }

    /// Why these and later counts do not show that the cache carried what it must of the case, and no more.
    pub(super) fn unproven(&self, later: &Self, addresses: &Addresses, case: &Case) -> Option<String> {
        let carried = |node: usize, key: &FlowKey| self.carried(later, node, key);
        let [out, into] = addresses.keys(case.kind, case.number);
        if !self.know(addresses, case) {
            return Some("the cache does not know the flow".to_owned());
        }
        let out = carried(0, &out);
        let wanted = case.carried;
        let into = if case.kind.far { carried(1, &into) } else { Some(wanted.into) };
        let good = out == Some(wanted.out) && into == Some(wanted.into);
        (!good).then(|| {
            format!("the caches carried {out:?} and {into:?}, not {} and {}", wanted.out, wanted.into)
        })
    }

    /// How many packets a flow's entry on a node carried between these and later counts; none if they went backwards.
    pub(super) fn carried(&self, later: &Self, node: usize, key: &FlowKey) -> Option<u64> {
        let count = |caches: &Self| caches.0[node].get(key).map(|flow| (flow.epoch, flow.packets));
        match (count(self), count(later)) {
            (Some((epoch, before)), Some((same, after))) if epoch == same => after.checked_sub(before),
            // It was learned again, or removed.
            (_, Some((_, after))) => Some(after),
            (_, None) => Some(0),
        }
    }

    /// The entry of a flow on a node.
    pub(super) fn flow(&self, node: usize, key: &FlowKey) -> Option<&Flow> {
        self.0[node].get(key)
    }
}
