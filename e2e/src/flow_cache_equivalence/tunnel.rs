//! Geneve packets made by hand on the underlay, like those of a cached flow but for one thing. None of them may get to a
//! pod by the entry, and what does get to a pod is what OVS lets through: the same with the cache switched off.
//!
//! They are put on the second node's own wire, by the switch's end of it: the switch itself would drop or repair some of them, as
//! its kernel looks at IP headers. The outer source's MAC is the first node's: from another one the second node's OVS would learn a
//! wrong MAC for it, as its neighbour table learns from tunnelled packets too. The control is the right packet: it is no other than
//! the first node's own, and the cache takes it.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use api::MacAddr;
use etherparse::PacketBuilder;

use super::bytes::{Seen, difference, gather};
use super::cases::{Addresses, Case, Kind};
use super::checksum::fix_ipv4;
use super::frame::Packet;
use super::scene::{Scene, Who};
use super::tap::Tap;
use super::warm_up::{Caches, learn};
use crate::harness::Checks;
use testbed::cluster::config::{node_ip, underlay_mac};
use testbed::tools::packets::{Frame, Offload};

/// Numbers of the flows.
const FIRST: u16 = 520;
/// Numbers of flows that are not known yet.
const POISONED: [u16; 3] = [530, 531, 532];
/// Between two packets of which the second shall come while the first is still remembered.
const QUICK: Duration = Duration::from_millis(2);
/// Until what passes has come.
const SETTLE: Duration = Duration::from_millis(60);
/// The reason of a packet whose flow the cache does not know.
const MISS: &str = "miss";
/// IANA's port of Geneve (RFC 8926, 3.3).
pub(super) const GENEVE_PORT: u16 = 6081;
/// How often the right packet is tried.
const CONTROLS: u32 = 3;
/// Offsets in the packet: outer IPv4, UDP, Geneve, OVN's option, inner Ethernet.
const IP: usize = 14;
const UDP: usize = 34;
const GENEVE: usize = 42;
const OPTION: usize = 50;
const INNER: usize = 58;

/// What is wrong with a packet.
struct Fault {
    name: &'static str,
    /// How the programs call it.
    reason: &'static str,
    /// What the receiver's pods know of it through OVS; the cache must not say otherwise.
    make: fn(&mut Vec<u8>),
    /// Lengths and the outer header's checksum are made to fit afterwards.
    fits: bool,
}

impl Fault {
    /// Everything else is right.
    const fn of(name: &'static str, reason: &'static str, make: fn(&mut Vec<u8>)) -> Self {
        Self { name, reason, make, fits: true }
    }

    /// A length or a checksum is what is wrong.
    const fn misfit(name: &'static str, reason: &'static str, make: fn(&mut Vec<u8>)) -> Self {
        Self { name, reason, make, fits: false }
    }
}

