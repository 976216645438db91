//! The same packets on three paths: by the flow cache, through OVS with the cache switched off (`slipctl path node ovs`), and
//! on a cluster with `--datapath=ovs`. What every pod gets must be the same, byte for byte.
//!
//! Compared, for each case: at each of the three pods the packets on the wire ([`segments::wire`]) in their order, all bytes from
//! the Ethernet header on, and the VLAN tag that the kernel took out. Not compared: how segments are put together, and whether
//! a checksum is left to the device; that follows from the way and not from the verdict. But a packet that the kernel calls checked
//! must have a right checksum.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use anyhow::Result;

use super::cases::{self, Addresses, Arrives, Case};
use super::checksum::pseudo_header;
use super::frame::{TCP, UDP};
use super::scene::{Scene, Who};
use super::segments;
use super::warm_up::{Caches, learn_for, teach};
use crate::harness::Checks;
use testbed::tools::packets::{CHECKED, Capture, Frame, to_hex};

/// Between two packets, so that they come in their order whichever way each of them takes.
const PAUSE: Duration = Duration::from_millis(2);
/// Until the last packet has come; OVN's answers come by way of ovn-controller.
const SETTLE: Duration = Duration::from_millis(400);
/// For how long no refresh may be due: all packets of all cases are sent in it.
const QUIET: Duration = Duration::from_secs(5);
/// How often a case is tried until all of it has come, and the cache is seen to have carried what it must: everything may be
/// forgotten at any time.
const TRIES: u32 = 4;

/// What came to a pod: VLAN tag and bytes of each packet.
type Arrived = Vec<(Option<u32>, Vec<u8>)>;

/// What came of a case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    at: BTreeMap<Who, Arrived>,
    /// What is wrong with it by itself.
    wrong: Vec<String>,
}

impl Seen {
    /// Packets at all pods.
    pub(super) fn count(&self) -> usize {
        self.at.values().map(Vec::len).sum()
    }
}

/// What came of all cases, and what the caches carried of each.
#[derive(Debug, Default)]
pub(super) struct Pass {
    pub(super) addresses: Option<Vec<[IpAddr; 2]>>,
    seen: BTreeMap<u16, Seen>,
    unproven: BTreeMap<u16, String>,
}

impl Pass {
    /// Whether something is missing of a case: OVS loses packets when others keep the machine busy.
    fn lacks(&self, case: &Case) -> bool {
        let came = self.seen.get(&case.number).map_or(0, Seen::count);
        match case.arrives {
            Arrives::Exactly(count) => came != count,
            Arrives::Whatever => came == 0,
        }
    }
}

/// Sends all cases through OVS.
pub(super) fn slow(scene: &mut Scene<'_>) -> Result<Pass> {
    let addresses = Addresses::of(scene);
    let list = cases::all(&addresses);
    let mut left: Vec<&Case> = list.iter().collect();
    let mut pass = Pass { addresses: Some(addresses.ips.to_vec()), ..Pass::default() };
    for _ in 0..TRIES {
        scene.flush()?;
        teach(scene, &addresses, &left, 2)?;
        pass.seen.extend(send(scene, &left)?);
        left.retain(|case| pass.lacks(case));
        if left.is_empty() {
            break;
        }
    }
    Ok(pass)
}

/// Sends all cases with a cache that knows their flows.
pub(super) fn fast(scene: &mut Scene<'_>) -> Result<Pass> {
    let addresses = Addresses::of(scene);
    let list = cases::all(&addresses);
    scene.flush()?;
    let mut pass = Pass { addresses: Some(addresses.ips.to_vec()), ..Pass::default() };
    let mut left: Vec<&Case> = list.iter().collect();
    for _ in 0..TRIES {
        learn_for(scene, &addresses, &left, QUIET)?;
        let before = Caches::read(scene)?;
        let seen = send(scene, &left)?;
        let after = Caches::read(scene)?;
        pass.seen.extend(seen);
        pass.unproven = left
            .iter()
            .filter_map(|case| Some((case.number, before.unproven(&after, &addresses, case)?)))
            .collect();
        left.retain(|case| pass.unproven.contains_key(&case.number) || pass.lacks(case));
        if left.is_empty() {
            break;
        }
    }
    Ok(pass)
}

/// Compares what came of each case: by the cache, with the cache switched off, and on the cluster without eBPF.
pub(super) fn compare(scene: &Scene<'_>, [cache, switched, plain]: [&Pass; 3], checks: &mut Checks) {
    for case in cases::all(&Addresses::of(scene)) {
        checks.check(&case.name, judge(&case, cache, switched, plain));
    }
}

