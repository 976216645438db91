//! Packets that OVN holds back for half a minute, as the next hop does not answer, and gives back when it does at last. Meanwhile the slots of
//! some of their notes are used again by thousands of others, and those of the rest are not. Nothing is learned from what was held, and
//! nobody else's flow by it; it leaves without a mark, and where its slot was left alone with what its sender wrote. The next packets
//! of the same flow are learned.
//!
//! OVN holds four packets of a next hop, and each further one gives them ten seconds more.

use std::net::IpAddr;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use api::MacAddr;

use super::cases::Addresses;
use super::frame::{Packet, Upper};
use super::marks::LABELS;
use super::pairs::header::{Word, ip};
use super::pairs::mark::Mark;
use super::pairs::posts::{Place, Posts, Sender};
use super::pairs::seen::Seen;
use super::pairs::trace::{Entries, spec};
use super::scene::{NAMESPACE, Scene, Who};
use super::tap::Tap;
use super::warm_up::{NOBODY, herald};
use crate::demo::echoes::PORT;
use crate::harness::Checks;
use testbed::cluster::config::{EXT_IP, node_ip, underlay_ip6, underlay_mac};
use testbed::nodes::PodName;
use testbed::tools::packets::{Frame, Offload};

/// The CPU whose slots are used again, and the one whose slots are left alone. A packet's note is made where it is sent.
const BUSY: &str = "0";
const QUIET: &str = "1";
/// When the packets of a flow are sent, and when the next hop answers, in seconds.
const SENT: [u64; 4] = [0, 8, 16, 24];
const ANSWER: u64 = 31;
/// Number of the first flow, and of those that use the slots.
const FIRST: u8 = 180;
const FILLER: u8 = 190;
/// Packets that use the slots, of each family, twice. One pod gets a quarter of a CPU's slots in a second.
const FILLERS: usize = 16_000;
/// After which packet they are sent, and whether of IPv6.
const FILLED: [&[bool]; 4] = [&[], &[false, true], &[false], &[true]];
/// Slots of a CPU for IPv4 and for IPv6, where there are two CPUs.
const SLOTS: [u64; 2] = [12_288, 6_144];
const AT_ONCE: usize = 2_000;
const PAUSE: Duration = Duration::from_micros(150);
/// Until what was held has come out, and the last change of OVN's flows is over.
const SETTLE: Duration = Duration::from_millis(700);
/// Packets that are sent afterwards, at most, until the flow is learned.
const LATER: u8 = 100;

/// A flow whose next hop does not answer.
struct Held {
    number: u8,
    six: bool,
    busy: bool,
    packet: Packet,
}

impl Held {
    fn name(&self) -> String {
        let slots = if self.busy { "its slots used again" } else { "its slots left alone" };
        format!("IPv{}, {slots}", if self.six { 6 } else { 4 })
    }

    fn mark(&self, variant: u8) -> Mark {
        Mark { flow: self.number, back: false, variant }
    }

    /// The packets that are held differ in what their sender writes.
    fn nth(&self, variant: u8) -> Packet {
        Packet {
            id: 0x3000 + u16::from(variant),
            label: Some(0x1_3000 + u32::from(variant)),
            payload: self.mark(variant).payload(64),
            ..self.packet.clone()
        }
    }
}

/// The next hops: nobody has these addresses.
fn next_hop(six: bool, busy: bool) -> IpAddr {
    let [a, b, c, _] = EXT_IP.octets();
    let ip = [a, b, c, 77 + u8::from(busy)].into();
    if six { underlay_ip6(ip).into() } else { IpAddr::V4(ip) }
}