const FAULTS: &[Fault] = &[
    Fault::of("another inner destination MAC", "mac_mismatch", |p| p[INNER + 5] ^= 1),
    Fault::of("another inner source MAC", "mac_mismatch", |p| p[INNER + 11] ^= 1),
    Fault::of("outer source that nobody knows", "unknown_remote", |p| p[IP + 15] = 77),
    Fault::of("another outer MAC", "other_destination", |p| p[5] ^= 1),
    Fault::of("another outer destination", "other_destination", |p| p[IP + 19] = 77),
    Fault::of("an outer header of another length", "", |p| p[IP] = 0x46),
    Fault::of("an outer fragment", "fragment", |p| p[IP + 6] = 0x20),
    Fault::of("an outer protocol that is not UDP", "", |p| p[IP + 9] = 6),
    Fault::misfit("a wrong outer header checksum", "outer_header", |p| p[IP + 10] ^= 1),
    Fault::misfit("an outer UDP length that is too small", "odd_length", |p| p[UDP + 5] -= 2),
    Fault::misfit("bytes behind the outer packet", "odd_length", |p| p.extend([0; 4])),
    Fault::of("bytes behind the inner packet", "odd_length", |p| p.extend([0; 4])),
    Fault::of("an inner packet that is cut in its payload", "odd_length", |p| p.truncate(p.len() - 2)),
    Fault::of("another VNI", "other_way", |p| p[GENEVE + 6] ^= 1),
    Fault::of("a VNI that nobody has", "other_way", |p| p[GENEVE + 4] ^= 0x40),
    Fault::of("another logical ingress port", "other_way", |p| p[OPTION + 5] ^= 1),
    Fault::of("another logical egress port", "other_way", |p| p[OPTION + 7] ^= 1),
    Fault::of("a logical egress port that nobody has", "other_way", |p| p[OPTION + 6] ^= 0x7f),
    Fault::of("another class of option", "other_options", |p| p[OPTION] ^= 1),
    Fault::of("another type of option", "other_options", |p| p[OPTION + 2] ^= 1),
    Fault::of("no option", "other_options", |p| {
        p.drain(OPTION..INNER);
        p[GENEVE] = 0;
    }),
    Fault::of("a second option", "other_options", |p| {
        p.splice(INNER..INNER, [0xff, 0xff, 1, 1, 0, 0, 0, 0]);
        p[GENEVE] = 4;
    }),
    Fault::of("a frame of another kind than Ethernet", "bad_protocol_type", |p| p[GENEVE + 2] = 0x08),
    Fault::of("version 1", "bad_geneve_version", |p| p[GENEVE] |= 0x40),
    Fault::of("a control packet", "other_options", |p| p[GENEVE + 1] |= 0x80),
    Fault::of("a wrong outer UDP checksum", "outer_checksum", |p| p[UDP + 7] = 1),
    Fault::of("a UDP port that is not Geneve's", "", |p| p[UDP + 3] ^= 1),
    Fault::of("another inner flow", MISS, |p| p[INNER + 14 + 20 + 1] ^= 1),
    Fault::of("an inner TTL of 1", "low_ttl", |p| inner_ttl(p, 1)),
    Fault::of("an inner VLAN tag", "not_ip", |p| {
        p.splice(INNER + 12..INNER + 12, [0x81, 0, 0, 100]);
    }),
    Fault::of("an outer congestion mark", "congestion_mark", |p| p[IP + 1] |= 3),
    Fault::of("a cut inner packet", "", |p| p.truncate(INNER + 14 + 10)),
];

/// Sets the inner TTL, and the header's checksum right.
fn inner_ttl(packet: &mut [u8], ttl: u8) {
    let header = &mut packet[INNER + 14..INNER + 34];
    header[8] = ttl;
    fix_ipv4(header);
}

/// Runs it and checks.
pub(super) fn run(scene: &mut Scene<'_>, checks: &mut Checks) -> Result<()> {
    let addresses = Addresses::of(scene);
    let kinds = [true, false].map(|udp| Kind { udp, six: false, far: true });
    let flows: Vec<Case> = (FIRST..).zip(kinds).map(|(number, kind)| Case::flow(kind, number)).collect();
    let program = scene.bed.config().program("testbed");
    let mut uplink = Tap::start(scene.bed.host("switch").network_command(program)?, &scene.nodes[1], false)?;
    let mut fast = Vec::new();
    for case in &flows {
        learn(scene, &addresses, &[case])?;
        let right = outer(scene, &addresses, case)?;
        let mut taken = control(scene, &addresses, case, &mut uplink, &right)?;
        for _ in 1..CONTROLS {
            if taken.is_ok() {
                break;
            }
            // Everything may be forgotten at any time.
            learn(scene, &addresses, &[case])?;
            taken = control(scene, &addresses, case, &mut uplink, &right)?;
        }
        checks.check(format_args!("{}: the right packet by hand", case.kind.name()), taken);
        for fault in FAULTS {
            let frame = broken(&right, fault);
            fast.push(attempt(scene, &addresses, case, &mut uplink, &frame, fault)?);
        }
    }
    let poisoned = poison(scene, &addresses, &flows[0], &mut uplink)?;
    checks
        .check("a packet from an unknown outer source before the first right one teaches nothing", poisoned);
    // The entry of a flow that was not used meanwhile may be gone.
    let rights = flows.iter().map(|case| {
        learn(scene, &addresses, &[case])?;
        outer(scene, &addresses, case)
    });
    let rights: Vec<Vec<u8>> = rights.collect::<Result<_>>()?;
    scene.path("ovs")?;
    let slow = through_ovs(scene, &mut uplink, &flows, &rights);
    scene.path("auto")?;
    let slow = slow?;
    let names = flows
        .iter()
        .flat_map(|case| FAULTS.iter().map(move |fault| format!("{}: {}", case.kind.name(), fault.name)));
    for ((name, fast), slow) in names.zip(&fast).zip(&slow) {
        let outcome = fast.as_ref().map_err(Clone::clone).and_then(|seen| match difference(seen, slow) {
            Some(difference) => Err(format!("with the cache and without: {difference}")),
            None => Ok(format!("{} packets, as through OVS", seen.count())),
        });
        checks.check(name, outcome);
    }
    Ok(())
}

