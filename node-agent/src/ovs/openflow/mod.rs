//! OpenFlow messages of a flow monitor (OpenFlow 1.5, ONF TS-025, section 7.3.5): detects flow changes, and flows with actions
//! that the flow cache cannot repeat.

mod actions;
mod effects;
mod fields;
mod matches;
mod oxm;
mod session;
mod targets;

pub use actions::{FlowActions, Part, Uncacheable};
pub use effects::{Effects, FIRST_CALLED, FIRST_UNTOLD};
pub use fields::{Fields, LogicalPort};
pub use matches::{Address, IPV4, IPV6, Match};
pub use session::{management_socket, watch_sessions};
pub use targets::{Target, Targets};

/// Wire version of OpenFlow 1.5. ovn-controller uses it, so br-int always supports it.
const OPENFLOW_1_5: u8 = 6;
/// Bytes of a message header: version, type, length, transaction id.
const HEADER: usize = 8;
/// Bytes of a multipart message header: message header, type, flags, padding.
const MULTIPART: usize = 16;
/// `OFPMP_FLOW_MONITOR`.
const FLOW_MONITOR: u16 = 16;
/// Transaction id of the monitor request; updates carry a different one.
const REQUEST: u32 = 2;

/// A message from the switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message<'a> {
    /// Echo request; must be answered with [`echo_reply`].
    Echo {
        /// Transaction id for the reply.
        xid: u32,
        /// Payload for the reply.
        body: &'a [u8],
    },
    /// Flows that existed when the monitor was created.
    Initial {
        /// Updates, to read with [`updates`].
        updates: &'a [u8],
        /// Another such message follows.
        more: bool,
    },
    /// Updates for changed flows, to read with [`updates`].
    Changed(&'a [u8]),
    /// Error message: type and code (section 7.5.4).
    Error(u16, u16),
    /// Hello; true when the switch supports OpenFlow 1.5.
    Hello(bool),
    /// Any other message.
    Other,
}

fn message(kind: u8, xid: u32, body: &[u8]) -> Vec<u8> {
    frame(OPENFLOW_1_5, kind, xid, body)
}

/// Encodes a message: OpenFlow header (identical in all versions) and `body`.
fn frame(version: u8, kind: u8, xid: u32, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(HEADER + body.len()).unwrap_or(u16::MAX);
    let mut out = vec![version, kind];
    out.extend(length.to_be_bytes());
    out.extend(xid.to_be_bytes());
    out.extend(body);
    out
}

/// Encodes a Hello that offers OpenFlow 1.5 only (version bitmap, section 7.5.1).
pub fn hello() -> Vec<u8> {
    let bitmap: u32 = 1 << OPENFLOW_1_5;
    let mut body = vec![0, 1, 0, 8];
    body.extend(bitmap.to_be_bytes());
    message(0, 1, &body)
}

/// Encodes the reply to [`Message::Echo`].
pub fn echo_reply(xid: u32, body: &[u8]) -> Vec<u8> {
    message(3, xid, body)
}

/// Encodes a request to monitor all tables: existing flows first, then every change, with instructions.
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

/// Length in bytes of the message at the start of `bytes`; `None` while its header is incomplete.
pub fn length(bytes: &[u8]) -> Option<usize> {
    // A length below that of the header would never advance.
    bytes.get(..HEADER).and_then(|header| u16_at(header, 2)).map(|length| usize::from(length).max(HEADER))
}

/// True when `bytes` is the start of a flow monitor update, even if the message is incomplete (10 bytes are enough). As in
/// [`read`], the reply to the monitor request is not an update.
pub fn begins_change(bytes: &[u8]) -> bool {
    matches!(bytes.get(1), Some(19))
        && u32_at(bytes, 4).is_some_and(|xid| xid != REQUEST)
        && u16_at(bytes, 8) == Some(FLOW_MONITOR)
}

/// Parses one complete message.
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
#[expect(clippy::large_enum_variant, reason = "an update is taken as soon as it is read")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Update<'a> {
    /// A flow was added or modified.
    Present {
        /// Key of the flow.
        key: Key<'a>,
        /// Summary of the flow's instructions.
        actions: FlowActions,
    },
    /// A flow was removed.
    Removed(Key<'a>),
    /// The switch stopped sending updates because of congestion (`true`), or resumed (`false`).
    Paused(bool),
    /// An unreadable or abbreviated update.
    Unknown,
}

/// Key of a flow in a bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key<'a> {
    /// Table id.
    pub table: u8,
    /// Priority.
    pub priority: u16,
    /// `ofp_match`, as bytes.
    pub fields: &'a [u8],
}

impl Key<'_> {
    /// Parses the match.
    pub fn read(&self) -> Fields {
        // `ofp_match` starts with type and length.
        Fields::read(self.fields.get(4..).unwrap_or_default())
    }

    /// Parses the match for what it excludes.
    pub fn matched(&self) -> Match {
        Match::read(self.fields.get(4..).unwrap_or_default())
    }
}

/// Parses the body of a flow monitor message into updates.
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

/// Parses `ofp_flow_update_full`, `ofp_flow_update_abbrev` or `ofp_flow_update_paused`.
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
            Some(Update::Present { key, actions: FlowActions::read(instructions) })
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