/// Runs it and checks.
pub(super) fn run(scene: &mut Scene<'_>, checks: &mut Checks) -> Result<()> {
    let mut posts = Posts::start(scene.bed)?;
    scene.open()?;
    let flows = flows(scene);
    let mut busy = pinned(scene, Who::A, BUSY)?;
    let mut quiet = pinned(scene, Who::A, QUIET)?;
    let mut fillers = pinned(scene, Who::C, BUSY)?;
    let begin = Instant::now();
    let reasons = ["stray_mark", "note_expired", "note_old_epoch", "other_packet"];
    let read = |scene: &Scene<'_>| -> Result<Vec<u64>> {
        reasons.iter().map(|reason| scene.reason(0, reason)).collect()
    };
    let (mut noted, mut early) = ([0, 0], Vec::new());
    for (variant, at) in (0..).zip(SENT) {
        thread::sleep(Duration::from_secs(at).saturating_sub(begin.elapsed()));
        for flow in &flows {
            let tap = if flow.busy { &mut busy } else { &mut quiet };
            let packet = flow.nth(variant);
            tap.send(vec![herald(&packet), packet.frame()], PAUSE)?;
        }
        // Twice around. Of IPv6 OVN holds the last packet alone.
        for &six in FILLED[usize::from(variant)] {
            let before = scene.reason(0, "port_budget")?;
            let sent = fill(scene, &mut fillers, six)?;
            let refused = scene.reason(0, "port_budget")?.saturating_sub(before);
            noted[usize::from(six)] += sent.saturating_sub(refused);
            drop(fillers.take());
        }
        early.extend(posts.take(scene).into_iter().filter(|(place, _)| *place == Place::Outside));
    }
    thread::sleep(Duration::from_secs(ANSWER).saturating_sub(begin.elapsed()));
    early.extend(posts.take(scene).into_iter().filter(|(place, _)| *place == Place::Outside));
    let early = Seen::by_flow(early);
    let before = read(scene)?;
    posts.send(scene, Sender::Outside, answers()?, PAUSE)?;
    let held = begin.elapsed();
    thread::sleep(SETTLE);
    let seen = Seen::by_flow(posts.take(scene));
    let entries = Entries::read(scene)?;
    let after = read(scene)?;
    let counted: Vec<String> = reasons
        .iter()
        .zip(after.iter().zip(&before))
        .map(|(reason, (after, before))| format!("{reason} {}", after.saturating_sub(*before)))
        .collect();
    let text = format!("{noted:?} others of IPv4 and IPv6 were noted");
    let enough = noted.iter().zip(SLOTS).all(|(noted, slots)| *noted > slots);
    checks.check("the slots of one CPU were used again", if enough { Ok(text) } else { Err(text) });
    let nothing = Seen::default();
    for flow in &flows {
        let seen = seen.get(&flow.number).unwrap_or(&nothing);
        let early = early.get(&flow.number).unwrap_or(&nothing);
        let outcome = judge(flow, early, seen, &entries)
            .map(|text| format!("{text}; held for {:.1} s; {}", held.as_secs_f64(), counted.join(", ")));
        checks.check(format_args!("{}: given back", flow.name()), outcome);
    }
    for flow in &flows {
        let outcome = works(scene, &mut posts, flow)?;
        checks.check(format_args!("{}: the flow is learned then", flow.name()), outcome);
    }
    Ok(())
}

fn flows(scene: &Scene<'_>) -> Vec<Held> {
    let addresses = Addresses::of(scene);
    let mut list = Vec::new();
    for (number, (six, busy)) in (FIRST..).zip([(false, false), (false, true), (true, false), (true, true)]) {
        let ports = [21_000 + u16::from(number), PORT];
        // To its router, from where it goes to wherever.
        let packet = addresses.packet(Who::A, Who::B, six, ports, Upper::Udp);
        list.push(Held { number, six, busy, packet: Packet { destination: next_hop(six, busy), ..packet } });
    }
    list
}