/// The case's packet as the first node would send it in the tunnel, by what the second node's entry says.
fn outer(scene: &Scene<'_>, addresses: &Addresses, case: &Case) -> Result<Vec<u8>> {
    outer_of(scene, addresses, case, case)
}

/// As [`outer`], but by what the entry of another flow between the pods says.
fn outer_of(scene: &Scene<'_>, addresses: &Addresses, case: &Case, like: &Case) -> Result<Vec<u8>> {
    let [_, into] = addresses.keys(like.kind, like.number);
    let caches = Caches::read(scene)?;
    let flow = caches.flow(1, &into).context("the cache does not know the flow")?;
    let (vni, option) = flow.tunnel().context("the flow is in no tunnel")?;
    let there = addresses.pair(case.kind, case.number).there;
    let macs = addresses.delivered(case.kind);
    let inner = Packet { id: Case::id(case.number), macs, ttl: 63, ..there }.frame().bytes;
    on_wire(&geneve((vni, option), &inner))
}

/// The payload of a tunnel packet.
pub(super) fn geneve((vni, option): (u32, u32), inner: &[u8]) -> Vec<u8> {
    let mut payload = vec![2, 0x40, 0x65, 0x58];
    payload.extend((vni << 8).to_be_bytes());
    // OVN's option (ovn-architecture(7)): class 0x0102, type 0x80, 4 bytes.
    payload.extend([0x01, 0x02, 0x80, 0x01]);
    payload.extend(option.to_be_bytes());
    payload.extend(inner);
    payload
}

/// A tunnel packet of the first node to the second.
pub(super) fn on_wire(payload: &[u8]) -> Result<Vec<u8>> {
    let nodes = [node_ip(1), node_ip(2)];
    let [from, to] = nodes.map(|ip| underlay_mac(ip).parse::<MacAddr>());
    let mut bytes = Vec::new();
    PacketBuilder::ethernet2(from?.0, to?.0)
        .ipv4(nodes[0].octets(), nodes[1].octets(), 64)
        .udp(0xabcd, GENEVE_PORT)
        .write(&mut bytes, payload)?;
    // OVS sends no UDP checksum.
    bytes[UDP + 6..UDP + 8].fill(0);
    Ok(bytes)
}

/// Lengths and the header's checksum, after something was changed.
fn finish(mut bytes: Vec<u8>) -> Vec<u8> {
    let total = u16::try_from(bytes.len() - IP).unwrap_or(u16::MAX);
    bytes[IP + 2..IP + 4].copy_from_slice(&total.to_be_bytes());
    bytes[UDP + 4..UDP + 6].copy_from_slice(&(total - 20).to_be_bytes());
    fix_ipv4(&mut bytes[IP..UDP]);
    bytes
}

fn broken(right: &[u8], fault: &Fault) -> Frame {
    let mut bytes = right.to_vec();
    (fault.make)(&mut bytes);
    let bytes = if fault.fits { finish(bytes) } else { bytes };
    Frame { bytes, offload: Offload::default() }
}

/// Sends a packet; what came to pods.
fn inject(scene: &Scene<'_>, uplink: &mut Tap, case: &Case, frame: &Frame) -> Result<Seen> {
    scene.forget();
    uplink.send(vec![frame.clone()], Duration::from_millis(1))?;
    thread::sleep(SETTLE);
    // Of a packet whose options it does not know OVS remembers a drop that all packets of the tunnel meet, for 10 s.
    scene.bed.ovs(&scene.nodes[1], "ovs-appctl", &["dpctl/del-flows"])?;
    Ok(gather(scene).remove(&case.number).unwrap_or_default())
}

/// The right packet is taken by the cache.
fn control(
    scene: &Scene<'_>,
    addresses: &Addresses,
    case: &Case,
    uplink: &mut Tap,
    right: &[u8],
) -> Result<Result<String, String>> {
    let before = Caches::read(scene)?;
    let frame = Frame { bytes: right.to_vec(), offload: Offload::default() };
    let came = inject(scene, uplink, case, &frame)?.count();
    let carried = before.carried(&Caches::read(scene)?, 1, &addresses.keys(case.kind, case.number)[1]);
    let good = came == 1 && carried == Some(1);
    Ok(if good {
        Ok("arrives by the cache".to_owned())
    } else {
        Err(format!("{came} came, the cache carried {carried:?}"))
    })
}

