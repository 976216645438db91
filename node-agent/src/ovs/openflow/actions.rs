//! Parser of a flow's instructions: actions that the flow cache cannot repeat, parts of conjunctions, and the logical port
//! assigned to packets.

use super::effects::Effects;
use super::fields::Fields;
use super::{u16_at, u32_at};

/// Nicira's experimenter number, for OVS's own actions (nicira-ext.h).
const NICIRA: u32 = 0x2320;

/// An action or match of a flow that a cached entry cannot repeat; such packets must all reach OVS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Uncacheable {
    /// Sends the packet to ovn-controller for logging (OVN's `log` action).
    Log,
    /// Samples packets for a collector (`sample`).
    Sample,
    /// Limits the rate (`meter`).
    Meter,
    /// Selects an egress queue (`set_queue`).
    Queue,
    /// Matches fields that differ between packets of one connection ([`Fields::per_packet`]).
    PerPacketMatch,
}

impl Uncacheable {
    /// Verb phrase for status texts, with "flows" as subject.
    pub fn verb(self) -> &'static str {
        match self {
            Self::Log => "log packets",
            Self::Sample => "sample packets",
            Self::Meter => "limit the rate",
            Self::Queue => "set a queue",
            Self::PerPacketMatch => "match TCP flags, ECN, TTL or flow label",
        }
    }
}

/// A `conjunction` action (ovs-actions(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Part {
    /// Conjunction id.
    pub id: u32,
    /// Dimension, from 0.
    pub clause: u8,
}

/// Summary of a flow's instructions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FlowActions {
    /// The first action that a cached entry cannot repeat.
    pub uncacheable: Option<Uncacheable>,
    /// Conjunctions that the flow is a part of.
    pub parts: Vec<Part>,
    /// Fields set by `set_field` actions outside of clones.
    pub sets: Fields,
    /// What the actions write.
    pub effects: Effects,
}

/// Splits the first element off a list of type-length-value elements: type, body, rest.
fn split(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = usize::from(u16_at(bytes, 2)?);
    let (one, rest) = bytes.split_at_checked(length.max(4))?;
    Some((u16_at(one, 0)?, one.get(4..)?, rest))
}

impl FlowActions {
    /// Parses a flow's instructions; stops at the first malformed one.
    pub fn read(mut instructions: &[u8]) -> Self {
        let mut actions = Self::default();
        while let Some((kind, body, rest)) = split(instructions) {
            match kind {
                // OFPIT_WRITE_METADATA, which OVN does not use.
                2 => actions.effects.unreadable(),
                // OFPIT_WRITE_ACTIONS and OFPIT_APPLY_ACTIONS.
                3 | 4 => actions.read_actions(body.get(4..).unwrap_or_default(), 0),
                6 => actions.found(Uncacheable::Meter),
                _ => {}
            }
            instructions = rest;
        }
        if !instructions.is_empty() {
            actions.effects.unreadable();
        }
        actions
    }

    fn found(&mut self, action: Uncacheable) {
        self.uncacheable.get_or_insert(action);
    }

    fn read_actions(&mut self, mut bytes: &[u8], depth: u8) {
        while let Some((kind, body, rest)) = split(bytes) {
            self.effects.take(kind, body, depth);
            match kind {
                21 => self.found(Uncacheable::Queue),
                // Inside a clone, fields are set on the copy only.
                25 if depth == 0 => self.set(body),
                29 => self.found(Uncacheable::Meter),
                0xffff if u32_at(body, 0) == Some(NICIRA) => {
                    self.nicira(body.get(4..).unwrap_or_default(), depth);
                }
                _ => {}
            }
            bytes = rest;
        }
        if !bytes.is_empty() {
            self.effects.unreadable();
        }
    }

    fn set(&mut self, body: &[u8]) {
        let one = Fields::read(body);
        self.sets.datapath = one.datapath.or(self.sets.datapath);
        self.sets.from = one.from.or(self.sets.from);
    }

    /// Parses a Nicira extension action, from its subtype on (OVS, lib/ofp-actions.c).
    fn nicira(&mut self, bytes: &[u8], depth: u8) {
        let (Some(kind), Some(body)) = (u16_at(bytes, 0), bytes.get(2..)) else { return };
        self.effects.nicira(kind, body);
        match kind {
            // NXAST_SAMPLE to NXAST_SAMPLE4.
            29 | 38 | 41 | 51 => self.found(Uncacheable::Sample),
            // NXAST_CONJUNCTION: clause, number of clauses, id.
            34 => {
                let part = body.first().zip(u32_at(body, 2));
                self.parts.extend(part.map(|(clause, id)| Part { id, clause: *clause }));
            }
            // NXAST_CT: flags, zone (6 bytes), table, padding, helper; nested actions.
            35 if depth < 4 => self.read_actions(body.get(14..).unwrap_or_default(), depth + 1),
            37 if is_log(body.get(6..).unwrap_or_default()) => self.found(Uncacheable::Log),
            // NXAST_CLONE: nested actions.
            42 if depth < 4 => self.read_actions(body.get(6..).unwrap_or_default(), depth + 1),
            35 | 42 => self.effects.unreadable(),
            _ => {}
        }
    }
}

/// Whether the properties of a controller action (`nx_action_controller2_prop`) carry user data of OVN's `log` action, whose
/// opcode is 7 (OVN, include/ovn/actions.h, `ACTION_OPCODE_LOG`).
fn is_log(mut properties: &[u8]) -> bool {
    while let Some(length) = u16_at(properties, 2).map(usize::from) {
        let Some(one) = properties.get(..length.max(4)) else { return false };
        // NXAC2PT_USERDATA.
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
        assert_eq!(FlowActions::read(&apply(&conjunction)).parts, [Part { id: 9, clause: 1 }]);
        let mut sets = vec![0, 25, 0, 16, 0x80, 0, 4, 8, 0, 0, 0, 0, 0, 0, 0, 3];
        sets.extend([0, 25, 0, 16, 0, 1, 14 << 1, 4, 0, 0, 0, 5, 0, 0, 0, 0]);
        let port = FlowActions::read(&apply(&sets)).sets.source().unwrap();
        assert_eq!((port.datapath, port.port), (3, 5));
    }

    #[test]
    fn a_meter_and_a_log_are_effects_and_other_words_to_the_controller_are_not() {
        let action = |opcode: u8| {
            let mut bytes = vec![0xff, 0xff, 0, 24, 0, 0, 0x23, 0x20, 0, 37, 0, 0, 0, 0, 0, 0];
            bytes.extend([0, 3, 0, 8, 0, 0, 0, opcode]);
            FlowActions::read(&apply(&bytes)).uncacheable
        };
        assert_eq!((action(7), action(1)), (Some(Uncacheable::Log), None));
        assert_eq!(FlowActions::read(&[0, 6, 0, 8, 0, 0, 0, 1]).uncacheable, Some(Uncacheable::Meter));
    }
}
