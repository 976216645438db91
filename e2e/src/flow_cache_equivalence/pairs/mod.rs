//! Every pair of sides that OVS forwards between: the same packets by the flow cache and through OVS (`slipctl path node ovs`), on the same
//! connections, so that what was translated is the same. What is seen at the receiver and on the nodes' wires must be the same, byte
//! for byte from the Ethernet header on, but for the outer UDP source port, which OVS may choose anew at any time; and
//! identification, flags and flow label are those of the sender wherever a packet is seen. Each entry on a packet's way must have
//! counted it.

pub(super) mod header;
pub(super) mod mark;
pub(super) mod posts;
pub(super) mod route;
pub(super) mod seen;
pub(super) mod session;
pub(super) mod trace;
mod variants;
mod ways;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

use super::scene::Scene;
use crate::harness::Checks;
use posts::Posts;
use seen::Seen;
use session::{Session, fault};
use trace::{Entries, Hop, Side};
use ways::{Flow, PAIRS, Services};

/// How often a pass is made until all of it has come, and the caches are seen to have carried what they must: everything may be
/// forgotten at any time.
const TRIES: u32 = 5;

/// What a pass with the caches shows of a flow.
#[derive(Clone, Debug, Default)]
struct Fast {
    seen: Seen,
    /// The entries of both directions.
    hops: Vec<Hop>,
    fault: Option<String>,
}

/// Runs it and checks.
pub(super) fn run(scene: &mut Scene<'_>, checks: &mut Checks) -> Result<()> {
    let services = Services::create(scene)?;
    let flows = ways::flows(scene, &services)?;
    let posts = Posts::start(scene.bed)?;
    let mut session = Session { scene, posts, flows };
    let fast = fast(&mut session)?;
    session.scene.path("ovs")?;
    let slow = slow(&mut session);
    session.scene.path("auto")?;
    let slow = slow?;
    let mut pairs: BTreeSet<(Side, Side)> = BTreeSet::new();
    for flow in &session.flows {
        let nothing = Fast::default();
        let fast = fast.get(&flow.number).unwrap_or(&nothing);
        let outcome = judge(flow, fast, slow.get(&flow.number));
        if outcome.is_ok() {
            pairs.extend(trace::pairs(fast.hops.iter()));
        }
        checks.check(flow.name(), outcome);
    }
    let missing: Vec<_> = PAIRS.iter().filter(|pair| !pairs.contains(pair)).collect();
    let text = format!("{} pairs of sides", pairs.len());
    checks.check(
        "every pair of sides was carried by the cache",
        if missing.is_empty() { Ok(text) } else { Err(format!("{text}, not {missing:?}")) },
    );
    for reason in ["diverged", "dropped_changed"] {
        let count = session.scene.reason(0, reason)? + session.scene.reason(1, reason)?;
        let outcome = if count == 0 { Ok(String::new()) } else { Err(format!("{count} times")) };
        checks.check(format_args!("nothing is counted as {reason}"), outcome);
    }
    Ok(())
}

/// All packets by caches that know their flows.
fn fast(session: &mut Session<'_, '_>) -> Result<BTreeMap<u8, Fast>> {
    let mut left: Vec<usize> = (0..session.flows.len()).collect();
    let mut all = BTreeMap::new();
    for _ in 0..TRIES {
        session.learn(&left)?;
        let before = Entries::read(session.scene)?;
        let mut seen = session.play(&left)?;
        let after = Entries::read(session.scene)?;
        left.retain(|&index| {
            let flow = &session.flows[index];
            let seen = seen.remove(&flow.number).unwrap_or_default();
            let hops = Session::hops(flow, &before).unwrap_or_default();
            let fault = fault(flow, &seen).or_else(|| unproven(&hops, &after));
            let again = fault.is_some();
            all.insert(flow.number, Fast { seen, hops: hops.concat(), fault });
            again
        });
        if left.is_empty() {
            break;
        }
    }
    Ok(all)
}

/// Why the caches are not seen to have carried all of a flow.
fn unproven(hops: &[Vec<Hop>; 2], after: &Entries) -> Option<String> {
    if hops[0].is_empty() {
        return Some("the caches do not know the flow".to_owned());
    }
    hops.iter().find_map(|hops| trace::unproven(hops, after, variants::count()))
}

/// All packets through OVS.
fn slow(session: &mut Session<'_, '_>) -> Result<BTreeMap<u8, Seen>> {
    let mut left: Vec<usize> = (0..session.flows.len()).collect();
    let mut all = BTreeMap::new();
    for _ in 0..TRIES {
        let mut seen = session.play(&left)?;
        left.retain(|&index| {
            let flow = &session.flows[index];
            let seen = seen.remove(&flow.number).unwrap_or_default();
            let again = fault(flow, &seen).is_some();
            all.insert(flow.number, seen);
            again
        });
        if left.is_empty() {
            break;
        }
    }
    Ok(all)
}

fn judge(flow: &Flow, fast: &Fast, slow: Option<&Seen>) -> Result<String, String> {
    if let Some(fault) = &fast.fault {
        return Err(format!("cache: {fault}"));
    }
    let Some(slow) = slow else { return Err("nothing came through OVS".to_owned()) };
    if let Some(fault) = fault(flow, slow) {
        return Err(format!("slipctl path node ovs: {fault}"));
    }
    if let Some(difference) = fast.seen.difference(slow) {
        return Err(format!("cache and slipctl path node ovs: {difference}"));
    }
    let (pairs, expected) = (trace::pairs(fast.hops.iter()), flow.way.pairs.iter().copied().collect());
    if pairs != expected {
        return Err(format!("the entries are of {pairs:?}, not {expected:?}"));
    }
    let count = variants::count();
    let text = format!("{count} packets each way are the same");
    let pairs: Vec<String> =
        fast.hops.iter().map(|hop| format!("{:?} -> {:?}", hop.pair.0, hop.pair.1)).collect();
    Ok(format!("{text}; by {}", pairs.join(", ")))
}
