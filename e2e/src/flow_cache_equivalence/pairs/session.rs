//! Connections by the ways: the caches are taught them, and packets are sent by them.

use std::collections::BTreeMap;
use std::iter;
use std::thread;
use std::time::Duration;

use anyhow::Result;

use super::super::cases::tcp;
use super::super::frame::{ACK, Packet, SYN};
use super::super::scene::Scene;
use super::header::answer;
use super::mark::Mark;
use super::posts::{Place, Posts, Sender};
use super::seen::Seen;
use super::trace::{Entries, Hop};
use super::variants;
use super::ways::Flow;
use testbed::tools::packets::Frame;

/// Between two packets.
const BRISK: Duration = Duration::from_micros(300);
/// Until what was sent has come.
const SETTLE: Duration = Duration::from_millis(100);
/// How often flows are taught before they are given up. The first packets may wait for OVN to hear of a service, or to find a next hop.
const LESSONS: u32 = 16;
/// How often OVS is to be asked for a confirmation before that is given up.
const CONFIRMATIONS: u32 = 4;
/// Between the deadlines of entries that are learned in one lesson, of both directions.
const APART: Duration = Duration::from_millis(500);
/// For how long no refresh may be due, in milliseconds: all packets are played in it.
const QUIET_MS: i64 = 4_000;
/// Variant of the packets that teach.
const LESSON: u8 = 0xff;

/// Where packets for this one come.
pub(in crate::flow_cache_equivalence) fn place(sender: Sender) -> Place {
    match sender {
        Sender::Pod(who) => Place::Pod(who),
        Sender::Bridge | Sender::Management => Place::Node,
        Sender::Outside => Place::Outside,
    }
}

/// The connections and where they are seen.
pub(super) struct Session<'s, 'b> {
    pub(super) scene: &'s mut Scene<'b>,
    pub(super) posts: Posts,
    pub(super) flows: Vec<Flow>,
}

impl Session<'_, '_> {
    /// Sends packets of many senders, and waits until they have come.
    fn send(&mut self, packets: Vec<(Sender, Packet)>) -> Result<()> {
        let mut frames: BTreeMap<Sender, Vec<Frame>> = BTreeMap::new();
        for (sender, packet) in packets {
            frames.entry(sender).or_default().push(packet.frame());
        }
        for (sender, frames) in frames {
            self.posts.send(self.scene, sender, frames, BRISK)?;
        }
        thread::sleep(SETTLE);
        Ok(())
    }

    /// Packets of each flow in one direction ([`Flow::packets_of_lesson`]), with these flags if it is TCP, and what is seen of them at the servers.
    fn lesson(&mut self, list: &[usize], back: bool, flags: Option<u8>) -> Result<()> {
        drop(self.posts.take(self.scene));
        let mut packets = Vec::new();
        for flow in list.iter().map(|&index| &self.flows[index]).filter(|flow| flags.is_none() || !flow.udp) {
            let Some((sender, packet)) = (if back { flow.back.clone() } else { Some(flow.there.clone()) })
            else {
                continue;
            };
            let mark = Mark { flow: flow.number, back, variant: LESSON };
            let mut packet = Packet { payload: mark.payload(32), ..packet };
            if let Some(flags) = flags {
                // SYN is a byte of its own (RFC 9293, 3.4), and the first one acknowledges nothing.
                packet.sequence -= u32::from(flags & SYN != 0);
                packet.acknowledged *= u32::from(flags & ACK != 0);
                packet.upper = tcp(flags);
            }
            packets.extend(iter::repeat_n((sender, packet), flow.packets_of_lesson()));
        }
        self.send(packets)?;
        if back {
            return Ok(());
        }
        let seen = Seen::by_flow(self.posts.take(self.scene));
        for &index in list {
            let Some(flow) = self.flows.get_mut(index) else { continue };
            let mark = Mark { flow: flow.number, back: false, variant: LESSON };
            let came = seen.get(&flow.number).and_then(|seen| seen.frames(mark, place(flow.server())).last());
            if let Some(mut packet) = came.and_then(|frame| answer(frame)) {
                (packet.sequence, packet.acknowledged) = (flow.there.1.acknowledged, flow.there.1.sequence);
                flow.back = Some((flow.server(), packet));
            }
        }
        Ok(())
    }

