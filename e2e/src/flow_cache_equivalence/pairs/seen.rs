//! What came of a flow's packets, and whether two passes are the same.

use std::collections::BTreeMap;

use super::super::segments;
use super::header::{Word, comparable, ip};
use super::mark::Mark;
use super::posts::Place;
use testbed::tools::packets::{Capture, to_hex};

/// What came of a flow's packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::flow_cache_equivalence) struct Seen {
    at: BTreeMap<(Mark, Place), Vec<Vec<u8>>>,
    /// What is wrong with it by itself.
    wrong: Vec<String>,
}

impl Seen {
    /// Of each flow, by its number.
    pub(in crate::flow_cache_equivalence) fn by_flow(captures: Vec<(Place, Capture)>) -> BTreeMap<u8, Self> {
        let mut all: BTreeMap<u8, Self> = BTreeMap::new();
        for (place, capture) in captures {
            let Some(mark) = Mark::find(&capture.frame.bytes) else { continue };
            let seen = all.entry(mark.flow).or_default();
            match segments::wire(&capture.frame) {
                Ok(frames) => {
                    seen.at.entry((mark, place)).or_default().extend(frames.into_iter().map(comparable));
                }
                Err(error) => seen.wrong.push(format!("{place:?}: {error:#}")),
            }
        }
        all
    }

    /// How often a packet came to a place.
    pub(in crate::flow_cache_equivalence) fn count(&self, mark: Mark, place: Place) -> usize {
        self.at.get(&(mark, place)).map_or(0, Vec::len)
    }

    /// Packets that came to a place.
    pub(in crate::flow_cache_equivalence) fn frames(&self, mark: Mark, place: Place) -> &[Vec<u8>] {
        self.at.get(&(mark, place)).map_or(&[], Vec::as_slice)
    }

    /// Everywhere that a packet came to.
    pub(in crate::flow_cache_equivalence) fn places(&self, mark: Mark) -> Vec<Place> {
        self.at.keys().filter(|(one, _)| *one == mark).map(|(_, place)| *place).collect()
    }

    /// What is wrong with what came of a packet that was sent with this word: it must have it wherever it is seen.
    pub(in crate::flow_cache_equivalence) fn leak(&self, mark: Mark, sent: Word) -> Option<String> {
        let of_mark = self.at.iter().filter(|((one, _), _)| *one == mark);
        of_mark.flat_map(|((_, place), frames)| frames.iter().map(move |frame| (place, frame))).find_map(
            |(place, frame)| {
                let word = ip(frame).and_then(Word::of);
                (word != Some(sent)).then(|| format!("{sent:x?} was sent, and {word:x?} seen at {place:?}"))
            },
        )
    }

    /// What is wrong with it by itself.
    pub(in crate::flow_cache_equivalence) fn wrong(&self) -> Option<&String> {
        self.wrong.first()
    }

    /// The first thing in which it differs from another pass.
    pub(in crate::flow_cache_equivalence) fn difference(&self, other: &Self) -> Option<String> {
        let keys = self.at.keys().chain(other.at.keys());
        keys.into_iter().find_map(|key| {
            let (mark, place) = *key;
            let (one, two) = (self.frames(mark, place), other.frames(mark, place));
            let what =
                format!("packet {} {} at {place:?}", mark.variant, if mark.back { "back" } else { "there" });
            if one.len() != two.len() {
                return Some(format!("{what}: {} and {} came", one.len(), two.len()));
            }
            let (a, b) = one.iter().zip(two).find(|(a, b)| a != b)?;
            let byte = a.iter().zip(b).position(|(a, b)| a != b).unwrap_or(a.len().min(b.len()));
            Some(format!("{what} differs from byte {byte} on:\n  {}\n  {}", to_hex(a), to_hex(b)))
        })
    }
}

#[cfg(test)]
mod tests {
    use testbed::tools::packets::{Frame, Offload};

    use super::super::super::frame::{Packet, Upper};
    use super::*;

    const MARK: Mark = Mark { flow: 4, back: false, variant: 1 };

    fn packet(id: u16) -> Packet {
        let ips = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().unwrap());
        let mut packet = Packet::new([[2; 6], [4; 6]], ips[0], ips[1], [1, 2], Upper::Udp);
        (packet.id, packet.payload) = (id, MARK.payload(20));
        packet
    }

    fn seen(list: &[(Place, u16)]) -> Seen {
        let capture = |bytes| Capture {
            frame: Frame { bytes, offload: Offload::default() },
            at: 0,
            vlan: None,
            outgoing: false,
        };
        let captures = list.iter().map(|(place, id)| (*place, capture(packet(*id).frame().bytes))).collect();
        Seen::by_flow(captures).remove(&MARK.flow).unwrap_or_default()
    }

    #[test]
    fn passes_differ_in_places_numbers_and_bytes() {
        let both = seen(&[(Place::Node, 5), (Place::Wire(1), 5)]);
        assert_eq!(both.difference(&both.clone()), None);
        for other in [
            seen(&[(Place::Node, 5)]),
            seen(&[(Place::Node, 5), (Place::Wire(1), 6)]),
            seen(&[(Place::Node, 5), (Place::Wire(1), 5), (Place::Wire(1), 5)]),
            seen(&[(Place::Node, 5), (Place::Wire(2), 5)]),
        ] {
            assert!(both.difference(&other).is_some() && other.difference(&both).is_some());
        }
        assert_eq!((both.count(MARK, Place::Node), both.count(MARK, Place::Wire(2))), (1, 0));
        assert_eq!(both.places(MARK), [Place::Node, Place::Wire(1)]);
    }

    #[test]
    fn a_number_that_the_sender_did_not_set_is_a_leak_wherever_it_is_seen() {
        let sent = Word::sent(&packet(5)).unwrap();
        assert_eq!(seen(&[(Place::Node, 5), (Place::Wire(1), 5)]).leak(MARK, sent), None);
        let leak = seen(&[(Place::Node, 5), (Place::Wire(1), 77)]).leak(MARK, sent).unwrap();
        assert!(leak.contains("Wire(1)"), "{leak}");
    }
}
