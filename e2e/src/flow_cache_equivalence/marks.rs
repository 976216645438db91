//! Senders that write what looks like the fast path's numbers: the reserved flag of IPv4 with any identification, and flow labels of the
//! range. They do so while other flows are inside OVS with numbers of their own. Every packet comes to the one that it is for, and
//! nowhere else, with the identification or label that its sender wrote; the others' flows are learned as they are.

use std::time::Duration;
use std::{collections::BTreeSet, thread};

use anyhow::{Context, Result};
use api::admin::Action;

use super::cases::Addresses;
use super::frame::{Packet, Upper};
use super::pairs::header::Word;
use super::pairs::mark::Mark;
use super::pairs::posts::{Place, Posts, Sender};
use super::pairs::route;
use super::pairs::seen::Seen;
use super::pairs::trace::{Entries, spec};
use super::scene::{Scene, Who};
use crate::demo::echoes::PORT;
use crate::harness::Checks;

/// Numbers of the flows.
const FIRST: u8 = 200;
const VICTIM: u8 = 220;
/// Packets of each forger, and of the flow that is inside OVS meanwhile.
const BURST: u8 = 200;
/// Of them this many may get lost: OVS drops what it has no time for.
const LOST: usize = 20;
const PAUSE: Duration = Duration::from_micros(300);
const SETTLE: Duration = Duration::from_millis(300);
/// After a single packet.
const SINGLE: Duration = Duration::from_millis(20);
/// The first flow label of the range.
pub(super) const LABELS: u32 = 0xf_c000;

/// Packets of a forger.
struct Forger {
    name: &'static str,
    sender: Sender,
    /// Who gets them.
    to: Who,
    packet: Packet,
    number: u8,
}

impl Forger {
    /// One for each number that the packet could have, spread over all of them.
    fn burst(&self) -> Vec<(Mark, Packet)> {
        (0..BURST).map(|variant| (self.mark(variant), forged(&self.packet, self.mark(variant)))).collect()
    }

    fn mark(&self, variant: u8) -> Mark {
        Mark { flow: self.number, back: false, variant }
    }
}

/// The packet as its sender forges it.
fn forged(packet: &Packet, mark: Mark) -> Packet {
    let part = u16::from(mark.variant);
    Packet {
        reserved: true,
        id: part * (u16::MAX / u16::from(BURST)),
        label: Some(LABELS + u32::from(part) * (0x3fff / u32::from(BURST))),
        payload: mark.payload(64),
        ..packet.clone()
    }
}

/// Whether a receiver may see the one where the other was sent: the reserved flag, and the label's top bit where no number was left, may
/// be taken away at the entrance. Nothing else.
fn may_become(sent: Word, seen: Word) -> bool {
    match (sent, seen) {
        (Word::V4 { id, flags }, Word::V4 { id: came, flags: with }) => {
            id == came && flags & 0b011 == with & 0b011
        }
        (Word::V6 { label }, Word::V6 { label: came }) => came == label || came == label & !0x8_0000,
        _ => false,
    }
}

