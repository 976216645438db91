//! The head of a data connection, and that of a datagram. Both carry the session's tag, so that all tests of all sessions share
//! one TCP port and one UDP port, which a Service can map. Numbers are big endian.

/// Bytes of the head of a datagram: tag (8), kind (1), flow (2), number (5).
pub(crate) const HEAD_BYTES: u32 = 16;
/// Bytes of the head of a connection: magic (8), tag (8), mode (1), and zeros.
pub(crate) const HELLO_BYTES: usize = 32;
/// The server's word that it knows the session.
pub(crate) const WELCOME: u8 = b'+';
/// The last byte of what a stream's sender wants to be counted; all others are 0.
pub(crate) const STOP: u8 = 9;

const MAGIC: &[u8; 8] = b"SLTRAFF1";
/// Numbers have 40 bits.
const NUMBER_MASK: u64 = (1 << 40) - 1;

/// What a server does on a data connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Welcomes, then answers requests.
    Answer,
    /// Answers one request, of which the head is the beginning, and closes.
    Once,
    /// Welcomes, then counts.
    Receive,
    /// Welcomes, then sends.
    Send,
}

const MODES: [(Mode, u8); 4] = [(Mode::Answer, 1), (Mode::Once, 2), (Mode::Receive, 3), (Mode::Send, 4)];

/// The head of a data connection.
pub(crate) fn hello(tag: u64, mode: Mode) -> [u8; HELLO_BYTES] {
    let mut bytes = [0; HELLO_BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..16].copy_from_slice(&tag.to_be_bytes());
    bytes[16] = MODES.iter().find(|(m, _)| *m == mode).map_or(0, |(_, code)| *code);
    bytes
}

/// Tag and mode from the head of a data connection.
pub(crate) fn read_hello(bytes: &[u8]) -> Option<(u64, Mode)> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let tag = u64::from_be_bytes(*rest.first_chunk()?);
    let code = rest.get(8)?;
    MODES.iter().find(|(_, c)| c == code).map(|(mode, _)| (tag, *mode))
}

/// What a datagram is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Wants an answer.
    Request,
    /// Datagram of the warm-up, which is not counted.
    Early,
    /// Counts.
    Counted,
}

const KINDS: [(Kind, u8); 3] = [(Kind::Request, 1), (Kind::Early, 2), (Kind::Counted, 3)];

/// The head of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) tag: u64,
    pub(crate) kind: Kind,
    pub(crate) flow: u16,
    /// Number of the datagram among those of its flow and kind, from 0; 40 bits.
    pub(crate) number: u64,
}

impl Head {
    /// Writes it over the first bytes of a payload, which has at least [`HEAD_BYTES`].
    pub(crate) fn write(self, payload: &mut [u8]) {
        let code = KINDS.iter().find(|(k, _)| *k == self.kind).map_or(0, |(_, code)| *code);
        payload[..8].copy_from_slice(&self.tag.to_be_bytes());
        payload[8..16].copy_from_slice(&(self.number & NUMBER_MASK).to_be_bytes());
        payload[8] = code;
        payload[9..11].copy_from_slice(&self.flow.to_be_bytes());
    }

    /// From a payload; `None` if it is too short or of no kind.
    pub(crate) fn read(payload: &[u8]) -> Option<Self> {
        let tag = u64::from_be_bytes(*payload.first_chunk()?);
        let rest: &[u8; 8] = payload.get(8..)?.first_chunk()?;
        let kind = KINDS.iter().find(|(_, code)| *code == rest[0])?.0;
        let flow = u16::from_be_bytes([rest[1], rest[2]]);
        Some(Self { tag, kind, flow, number: u64::from_be_bytes(*rest) & NUMBER_MASK })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_come_back() {
        let head = Head { tag: u64::MAX - 5, kind: Kind::Counted, flow: 1023, number: (1 << 40) - 2 };
        let mut payload = [7; 20];
        head.write(&mut payload);
        assert_eq!(Head::read(&payload), Some(head));
        assert_eq!(payload[16..], [7; 4]);
        assert_eq!(Head::read(&payload[..15]), None);
        payload[8] = 99;
        assert_eq!(Head::read(&payload), None);
    }

    #[test]
    fn hellos_come_back_and_other_protocols_are_none() {
        for (mode, _) in MODES {
            assert_eq!(read_hello(&hello(77, mode)), Some((77, mode)));
        }
        assert_eq!(read_hello(b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n"), None);
        assert_eq!(read_hello(&hello(77, Mode::Send)[..12]), None);
    }

    proptest::proptest! {
        /// What comes from the network is a head, or none, whatever it is.
        #[test]
        fn any_bytes_are_a_head_or_none(bytes: Vec<u8>, tag: u64, flow: u16, number in 0..=NUMBER_MASK) {
            crate::protocol::any::read_anything(&bytes);
            for (kind, _) in KINDS {
                let head = Head { tag, kind, flow, number };
                let mut payload = [0; HEAD_BYTES as usize];
                head.write(&mut payload);
                proptest::prop_assert_eq!(Head::read(&payload), Some(head));
            }
        }
    }
}
