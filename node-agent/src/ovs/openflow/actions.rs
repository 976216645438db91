//! What a flow does to packets, read from its instructions: effects that a cache would leave out, the parts of conjunctions, and
//! the logical port that it gives to packets.

use super::fields::Fields;
use super::{u16_at, u32_at};

/// Nicira's experimenter number, for OVS's own actions (nicira-ext.h).
const NICIRA: u32 = 0x2320;

/// What a flow does to a packet that must not be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Effect {
    /// Tells ovn-controller of it, to be logged.
    Log,
    /// Copies a share of packets to a collector.
    Sample,
    /// Limits the rate.
    Meter,
    /// Puts it into a queue.
    Queue,
    /// Decides by what packets of one flow differ in.
    Differs,
}

impl Effect {
    /// What such a flow does, for people.
    pub fn verb(self) -> &'static str {
        match self {
            Self::Log => "log packets",
            Self::Sample => "sample packets",
            Self::Meter => "limit a rate",
            Self::Queue => "use queues",
            Self::Differs => "decide by TCP flags, ECN, TTL or flow label",
        }
    }
}

/// One part of a conjunction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Part {
    /// Number of the conjunction.
    pub id: u32,
    /// Which of its dimensions.
    pub clause: u8,
}

/// What is of interest in a flow's instructions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Deeds {
    /// What it does to every packet besides forwarding.
    pub effect: Option<Effect>,
    /// Conjunctions that it is a part of.
    pub parts: Vec<Part>,
    /// What it sets.
    pub sets: Fields,
}

/// Type, body and rest of the first of a list of things that begin with type and length.
fn split(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = usize::from(u16_at(bytes, 2)?);
    let (one, rest) = bytes.split_at_checked(length.max(4))?;
    Some((u16_at(one, 0)?, one.get(4..)?, rest))
}

impl Deeds {
    /// Reads a flow's instructions.
    pub fn read(mut instructions: &[u8]) -> Self {
        let mut deeds = Self::default();
        while let Some((kind, body, rest)) = split(instructions) {
            match kind {
                // Write and apply actions.
                3 | 4 => deeds.actions(body.get(4..).unwrap_or_default(), 0),
                6 => deeds.has(Effect::Meter),
                _ => {}
            }
            instructions = rest;
        }
        deeds
    }

    fn has(&mut self, effect: Effect) {
        self.effect.get_or_insert(effect);
    }

    fn actions(&mut self, mut bytes: &[u8], depth: u8) {
        while let Some((kind, body, rest)) = split(bytes) {
            match kind {
                21 => self.has(Effect::Queue),
                // In a clone it is the copy's.
                25 if depth == 0 => self.set(body),
                29 => self.has(Effect::Meter),
                0xffff if u32_at(body, 0) == Some(NICIRA) => {
                    self.nicira(body.get(4..).unwrap_or_default(), depth);
                }
                _ => {}
            }
            bytes = rest;
        }
    }

    fn set(&mut self, body: &[u8]) {
        let one = Fields::read(body);
        self.sets.datapath = one.datapath.or(self.sets.datapath);
        self.sets.from = one.from.or(self.sets.from);
    }

    /// OVS's own actions, from their subtype on (ofp-actions.c).
    fn nicira(&mut self, bytes: &[u8], depth: u8) {
        let (Some(kind), Some(body)) = (u16_at(bytes, 0), bytes.get(2..)) else { return };
        match kind {
            // sample, in its four forms.
            29 | 38 | 41 | 51 => self.has(Effect::Sample),
            // conjunction: dimension, number of dimensions, number.
            34 => {
                let part = body.first().zip(u32_at(body, 2));
                self.parts.extend(part.map(|(clause, id)| Part { id, clause: *clause }));
            }
            37 if is_log(body.get(6..).unwrap_or_default()) => self.has(Effect::Log),
            // clone: actions inside.
            42 if depth < 4 => self.actions(body.get(6..).unwrap_or_default(), depth + 1),
            _ => {}
        }
    }
}

/// Whether the properties of a controller action (`nx_action_controller2_prop`) have user data of OVN's `log` action: its
/// opcode is 7 (OVN's actions.h, `ACTION_OPCODE_LOG`).
fn is_log(mut properties: &[u8]) -> bool {
    while let Some(length) = u16_at(properties, 2).map(usize::from) {
        let Some(one) = properties.get(..length.max(4)) else { return false };
        // User data.
        if u16_at(one, 0) == Some(3) && u32_at(one, 4) == Some(7) {
            return true;
        }
        properties = properties.get(length.max(4).next_multiple_of(8)..).unwrap_or_default();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One instruction with these actions.
    fn apply(actions: &[u8]) -> Vec<u8> {
        let length = u16::try_from(actions.len() + 8).unwrap().to_be_bytes();
        let mut bytes = vec![0, 4, length[0], length[1], 0, 0, 0, 0];
        bytes.extend(actions);
        bytes
    }

    #[test]
    fn a_conjunction_and_a_logical_port_are_read_from_actions() {
        let conjunction = [0xff, 0xff, 0, 16, 0, 0, 0x23, 0x20, 0, 34, 1, 2, 0, 0, 0, 9];
        assert_eq!(Deeds::read(&apply(&conjunction)).parts, [Part { id: 9, clause: 1 }]);
        let mut sets = vec![0, 25, 0, 16, 0x80, 0, 4, 8, 0, 0, 0, 0, 0, 0, 0, 3];
        sets.extend([0, 25, 0, 16, 0, 1, 14 << 1, 4, 0, 0, 0, 5, 0, 0, 0, 0]);
        let port = Deeds::read(&apply(&sets)).sets.source().unwrap();
        assert_eq!((port.datapath, port.port), (3, 5));
    }

    #[test]
    fn a_meter_and_a_log_are_effects_and_other_words_to_the_controller_are_not() {
        let told = |opcode: u8| {
            let mut action = vec![0xff, 0xff, 0, 24, 0, 0, 0x23, 0x20, 0, 37, 0, 0, 0, 0, 0, 0];
            action.extend([0, 3, 0, 8, 0, 0, 0, opcode]);
            Deeds::read(&apply(&action)).effect
        };
        assert_eq!((told(7), told(1)), (Some(Effect::Log), None));
        assert_eq!(Deeds::read(&[0, 6, 0, 8, 0, 0, 0, 1]).effect, Some(Effect::Meter));
    }
}