/// Runs it and checks.
pub(super) fn run(scene: &mut Scene<'_>, checks: &mut Checks) -> Result<()> {
    let mut posts = Posts::start(scene.bed)?;
    scene.open()?;
    for six in [false, true] {
        let forgers = forgers(scene, six)?;
        let victim = victim(scene, six);
        drop(posts.take(scene));
        let mut sent = Vec::new();
        // Turn by turn, so that there are always fresh notes.
        for part in 0..BURST / 50 {
            let victims: Vec<_> = (part * 50..part * 50 + 50)
                .map(|variant| Mark { flow: VICTIM + u8::from(six), back: false, variant })
                .map(|mark| (mark, numbered(&victim, mark)))
                .collect();
            let frames = victims.iter().map(|(_, packet)| packet.frame()).collect();
            posts.send(scene, Sender::Pod(Who::C), frames, PAUSE)?;
            sent.extend(victims);
            for forger in &forgers {
                let burst = forger.burst();
                let range = usize::from(part) * 50..usize::from(part) * 50 + 50;
                let part = burst.get(range).context("a burst is too short")?;
                let frames = part.iter().map(|(_, packet)| packet.frame()).collect();
                posts.send(scene, forger.sender, frames, PAUSE)?;
            }
        }
        thread::sleep(SETTLE);
        let entries = learned(scene, &mut posts, &victim, VICTIM + u8::from(six), &mut sent)?;
        let seen = Seen::by_flow(posts.take(scene));
        let nothing = Seen::default();
        let version = if six { 6 } else { 4 };
        for forger in &forgers {
            let seen = seen.get(&forger.number).unwrap_or(&nothing);
            let outcome = judge(seen, &forger.burst(), Place::Pod(forger.to), may_become)
                .and_then(|text| targets(&entries, &forger.packet, forger.to).map(|()| text));
            checks
                .check(format_args!("IPv{version}: {} sends what looks like numbers", forger.name), outcome);
        }
        let seen = seen.get(&(VICTIM + u8::from(six))).unwrap_or(&nothing);
        let outcome = judge(seen, &sent, Place::Pod(Who::B), |sent, seen| sent == seen)
            .and_then(|text| targets(&entries, &victim, Who::B).map(|()| text))
            .and_then(|text| {
                let known = spec(&victim).is_some_and(|spec| entries.valid(0, &spec).is_some());
                if known { Ok(format!("{text}; learned")) } else { Err(format!("{text}; not learned")) }
            });
        checks.check(format_args!("IPv{version}: another's flow meanwhile"), outcome);
    }
    let marks = scene.reason(0, "foreign_mark")?;
    for reason in ["diverged", "several_out"] {
        let count = scene.reason(0, reason)? + scene.reason(1, reason)?;
        let outcome = if count == 0 { Ok(String::new()) } else { Err(format!("{count} times")) };
        checks.check(format_args!("nothing is counted as {reason}"), outcome);
    }
    testbed::ui::say(format_args!("foreign_mark on n1: {marks}"));
    Ok(())
}

/// The entries, with that of the flow if it is learned at all: on a busy machine OVS may be late for every packet of a burst, so single
/// ones follow.
fn learned(
    scene: &mut Scene<'_>,
    posts: &mut Posts,
    packet: &Packet,
    flow: u8,
    sent: &mut Vec<(Mark, Packet)>,
) -> Result<Entries> {
    let spec = spec(packet).context("no flow")?;
    for variant in BURST..=u8::MAX {
        let entries = Entries::read(scene)?;
        if entries.valid(0, &spec).is_some() {
            return Ok(entries);
        }
        let mark = Mark { flow, back: false, variant };
        let one = numbered(packet, mark);
        posts.send(scene, Sender::Pod(Who::C), vec![one.frame()], PAUSE)?;
        sent.push((mark, one));
        thread::sleep(SINGLE);
    }
    thread::sleep(SETTLE);
    Entries::read(scene)
}

fn forgers(scene: &Scene<'_>, six: bool) -> Result<Vec<Forger>> {
    let addresses = Addresses::of(scene);
    let number = |index: u8| FIRST + index * 2 + u8::from(six);
    let ports = |index: u8| [21_000 + u16::from(number(index)), PORT];
    let pod = |to, index| addresses.packet(Who::A, to, six, ports(index), Upper::Udp);
    let (near, far) = (pod(Who::C, 0), pod(Who::B, 1));
    let own = |packet: &Packet, index| -> Result<Packet> {
        let route = route::to(scene, "n1", packet.destination)?;
        let macs = [route.next, route.own];
        Ok(Packet::new(macs, route.source, packet.destination, ports(index), Upper::Udp))
    };
    let forger = |name, sender, to, packet, index| Forger { name, sender, to, packet, number: number(index) };
    Ok(vec![
        forger("a pod, to its own node's", Sender::Pod(Who::A), Who::C, near.clone(), 0),
        forger("a pod, to another node's", Sender::Pod(Who::A), Who::B, far.clone(), 1),
        forger("the node, to its own pod", Sender::Management, Who::C, own(&near, 2)?, 2),
        forger("the node, to another node's", Sender::Management, Who::B, own(&far, 3)?, 3),
    ])
}