/// A tap in a pod whose packets are all sent on one CPU.
fn pinned(scene: &Scene<'_>, who: Who, cpu: &str) -> Result<Tap> {
    let bed = scene.bed;
    let name =
        PodName { node: &scene.nodes[usize::from(who == Who::B)], namespace: NAMESPACE, name: who.name() };
    let mut command = bed.runtime().pod_command(bed, &name, Path::new("taskset"))?;
    command.args(["--cpu-list", cpu]).arg(bed.config().program("testbed"));
    Tap::start(command, "eth0", false).with_context(|| format!("pod {} on CPU {cpu}", who.name()))
}

/// Sends packets to a station that does not exist, which OVS drops, so that each is noted and none is learned.
fn fill(scene: &Scene<'_>, tap: &mut Tap, six: bool) -> Result<u64> {
    let ports = [21_000 + u16::from(FILLER) + u16::from(six), PORT];
    let mut packet = Addresses::of(scene).packet(Who::C, Who::A, six, ports, Upper::Udp);
    packet.macs[0] = NOBODY;
    packet.payload = Mark { flow: FILLER, back: false, variant: 0 }.payload(64);
    let frame = packet.frame();
    for _ in 0..FILLERS / AT_ONCE {
        tap.send(vec![frame.clone(); AT_ONCE], PAUSE)?;
    }
    Ok(u64::try_from(FILLERS)?)
}

/// What the next hops say at last, to all: the host outside has their addresses.
fn answers() -> Result<Vec<Frame>> {
    let own = underlay_mac(EXT_IP).parse::<MacAddr>()?.0;
    let node = underlay_mac(node_ip(1)).parse::<MacAddr>()?.0;
    let mut frames = Vec::new();
    for busy in [false, true] {
        if let IpAddr::V4(hop) = next_hop(false, busy) {
            // To all, and to the node alone.
            for (to, target) in [([0xff; 6], hop), (node, node_ip(1))] {
                let arp = arp_reply(to, own, hop.octets(), target.octets());
                frames.push(Frame { bytes: arp, offload: Offload::default() });
            }
        }
        let hop = next_hop(true, busy);
        let node6 = IpAddr::from(underlay_ip6(node_ip(1)));
        // Neighbour advertisement (RFC 4861, 4.4): solicited, override; with the address of the link layer.
        let upper = Upper::Icmp { kind: 136, code: 0, rest: [0x60, 0, 0, 0] };
        let mut packet = Packet::new([node, own], hop, node6, [0, 0], upper);
        packet.ttl = 255;
        if let IpAddr::V6(hop) = hop {
            packet.payload = [&hop.octets()[..], &[2, 1], &own].concat();
        }
        frames.push(packet.frame());
    }
    Ok(frames)
}

/// An ARP reply (RFC 826).
fn arp_reply(to: [u8; 6], own: [u8; 6], address: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let head = [0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 2];
    let mut bytes = [&to[..], &own, &head, &own, &address, &to, &target].concat();
    bytes.resize(60, 0);
    bytes
}

/// What came out at last: as many as OVN holds, and each at most once; without marks; and nothing was learned.
fn judge(flow: &Held, early: &Seen, seen: &Seen, entries: &Entries) -> Result<String, String> {
    let mut given_back = Vec::new();
    for variant in 0..4 {
        let mark = flow.mark(variant);
        if early.count(mark, Place::Outside) > 0 {
            return Err(format!("packet {variant} was not held"));
        }
        for frame in seen.frames(mark, Place::Outside) {
            let sent = Word::sent(&flow.nth(variant)).ok_or("no IP packet was sent")?;
            let word = ip(frame).and_then(Word::of).ok_or("no IP packet came")?;
            if is_marked(word) {
                return Err(format!("packet {variant} came with a mark: {word:x?}"));
            }
            // The last two were sent behind what uses the slots, or while it did.
            let kept = word == sent;
            if !kept && !flow.busy {
                return Err(format!("packet {variant}: {sent:x?} was sent, and {word:x?} came"));
            }
            given_back.push((variant, kept));
        }
    }
    let Some((first, _)) = given_back.first() else { return Err("nothing was given back".to_owned()) };
    let lost = given_back.iter().filter(|(_, kept)| !kept).count();
    let spec = spec(&flow.packet).ok_or("no flow")?;
    if entries.has(0, &spec) {
        return Err("an entry was made of what was held".to_owned());
    }
    let hop = next_hop(flow.six, flow.busy);
    let other = entries.0.iter().flatten().find(|entry| {
        let after = entry.translated.map_or(entry.flow.destination, |after| after.destination);
        after.ip() == hop && entry.flow.source != spec.source
    });
    if let Some(other) = other {
        return Err(format!("another's flow goes there: {other:?}"));
    }
    let alone =
        format!("{} packets from number {first} on, {lost} with another identification", given_back.len());
    if flow.busy && lost == 0 { Err(format!("{alone}: no slot was used again")) } else { Ok(alone) }
}