/// A wrong packet while the cache knows the right ones; an error is that it was taken by the cache, or counted otherwise than once.
/// The switch floods packets of others whose port it has forgotten, and they may have the same reason: more than one is tried again.
fn attempt(
    scene: &mut Scene<'_>,
    addresses: &Addresses,
    case: &Case,
    uplink: &mut Tap,
    frame: &Frame,
    fault: &Fault,
) -> Result<Result<Seen, String>> {
    for _ in 1..CONTROLS {
        learn(scene, addresses, &[case])?;
        let (outcome, others) = attempt_once(scene, addresses, case, uplink, frame, fault)?;
        if !others {
            return Ok(outcome);
        }
    }
    learn(scene, addresses, &[case])?;
    Ok(attempt_once(scene, addresses, case, uplink, frame, fault)?.0)
}

/// As [`attempt`], and whether all is well but that packets of others were counted as well.
fn attempt_once(
    scene: &Scene<'_>,
    addresses: &Addresses,
    case: &Case,
    uplink: &mut Tap,
    frame: &Frame,
    fault: &Fault,
) -> Result<(Result<Seen, String>, bool)> {
    let node = |scene: &Scene<'_>| -> Result<(u64, u64)> {
        let counted = if fault.reason.is_empty() { 0 } else { scene.reason(1, fault.reason)? };
        Ok((scene.delivered_fast(1)?, counted))
    };
    let before = Caches::read(scene)?;
    let (fast_before, counted_before) = node(scene)?;
    let seen = inject(scene, uplink, case, frame)?;
    let (fast, counted) = node(scene)?;
    let carried = before.carried(&Caches::read(scene)?, 1, &addresses.keys(case.kind, case.number)[1]);
    let counted = counted.saturating_sub(counted_before);
    // Packets of the node's own connections may miss meanwhile.
    let is_right = fault.reason.is_empty() || counted == 1 || (fault.reason == MISS && counted >= 1);
    let mut others = false;
    let outcome = if !before.know(addresses, case) {
        Err("the cache does not know the flow".to_owned())
    } else if carried.is_some_and(|count| count > 0) || fast != fast_before {
        // None: OVS has let it through, and the flow was learned again.
        Err(format!(
            "the cache took it: its entry {carried:?}, all entries {}",
            fast.saturating_sub(fast_before)
        ))
    } else if !is_right {
        others = counted > 1;
        Err(format!("counted {counted} times as {}", fault.reason))
    } else {
        Ok(seen)
    };
    Ok((outcome, others))
}

/// Before the receiver's node knows a flow, a packet of it comes from an unknown outer source, and OVS drops it. Right after it comes
/// the first correct one, which OVS delivers. What is learned from that must not name the unknown source.
fn poison(
    scene: &mut Scene<'_>,
    addresses: &Addresses,
    like: &Case,
    uplink: &mut Tap,
) -> Result<Result<String, String>> {
    for number in POISONED {
        // VNI and option are those of all flows between the two pods.
        learn(scene, addresses, &[like])?;
        let case = Case::flow(like.kind, number);
        let mut bytes = outer_of(scene, addresses, &case, like)?;
        bytes[IP + 15] = 77;
        let forged = Frame { bytes: finish(bytes), offload: Offload::default() };
        let right = Packet { id: Case::id(number), ..addresses.pair(case.kind, number).there }.frame();
        scene.forget();
        uplink.send(vec![forged.clone()], QUICK)?;
        // UDP is learned from the second packet that is let through.
        scene.tap(Who::A)?.send(vec![right.clone(), right], QUICK)?;
        thread::sleep(SETTLE);
        let right = gather(scene).get(&number).map_or(0, Seen::count);
        if right != 2 {
            return Ok(Err(format!("{right} packets came at first, not the two right ones alone")));
        }
        let before = scene.delivered_fast(1)?;
        let came = inject(scene, uplink, &case, &forged)?.count();
        let fast = scene.delivered_fast(1)?.saturating_sub(before);
        if came != 0 || fast != 0 {
            return Ok(Err(format!(
                "{came} packets of the unknown source came to a pod, {fast} by the cache"
            )));
        }
    }
    Ok(Ok(format!("{} times nothing", POISONED.len())))
}

/// Sends the same packets while nothing uses the cache.
fn through_ovs(scene: &Scene<'_>, uplink: &mut Tap, flows: &[Case], rights: &[Vec<u8>]) -> Result<Vec<Seen>> {
    let mut list = Vec::new();
    for (case, right) in flows.iter().zip(rights) {
        for fault in FAULTS {
            list.push(inject(scene, uplink, case, &broken(right, fault))?);
        }
    }
    Ok(list)
}