    /// The entries of both directions of a flow, if the caches carry it all the way.
    pub(super) fn hops(flow: &Flow, entries: &Entries) -> Option<[Vec<Hop>; 2]> {
        let of = |(sender, packet): &(Sender, Packet)| entries.trace(Flow::node_of(*sender), packet);
        Some([of(&flow.there)?, of(flow.back.as_ref()?)?])
    }

    /// Lets OVS see both directions of flows until the caches know them.
    pub(super) fn learn(&mut self, list: &[usize]) -> Result<()> {
        self.scene.open()?;
        let mut left = list.to_vec();
        for round in 0..LESSONS {
            if round % 4 == 0 {
                if round > 0 {
                    // A note of a flow that is no longer used is in the way for a second.
                    thread::sleep(Duration::from_secs(1));
                }
                for (back, flags) in [(false, SYN), (true, SYN | ACK), (false, ACK)] {
                    self.lesson(&left, back, Some(flags))?;
                }
            }
            self.lesson(&left, false, None)?;
            self.lesson(&left, true, None)?;
            let entries = Entries::read(self.scene)?;
            left.retain(|&index| Self::hops(&self.flows[index], &entries).is_none());
            if left.is_empty() {
                break;
            }
        }
        self.confirm(list)
    }

    /// Lets OVS confirm what is due while packets are played: above all what was just learned, as its first refresh comes soon.
    fn confirm(&mut self, list: &[usize]) -> Result<()> {
        for _ in 0..CONFIRMATIONS {
            let entries = Entries::read(self.scene)?;
            let left = |index: usize| {
                let hops = Self::hops(&self.flows[index], &entries)?;
                hops.iter().flatten().map(|hop| hop.refresh_in_ms).min()
            };
            let left = list.iter().filter_map(|&index| Some((index, left(index)?)));
            let soon: Vec<(usize, i64)> = left.filter(|(_, left)| *left < QUIET_MS).collect();
            let Some(last) = soon.iter().map(|(_, left)| *left).max() else { return Ok(()) };
            thread::sleep(Duration::from_millis(u64::try_from(last).unwrap_or_default()) + APART);
            let soon: Vec<usize> = soon.iter().map(|(index, _)| *index).collect();
            self.lesson(&soon, false, None)?;
            self.lesson(&soon, true, None)?;
        }
        Ok(())
    }

    /// All variants of both directions; what came of each flow, by its number.
    pub(super) fn play(&mut self, list: &[usize]) -> Result<BTreeMap<u8, Seen>> {
        drop(self.posts.take(self.scene));
        for back in [false, true] {
            let flows = list.iter().map(|&index| &self.flows[index]);
            let packets =
                flows.flat_map(|flow| packets(flow, back)).map(|(sender, _, packet)| (sender, packet));
            let packets = packets.collect();
            self.send(packets)?;
        }
        thread::sleep(SETTLE);
        Ok(Seen::by_flow(self.posts.take(self.scene)))
    }
}

/// The packets of one direction of a flow, each with its sender and its mark.
pub(super) fn packets(flow: &Flow, back: bool) -> Vec<(Sender, Mark, Packet)> {
    let Some((sender, plain)) = (if back { flow.back.as_ref() } else { Some(&flow.there) }) else {
        return Vec::new();
    };
    let list = variants::of(plain, flow.number, back);
    list.into_iter().map(|(mark, packet)| (*sender, mark, packet)).collect()
}

/// What is missing of a flow, or leaked: every packet of both directions comes once to its end, and has what its sender set wherever it
/// is seen.
pub(super) fn fault(flow: &Flow, seen: &Seen) -> Option<String> {
    if flow.back.is_none() {
        return Some("nothing came to the server".to_owned());
    }
    if let Some(wrong) = seen.wrong() {
        return Some(wrong.clone());
    }
    [false, true].into_iter().find_map(|back| {
        let end = place(if back { flow.there.0 } else { flow.server() });
        packets(flow, back).into_iter().find_map(|(_, mark, packet)| {
            let came = seen.count(mark, end);
            if came != 1 {
                let where_else = seen.places(mark);
                return Some(format!("{mark:?} came {came} times to {end:?}, and to {where_else:?}"));
            }
            let Some(sent) = super::header::Word::sent(&packet) else {
                return Some("a packet that is no IP packet".to_owned());
            };
            seen.leak(mark, sent)
        })
    })
}