fn is_marked(word: Word) -> bool {
    match word {
        Word::V4 { flags, .. } => flags & 0b100 != 0,
        Word::V6 { label } => label >= LABELS,
    }
}

/// Later packets arrive as they were sent, and the flow is learned.
fn works(scene: &mut Scene<'_>, posts: &mut Posts, flow: &Held) -> Result<Result<String, String>> {
    let spec = spec(&flow.packet).context("no flow")?;
    drop(posts.take(scene));
    for variant in 10..10 + LATER {
        let packet = flow.nth(variant);
        posts.send(scene, Sender::Pod(Who::A), vec![packet.frame()], Duration::from_millis(20))?;
        if Entries::read(scene)?.valid(0, &spec).is_some() {
            thread::sleep(Duration::from_millis(50));
            let seen = Seen::by_flow(posts.take(scene)).remove(&flow.number).unwrap_or_default();
            let sent = Word::sent(&packet).context("no IP packet")?;
            let came = seen.count(flow.mark(variant), Place::Outside);
            let leak = (10..=variant).find_map(|one| {
                let sent = Word::sent(&flow.nth(one))?;
                seen.leak(flow.mark(one), sent)
            });
            let text = format!("with packet {} of {LATER}; {sent:x?}", variant - 9);
            return Ok(match leak {
                Some(leak) => Err(leak),
                None if came == 1 => Ok(text),
                None => Err(format!("learned, but the packet came {came} times")),
            });
        }
    }
    Ok(Err(format!("not after {LATER} packets")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flow_has_a_next_hop_of_its_own_and_is_seen_at_the_outside() {
        let hops: Vec<IpAddr> = [(false, false), (false, true), (true, false), (true, true)]
            .map(|(six, busy)| next_hop(six, busy))
            .into();
        let told = ["172.18.0.77", "172.18.0.78", "fd00:172:18::77", "fd00:172:18::78"];
        assert_eq!(hops, told.map(|ip| ip.parse::<IpAddr>().unwrap()));
    }

    #[test]
    fn the_next_hops_answer_by_arp_and_neighbour_discovery() {
        let frames = answers().unwrap();
        assert_eq!(frames.iter().filter(|frame| frame.bytes[12..14] == [8, 6]).count(), 4);
        let last = &frames.last().unwrap().bytes;
        // The address, and that of the link layer.
        assert_eq!((last[54], last.len()), (136, 14 + 40 + 8 + 16 + 8));
        let arp = &frames[0].bytes;
        assert_eq!((&arp[28..32], arp.len()), (&[172, 18, 0, 77][..], 60));
    }

    #[test]
    fn a_flag_or_a_label_of_the_range_is_a_mark() {
        assert!(is_marked(Word::V4 { id: 1, flags: 0b110 }) && !is_marked(Word::V4 { id: 1, flags: 0b010 }));
        assert!(is_marked(Word::V6 { label: LABELS }) && !is_marked(Word::V6 { label: LABELS - 1 }));
    }
}