fn judge(case: &Case, cache: &Pass, switched: &Pass, plain: &Pass) -> Result<String, String> {
    let all = [("cache", cache), ("slipctl path node ovs", switched), ("--datapath=ovs", plain)];
    let asked = if case.unasked.is_some() { &all[..2] } else { &all[..] };
    let seen: Vec<(&str, Seen)> = asked
        .iter()
        .map(|(name, pass)| (*name, pass.seen.get(&case.number).cloned().unwrap_or_default()))
        .collect();
    let mut problems: Vec<String> = seen
        .iter()
        .flat_map(|(name, seen)| seen.wrong.iter().map(move |wrong| format!("{name}: {wrong}")))
        .collect();
    if let Arrives::Exactly(count) = case.arrives {
        let other = seen.iter().filter(|(_, seen)| seen.count() != count);
        problems
            .extend(other.map(|(name, seen)| format!("{name}: {} packets came, not {count}", seen.count())));
    }
    problems.extend(cache.unproven.get(&case.number).map(|why| format!("cache: {why}")));
    let mut differences: Vec<String> = seen
        .windows(2)
        .filter_map(|pair| {
            let [(one, first), (other, second)] = pair else { return None };
            Some(format!("{one} and {other}: {}", difference(first, second)?))
        })
        .collect();
    let mut note = case.unasked.map(|why| format!("; {why}")).unwrap_or_default();
    if let Some(why) = case.known {
        if differences.first().is_some_and(|first| first.starts_with("cache")) {
            note += &format!("; otherwise through OVS, as known: {why}");
            differences.remove(0);
        } else {
            problems.push(format!("the same through OVS, and not otherwise as is known: {why}"));
        }
    }
    problems.extend(differences);
    let came = seen.first().map_or(0, |(_, seen)| seen.count());
    let carried = format!("{came} packets{note}");
    if problems.is_empty() { Ok(carried) } else { Err(problems.join("; ")) }
}

/// The first thing in which two outcomes differ.
pub(super) fn difference(one: &Seen, other: &Seen) -> Option<String> {
    Who::ALL.into_iter().find_map(|who| {
        let empty = Vec::new();
        let list = |seen: &'_ Seen| seen.at.get(&who).unwrap_or(&empty).clone();
        let (one, other) = (list(one), list(other));
        let text = |(tag, bytes): &(Option<u32>, Vec<u8>)| format!("{tag:x?} {}", to_hex(bytes));
        if one.len() != other.len() {
            return Some(format!("{} gets {} and {} packets", who.name(), one.len(), other.len()));
        }
        let at = one.iter().zip(&other).position(|(a, b)| a != b)?;
        let (a, b) = (&one[at], &other[at]);
        let byte = a.1.iter().zip(&b.1).position(|(a, b)| a != b).unwrap_or(a.1.len().min(b.1.len()));
        Some(format!(
            "packet {at} to {} differs from byte {byte} on:\n  {}\n  {}",
            who.name(),
            text(a),
            text(b)
        ))
    })
}

/// Sends the packets of the cases, and gathers what comes of each.
fn send(scene: &mut Scene<'_>, list: &[&Case]) -> Result<BTreeMap<u16, Seen>> {
    scene.forget();
    let mut at = 0;
    let order: Vec<&(Who, Frame)> = list.iter().flat_map(|case| &case.packets).collect();
    while let Some((who, _)) = order.get(at) {
        // As many as one pod sends one after another.
        let run: Vec<Frame> =
            order[at..].iter().take_while(|(next, _)| next == who).map(|(_, frame)| frame.clone()).collect();
        at += run.len();
        scene.tap(*who)?.send(run, PAUSE)?;
        thread::sleep(PAUSE);
    }
    thread::sleep(SETTLE);
    let mut all = gather(scene);
    all.retain(|number, _| list.iter().any(|case| case.number == *number));
    Ok(all)
}

/// What the taps have seen, by case.
pub(super) fn gather(scene: &Scene<'_>) -> BTreeMap<u16, Seen> {
    let mut all: BTreeMap<u16, Seen> = BTreeMap::new();
    for who in Who::ALL {
        for capture in scene.member(who).tap.take() {
            if let Some(number) = cases::number(&capture.frame.bytes) {
                take(all.entry(number).or_default(), who, &capture);
            }
        }
    }
    all
}

fn take(seen: &mut Seen, who: Who, capture: &Capture) {
    if capture.frame.offload.flags & CHECKED != 0 && !is_right(&capture.frame.bytes) {
        seen.wrong.push(format!("{} was told that a wrong checksum is right", who.name()));
    }
    match segments::wire(&capture.frame) {
        Ok(list) => {
            let list = list.into_iter().map(|bytes| (capture.vlan, bytes));
            seen.at.entry(who).or_default().extend(list);
        }
        Err(error) => seen.wrong.push(format!("{}: {error:#}", who.name())),
    }
}

/// Whether the checksum of TCP or UDP is right; true for all other packets.
fn is_right(bytes: &[u8]) -> bool {
    let check = || -> Option<bool> {
        let ip = bytes.get(14..)?;
        let (source, destination, protocol, at, end): (IpAddr, IpAddr, u8, usize, usize) =
            match ip.first()? >> 4 {
                4 => {
                    let address = |at: usize| Some(IpAddr::from(*ip.get(at..)?.first_chunk::<4>()?));
                    let end = u16::from_be_bytes([*ip.get(2)?, *ip.get(3)?]);
                    (address(12)?, address(16)?, *ip.get(9)?, usize::from(ip.first()? & 0xf) * 4, end.into())
                }
                6 => {
                    let address = |at: usize| Some(IpAddr::from(*ip.get(at..)?.first_chunk::<16>()?));
                    let end = 40 + u16::from_be_bytes([*ip.get(4)?, *ip.get(5)?]);
                    (address(8)?, address(24)?, *ip.get(6)?, 40, end.into())
                }
                _ => return None,
            };
        let upper = ip.get(at..end)?;
        let without = protocol == UDP && upper.get(6..8)? == [0, 0];
        if without || !matches!(protocol, TCP | UDP) {
            return None;
        }
        Some(pseudo_header(source, destination, protocol, upper.len()).add(upper).folded() == 0xffff)
    };
    check().unwrap_or(true)
}
