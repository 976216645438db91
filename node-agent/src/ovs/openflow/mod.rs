//! OpenFlow messages of a flow monitor (OpenFlow 1.5, ONF TS-025, section 7.3.5), as far as they are needed to know *that*
//! flows change and whether a flow does something to every packet that a cache would leave out.

mod actions;
mod fields;
mod session;

pub use actions::{Deeds, Effect, Part};
pub use fields::{Fields, LogicalPort};
pub use session::{management_socket, watch_sessions};

/// Version 1.5: what ovn-controller speaks, so br-int always does.
const OPENFLOW_1_5: u8 = 6;
/// Bytes of every message's header: version, type, length, transaction number.
const HEADER: usize = 8;
/// Bytes of a multipart message's header: the above, then type, flags and padding.
const MULTIPART: usize = 16;
/// `OFPMP_FLOW_MONITOR`.
const FLOW_MONITOR: u16 = 16;
/// Transaction number of our request; updates come with 0.
const REQUEST: u32 = 2;

/// A message of the switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message<'a> {
    /// It wants to know whether we live; the answer is [`echo_reply`].
    Echo {
        /// Number to answer with.
        xid: u32,
        /// What to send back.
        body: &'a [u8],
    },
    /// Flows that were there when the monitor began.
    Initial {
        /// Updates, to read with [`updates`].
        updates: &'a [u8],
        /// More of them follow.
        more: bool,
    },
    /// Flows have changed.
    Changed(&'a [u8]),
    /// The switch refuses something: type and code (section 7.5.4).
    Error(u16, u16),
    /// Its greeting; whether it speaks our version.
    Hello(bool),
    /// Anything else.
    Other,
}

fn message(kind: u8, xid: u32, body: &[u8]) -> Vec<u8> {
    frame(OPENFLOW_1_5, kind, xid, body)
}

/// A message: the header of OpenFlow (version, type, length, transaction number; the same in every version), then `body`.
fn frame(version: u8, kind: u8, xid: u32, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(HEADER + body.len()).unwrap_or(u16::MAX);
    let mut out = vec![version, kind];
    out.extend(length.to_be_bytes());
    out.extend(xid.to_be_bytes());
    out.extend(body);
    out
}

/// Our greeting: version 1.5 alone (a bitmap element, section 7.5.1).
pub fn hello() -> Vec<u8> {
    let bitmap: u32 = 1 << OPENFLOW_1_5;
    let mut body = vec![0, 1, 0, 8];
    body.extend(bitmap.to_be_bytes());
    message(0, 1, &body)
}

/// The answer to [`Message::Echo`].
pub fn echo_reply(xid: u32, body: &[u8]) -> Vec<u8> {
    message(3, xid, body)
}

/// Asks for all flows of all tables with their instructions, and for every change from now on.
pub fn monitor_request() -> Vec<u8> {
    // Initial, added, removed, modified, with instructions: `ofp_flow_monitor_flags`.
    let flags: u16 = 1 | 2 | 4 | 8 | 16;
    let mut body = Vec::new();
    body.extend(FLOW_MONITOR.to_be_bytes());
    body.extend([0; 6]);
    body.extend(1_u32.to_be_bytes());
    // Any port, any group.
    body.extend([0xff; 8]);
    body.extend(flags.to_be_bytes());
    // All tables; add a monitor.
    body.extend([0xff, 0]);
    // An empty match, padded.
    body.extend([0, 1, 0, 4, 0, 0, 0, 0]);
    message(18, REQUEST, &body)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Length of the message at the front of `bytes`; `None` before its header is there.
pub fn length(bytes: &[u8]) -> Option<usize> {
    // A length below the header's own would be read for ever.
    bytes.get(..HEADER).and_then(|header| u16_at(header, 2)).map(|length| usize::from(length).max(HEADER))
}

/// True when `bytes` begin a message that tells of changed flows, however little of it is there. As for [`read`], that is
/// everything of a flow monitor but the answer to our request.
pub fn begins_change(bytes: &[u8]) -> bool {
    matches!(bytes.get(1), Some(19))
        && u32_at(bytes, 4).is_some_and(|xid| xid != REQUEST)
        && u16_at(bytes, 8) == Some(FLOW_MONITOR)
}

/// Reads one whole message.
pub fn read(bytes: &[u8]) -> Message<'_> {
    let (Some(version), Some(kind), Some(xid)) = (bytes.first(), bytes.get(1), u32_at(bytes, 4)) else {
        return Message::Other;
    };
    let body = bytes.get(HEADER..).unwrap_or_default();
    match kind {
        0 => Message::Hello(*version >= OPENFLOW_1_5),
        1 => Message::Error(u16_at(body, 0).unwrap_or(0), u16_at(body, 2).unwrap_or(0)),
        2 => Message::Echo { xid, body },
        19 if u16_at(body, 0) == Some(FLOW_MONITOR) => {
            let more = u16_at(body, 2).unwrap_or(0) & 1 != 0;
            let updates = bytes.get(MULTIPART..).unwrap_or_default();
            if xid == REQUEST { Message::Initial { updates, more } } else { Message::Changed(updates) }
        }
        _ => Message::Other,
    }
}