/// A flow of a pod that writes plain identifications.
fn victim(scene: &Scene<'_>, six: bool) -> Packet {
    let ports = [21_000 + u16::from(VICTIM) + u16::from(six), PORT];
    let packet = Addresses::of(scene).packet(Who::C, Who::B, six, ports, Upper::Udp);
    // Answers are not needed: UDP is used at once.
    Packet { label: None, ..packet }
}

fn numbered(packet: &Packet, mark: Mark) -> Packet {
    Packet { id: 5000 + u16::from(mark.variant), payload: mark.payload(64), ..packet.clone() }
}

/// Nearly all packets came once to the right pod, none to another, and each with a word that is allowed.
fn judge(
    seen: &Seen,
    sent: &[(Mark, Packet)],
    to: Place,
    allowed: fn(Word, Word) -> bool,
) -> Result<String, String> {
    if let Some(wrong) = seen.wrong() {
        return Err(wrong.clone());
    }
    let mut came = 0;
    for (mark, packet) in sent {
        let elsewhere: BTreeSet<_> = seen
            .places(*mark)
            .into_iter()
            .filter(|place| *place != to && !matches!(place, Place::Wire(_)))
            .collect();
        let count = seen.count(*mark, to);
        if !elsewhere.is_empty() || count > 1 {
            return Err(format!("{mark:?} came {count} times to {to:?}, and to {elsewhere:?}"));
        }
        came += count;
        let word = Word::sent(packet).ok_or("no IP packet was sent")?;
        for place in seen.places(*mark) {
            for frame in seen.frames(*mark, place) {
                let got = super::pairs::header::ip(frame).and_then(Word::of);
                if !got.is_some_and(|got| allowed(word, got)) {
                    return Err(format!("{word:x?} was sent, and {got:x?} seen at {place:?}"));
                }
            }
        }
    }
    let text = format!("{came} of {} came", sent.len());
    if came + LOST >= sent.len() { Ok(text) } else { Err(text) }
}

/// No entry of the flow carries to any other than this pod.
fn targets(entries: &Entries, packet: &Packet, to: Who) -> Result<(), String> {
    let spec = spec(packet).ok_or("no flow")?;
    let name = format!("{}/{}", super::scene::NAMESPACE, to.name());
    let wrong = entries.0.iter().flatten().filter(|flow| flow.flow == spec).find(|flow| match &flow.action {
        Action::Tunnel(_) => to != Who::B,
        Action::Local { pod, .. } => pod.as_deref() != Some(name.as_str()),
        Action::Deliver(_) => flow.pod.as_deref() != Some(name.as_str()),
    });
    wrong.map_or(Ok(()), |flow| Err(format!("an entry carries to another: {flow:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forged_words_are_of_the_range_and_differ() {
        for six in [false, true] {
            let ip = |last: u8| if six { format!("fd00::{last}") } else { format!("10.0.0.{last}") };
            let (a, b) = (ip(1).parse().unwrap(), ip(2).parse().unwrap());
            let packet = Packet::new([[2; 6], [4; 6]], a, b, [1, 2], Upper::Udp);
            let words: Vec<Word> = (0..BURST)
                .map(|variant| Mark { flow: 1, back: false, variant })
                .map(|mark| Word::sent(&forged(&packet, mark)).unwrap())
                .collect();
            for (index, word) in words.iter().enumerate() {
                assert!(!words[..index].contains(word));
                match word {
                    Word::V4 { flags, .. } => assert_eq!(flags & 0b100, 0b100),
                    Word::V6 { label } => assert!(*label >= LABELS),
                }
            }
        }
    }

    #[test]
    fn only_the_flag_and_the_top_bit_may_be_taken_away() {
        let v4 = |id, flags| Word::V4 { id, flags };
        assert!(may_become(v4(5, 0b110), v4(5, 0b110)) && may_become(v4(5, 0b110), v4(5, 0b010)));
        assert!(!may_become(v4(5, 0b110), v4(6, 0b110)) && !may_become(v4(5, 0b110), v4(5, 0b100)));
        let v6 = |label| Word::V6 { label };
        assert!(may_become(v6(0xf_c005), v6(0xf_c005)) && may_become(v6(0xf_c005), v6(0x7_c005)));
        assert!(!may_become(v6(0xf_c005), v6(0xf_c006)) && !may_become(v6(5), v4(5, 0)));
    }
}
