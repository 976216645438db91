//! Cuts a byte stream into JSON objects. OVSDB messages have no delimiter (RFC 7047 section 4): the end of one is found by
//! counting braces outside strings. The scanner's state is kept between reads, so that every byte is looked at once.

use bytes::{Bytes, BytesMut};

/// Bytes to ask of the socket at a time.
pub(crate) const READ_SIZE: usize = 64 * 1024;

/// A message longer than this ends the session: it could only be a peer gone mad.
pub(crate) const MAX_MESSAGE: usize = 1 << 30;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum FramingError {
    #[error("byte {0:#04x} where a JSON object should begin")]
    Garbage(u8),
    #[error("a message is longer than {MAX_MESSAGE} bytes")]
    TooLong,
    #[error("more closing than opening brackets")]
    Unbalanced,
}

/// Incremental scanner over a growing buffer.
#[derive(Debug, Default)]
pub(crate) struct Framer {
    buffer: BytesMut,
    scanned: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Framer {
    /// The buffer to read into, with room for one read.
    pub(crate) fn space(&mut self) -> &mut BytesMut {
        if self.buffer.capacity() - self.buffer.len() < READ_SIZE {
            // Doubling keeps the copying of a huge message linear.
            self.buffer.reserve(READ_SIZE.max(self.buffer.len()));
        }
        &mut self.buffer
    }

    /// The next complete message, if one is there.
    pub(crate) fn next(&mut self) -> Result<Option<Bytes>, FramingError> {
        if self.depth == 0 {
            let blank = self.buffer.iter().take_while(|b| b.is_ascii_whitespace()).count();
            let _ = self.buffer.split_to(blank);
            self.scanned = 0;
        }
        while let Some(rest) = self.buffer.get(self.scanned..).filter(|rest| !rest.is_empty()) {
            if self.in_string {
                if self.escaped {
                    self.escaped = false;
                    self.scanned += 1;
                    continue;
                }
                match memchr::memchr2(b'"', b'\\', rest) {
                    None => self.scanned = self.buffer.len(),
                    Some(at) => {
                        if rest.get(at) == Some(&b'"') {
                            self.in_string = false;
                        } else {
                            self.escaped = true;
                        }
                        self.scanned += at + 1;
                    }
                }
                continue;
            }
            let mut end = None;
            let mut used = rest.len();
            for (at, byte) in rest.iter().enumerate() {
                match byte {
                    b'"' if self.depth > 0 => {
                        self.in_string = true;
                        used = at + 1;
                        break;
                    }
                    b'{' => self.depth += 1,
                    b'[' if self.depth > 0 => self.depth += 1,
                    b'}' | b']' => {
                        self.depth = self.depth.checked_sub(1).ok_or(FramingError::Unbalanced)?;
                        if self.depth == 0 {
                            end = Some(self.scanned + at + 1);
                            break;
                        }
                    }
                    other if self.depth == 0 => return Err(FramingError::Garbage(*other)),
                    _ => {}
                }
            }
            if let Some(end) = end {
                self.scanned = 0;
                return Ok(Some(self.buffer.split_to(end).freeze()));
            }
            self.scanned += used;
        }
        if self.buffer.len() > MAX_MESSAGE {
            return Err(FramingError::TooLong);
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGES: [&str; 4] = [
        r#"{"id":1,"result":[{}],"error":null}"#,
        r#"{"a":"}]{[\"\\"}"#,
        r#"{"x":["\u0041\\\\",[[{"y":{}}]]]}"#,
        r#"{}"#,
    ];

    fn cut(stream: &[u8], chunk: usize) -> Vec<String> {
        let mut framer = Framer::default();
        let mut out = Vec::new();
        for piece in stream.chunks(chunk) {
            framer.space().extend_from_slice(piece);
            while let Some(message) = framer.next().unwrap() {
                out.push(String::from_utf8(message.to_vec()).unwrap());
            }
        }
        out
    }

    #[test]
    fn messages_come_out_whole_however_the_stream_is_cut() {
        let stream = MESSAGES.join(" \n");
        for chunk in 1..=stream.len() {
            assert_eq!(cut(stream.as_bytes(), chunk), MESSAGES, "chunks of {chunk}");
        }
        assert_eq!(cut(MESSAGES.concat().as_bytes(), 7), MESSAGES);
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for (stream, error) in [
            ("[1]", FramingError::Garbage(b'[')),
            ("x", FramingError::Garbage(b'x')),
            ("{}]", FramingError::Unbalanced),
            ("\"a", FramingError::Garbage(b'"')),
        ] {
            let mut framer = Framer::default();
            framer.space().extend_from_slice(stream.as_bytes());
            let result = loop {
                match framer.next() {
                    Ok(Some(_)) => {}
                    other => break other,
                }
            };
            assert_eq!(result, Err(error), "{stream}");
        }
    }
}