/// One update of a flow monitor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Update<'a> {
    /// A flow is there, new or changed.
    Present {
        /// Table, priority and match as bytes: what names a flow.
        key: Key<'a>,
        /// What its instructions say.
        deeds: Deeds,
    },
    /// A flow is gone.
    Removed(Key<'a>),
    /// From now on changes are not told (`true`), or told again.
    Paused(bool),
    /// Something that cannot be read, or in short form.
    Unknown,
}

/// What names a flow in a bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key<'a> {
    /// Table.
    pub table: u8,
    /// Priority.
    pub priority: u16,
    /// The match.
    pub fields: &'a [u8],
}

impl Key<'_> {
    /// The match, as far as it tells whose packets it is about.
    pub fn read(&self) -> Fields {
        // Its type and length come first.
        Fields::read(self.fields.get(4..).unwrap_or_default())
    }
}

/// Splits the body of a monitor's message into updates.
pub fn updates(mut bytes: &[u8]) -> impl Iterator<Item = Update<'_>> {
    std::iter::from_fn(move || {
        if bytes.len() < 4 {
            return None;
        }
        let length = usize::from(u16_at(bytes, 0)?);
        let (one, rest) = bytes.split_at_checked(length.max(4))?;
        bytes = rest;
        Some(update(one).unwrap_or(Update::Unknown))
    })
}

/// `ofp_flow_update_full` and its short relatives.
fn update(bytes: &[u8]) -> Option<Update<'_>> {
    let event = u16_at(bytes, 2)?;
    match event {
        0..=3 => {
            let (table, priority) = (*bytes.get(4)?, u16_at(bytes, 10)?);
            let fields = bytes.get(24..)?;
            let length = usize::from(u16_at(fields, 2)?);
            let key = Key { table, priority, fields: fields.get(..length)? };
            if event == 2 {
                return Some(Update::Removed(key));
            }
            let instructions = fields.get(length.next_multiple_of(8)..)?;
            Some(Update::Present { key, deeds: Deeds::read(instructions) })
        }
        5 => Some(Update::Paused(true)),
        6 => Some(Update::Paused(false)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_known_by_the_first_ten_bytes() {
        let mut bytes = vec![6, 19, 0, 40, 0, 0, 0, 0, 0, 16];
        assert!(begins_change(&bytes));
        bytes[7] = 2;
        assert!(!begins_change(&bytes), "the answer to our own request");
        assert!(!begins_change(&[6, 19, 0, 40]));
    }

    #[test]
    fn a_change_with_a_transaction_number_is_known_by_its_first_bytes_too() {
        let message = [6, 19, 0, 24, 0xee, 0xc1, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 8, 0, 5, 0, 0, 0, 0];
        assert!(matches!(read(&message), Message::Changed(_)));
        assert!(begins_change(&message));
    }

    #[test]
    fn what_is_cut_short_or_lies_about_its_length_ends_the_reading() {
        for bytes in [&[0, 40, 0, 1][..], &[0, 0, 0, 9], &[0, 2], &[0, 24, 0, 1, 5, 0]] {
            assert!(updates(bytes).all(|update| update == Update::Unknown), "{bytes:?}");
        }
        assert_eq!(length(&[6, 0, 0, 0, 0, 0, 0, 0]), Some(8));
        assert_eq!(read(&[6]), Message::Other);
    }

    #[test]
    fn pause_and_resumption_are_read() {
        let bytes = [0, 8, 0, 5, 0, 0, 0, 0, 0, 8, 0, 6, 0, 0, 0, 0];
        assert_eq!(updates(&bytes).collect::<Vec<_>>(), [Update::Paused(true), Update::Paused(false)]);
    }
}
