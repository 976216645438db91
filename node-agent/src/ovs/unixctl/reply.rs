//! Reads a reply of ovs-vswitchd's control socket piece by piece, as some are larger than an agent should ever be: the list of a
//! million connections is 300 MB of text. Pure.
//!
//! A reply is a flat object such as `{"id":0,"result":"text","error":null}`, with its members in any order (OVS, lib/jsonrpc.c). JSON
//! is that of RFC 8259.

/// What is wrong with a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the reply is no JSON-RPC reply: {0} at byte {1}")]
pub(super) struct Malformed(&'static str, usize);

/// Longest error message that is kept, bytes.
const LONGEST_ERROR: usize = 64 << 10;
/// Longest name of a member.
const LONGEST_KEY: usize = 64;

/// A member that matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Member {
    Result,
    Error,
    Other,
}

/// What the string is that is being read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Text {
    Key,
    Value(Member),
}

/// After a backslash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Escape {
    No,
    Begun,
    /// `\u`: so many digits are left of the code unit so far.
    Unit(u8, u16),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Begin,
    /// After `{` or a comma.
    Key,
    Colon(Member),
    Value(Member),
    Text(Text, Escape),
    /// Number, `null`, `true` or `false`.
    Literal,
    /// After a value.
    Next,
    Complete,
}

/// A reply, as far as it has come.
#[derive(Debug)]
pub(super) struct Reply {
    state: State,
    /// Bytes so far.
    read: usize,
    key: Vec<u8>,
    error: Option<Vec<u8>>,
    /// First half of a surrogate pair.
    high: Option<u16>,
}

impl Reply {
    pub(super) fn new() -> Self {
        Self { state: State::Begin, read: 0, key: Vec::new(), error: None, high: None }
    }

    /// Takes the next piece; `each` gets the decoded bytes of the result. True when the reply is complete.
    ///
    /// # Errors
    /// It is not such an object.
    pub(super) fn take(&mut self, piece: &[u8], mut each: impl FnMut(&[u8])) -> Result<bool, Malformed> {
        let mut rest = piece;
        while let Some((&byte, after)) = rest.split_first() {
            let consumed = match self.state {
                State::Text(text, Escape::No) => match memchr::memchr2(b'"', b'\\', rest) {
                    Some(0) => {
                        self.state = match byte {
                            b'"' => self.string_ends(text, &mut each),
                            _ => State::Text(text, Escape::Begun),
                        };
                        1
                    }
                    end => {
                        let plain = &rest[..end.unwrap_or(rest.len())];
                        self.emit(text, plain, &mut each);
                        plain.len()
                    }
                },
                State::Text(text, escape) => {
                    self.escaped(text, escape, byte, &mut each)?;
                    1
                }
                _ => {
                    self.structure(byte)?;
                    1
                }
            };
            self.read += consumed;
            rest = if consumed == 1 { after } else { &rest[consumed..] };
        }
        Ok(self.state == State::Complete)
    }

    /// The error message of a complete reply.
    pub(super) fn error(&self) -> Option<String> {
        self.error.as_ref().map(|text| String::from_utf8_lossy(text).trim().to_owned())
    }

    fn malformed(&self, what: &'static str) -> Malformed {
        Malformed(what, self.read)
    }

    /// One byte outside of strings.
    fn structure(&mut self, byte: u8) -> Result<(), Malformed> {
        self.state = match (self.state, byte) {
            (State::Literal, b',') | (State::Next, b',') => State::Key,
            (State::Literal, b'}') | (State::Next, b'}') => State::Complete,
            (State::Literal, b'a'..=b'z' | b'0'..=b'9' | b'+' | b'-' | b'.' | b'E') => State::Literal,
            (State::Literal, b' ' | b'\t' | b'\n' | b'\r') => State::Next,
            (same, b' ' | b'\t' | b'\n' | b'\r') => same,
            (State::Begin, b'{') => State::Key,
            (State::Key, b'}') if self.key.is_empty() => State::Complete,
            (State::Key, b'"') => {
                self.key.clear();
                State::Text(Text::Key, Escape::No)
            }
            (State::Colon(member), b':') => State::Value(member),
            (State::Value(member), b'"') => {
                if member == Member::Error {
                    self.error = Some(Vec::new());
                }
                State::Text(Text::Value(member), Escape::No)
            }
            (State::Value(_), b'a'..=b'z' | b'0'..=b'9' | b'-') => State::Literal,
            (State::Value(_), b'{' | b'[') => {
                return Err(self.malformed("an object or an array in place of a text"));
            }
            (State::Complete, _) => return Err(self.malformed("bytes after the reply")),
            _ => return Err(self.malformed("unexpected byte")),
        };
        Ok(())
    }

    /// The quote at the end of a string; returns what follows.
    fn string_ends(&mut self, text: Text, each: &mut impl FnMut(&[u8])) -> State {
        self.flush_high(text, each);
        match text {
            Text::Value(_) => State::Next,
            Text::Key => State::Colon(match self.key.as_slice() {
                b"result" => Member::Result,
                b"error" => Member::Error,
                _ => Member::Other,
            }),
        }
    }

    /// One byte after a backslash.
    fn escaped(
        &mut self,
        text: Text,
        escape: Escape,
        byte: u8,
        each: &mut impl FnMut(&[u8]),
    ) -> Result<(), Malformed> {
        let plain: &[u8] = match (escape, byte) {
            (Escape::Unit(left, unit), digit) => {
                let digit = char::from(digit).to_digit(16).and_then(|digit| u16::try_from(digit).ok());
                let Some(digit) = digit else { return Err(self.malformed("no hexadecimal digit after \\u")) };
                let unit = unit << 4 | digit;
                if left > 1 {
                    self.state = State::Text(text, Escape::Unit(left - 1, unit));
                } else {
                    self.state = State::Text(text, Escape::No);
                    self.unit(text, unit, each);
                }
                return Ok(());
            }
            (_, b'u') => {
                self.state = State::Text(text, Escape::Unit(4, 0));
                return Ok(());
            }
            (_, b'n') => b"\n",
            (_, b't') => b"\t",
            (_, b'r') => b"\r",
            (_, b'b') => b"\x08",
            (_, b'f') => b"\x0c",
            (_, b'"') => b"\"",
            (_, b'\\') => b"\\",
            (_, b'/') => b"/",
            _ => return Err(self.malformed("unknown escape")),
        };
        self.state = State::Text(text, Escape::No);
        self.emit(text, plain, each);
        Ok(())
    }

    /// A code unit of UTF-16.
    fn unit(&mut self, text: Text, unit: u16, each: &mut impl FnMut(&[u8])) {
        // A first half waits for the second one; if it is another first half that comes, it stands alone.
        let is_first = (0xd800..0xdc00).contains(&unit);
        let before = std::mem::replace(&mut self.high, is_first.then_some(unit));
        let units = before.into_iter().chain((!is_first).then_some(unit));
        for one in char::decode_utf16(units) {
            let one = one.unwrap_or(char::REPLACEMENT_CHARACTER);
            self.keep(text, one.encode_utf8(&mut [0; 4]).as_bytes(), each);
        }
    }

    fn flush_high(&mut self, text: Text, each: &mut impl FnMut(&[u8])) {
        if self.high.take().is_some() {
            self.keep(text, char::REPLACEMENT_CHARACTER.encode_utf8(&mut [0; 4]).as_bytes(), each);
        }
    }

    fn emit(&mut self, text: Text, plain: &[u8], each: &mut impl FnMut(&[u8])) {
        self.flush_high(text, each);
        self.keep(text, plain, each);
    }

    fn keep(&mut self, text: Text, plain: &[u8], each: &mut impl FnMut(&[u8])) {
        let upto = |to: &mut Vec<u8>, longest: usize| {
            to.extend_from_slice(&plain[..plain.len().min(longest.saturating_sub(to.len()))]);
        };
        match text {
            Text::Key => upto(&mut self.key, LONGEST_KEY),
            Text::Value(Member::Result) => each(plain),
            Text::Value(Member::Error) => upto(self.error.get_or_insert_default(), LONGEST_ERROR),
            Text::Value(Member::Other) => {}
        }
    }
}

/// Makes lines of pieces of text.
#[derive(Debug, Default)]
pub(super) struct Lines(Vec<u8>);

/// Longest line that is kept whole, bytes.
const LONGEST_LINE: usize = 1 << 20;

impl Lines {
    /// Takes the next piece; `each` gets the lines that end in it.
    pub(super) fn take(&mut self, piece: &[u8], each: &mut impl FnMut(&str)) {
        let mut rest = piece;
        while let Some(at) = memchr::memchr(b'\n', rest) {
            self.keep(&rest[..at]);
            rest = &rest[at + 1..];
            self.end(each);
            self.0.clear();
        }
        self.keep(rest);
    }

    /// The rest is a line, if there is one.
    pub(super) fn end(&self, each: &mut impl FnMut(&str)) {
        if !self.0.is_empty() {
            each(&String::from_utf8_lossy(&self.0));
        }
    }

    fn keep(&mut self, piece: &[u8]) {
        let room = LONGEST_LINE - self.0.len();
        self.0.extend_from_slice(&piece[..piece.len().min(room)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a reply in two pieces, cut at `at`, into its result and its error.
    fn read(text: &str, at: usize) -> Result<(String, Option<String>), Malformed> {
        let (mut reply, mut result) = (Reply::new(), Vec::new());
        let (first, second) = text.as_bytes().split_at(at);
        assert!(!reply.take(first, |piece| result.extend_from_slice(piece))?, "half of {text}");
        assert!(reply.take(second, |piece| result.extend_from_slice(piece))?, "{text}");
        Ok((String::from_utf8(result).unwrap(), reply.error()))
    }

    #[test]
    fn every_text_is_what_serde_json_makes_of_it_wherever_it_is_cut() {
        let texts = [
            "",
            "udp,orig=(src=10.0.0.1)\n",
            "a \"quoted\" \\ back\\slash / \t\r\n\u{8}\u{c}\u{1} ü € 😀",
            "}{\",:null",
        ];
        for text in texts {
            for reply in [
                serde_json::json!({"id": 0, "result": text, "error": null}).to_string(),
                serde_json::json!({"error": null, "other": text, "result": text}).to_string(),
                format!(" {{ \"result\" : {} , \"id\" : -1.5E+3 }}", serde_json::to_string(text).unwrap()),
            ] {
                for at in 0..reply.len() {
                    assert_eq!(read(&reply, at).unwrap(), (text.to_owned(), None), "{reply} cut at {at}");
                }
            }
        }
        let pair = r#"{"result":"\ud83d\ude00 \ud83dx \ud83d\ud83d\ude00 \ude00 \ud83d"}"#;
        for at in 0..pair.len() {
            assert_eq!(read(pair, at).unwrap().0, "😀 \u{fffd}x \u{fffd}😀 \u{fffd} \u{fffd}");
        }
    }

    #[test]
    fn an_error_is_told_and_kept_short() {
        let (result, error) = read(r#"{"id":0,"result":null,"error":"no such bridge\n"}"#, 5).unwrap();
        assert_eq!((result.as_str(), error.as_deref()), ("", Some("no such bridge")));
        let long = format!(r#"{{"error":"{}"}}"#, "x".repeat(LONGEST_ERROR + 5));
        assert_eq!(read(&long, 20).unwrap().1.unwrap().len(), LONGEST_ERROR);
    }

    #[test]
    fn what_is_no_reply_says_where() {
        for (text, wanted) in [
            ("[]", "the reply is no JSON-RPC reply: unexpected byte at byte 0"),
            (
                r#"{"result":["#,
                "the reply is no JSON-RPC reply: an object or an array in place of a text at byte 10",
            ),
            (r#"{"result":"\x"#, "the reply is no JSON-RPC reply: unknown escape at byte 12"),
            (
                r#"{"result":"\u00g"#,
                "the reply is no JSON-RPC reply: no hexadecimal digit after \\u at byte 15",
            ),
            ("{} {", "the reply is no JSON-RPC reply: bytes after the reply at byte 3"),
            (r#"{"id":1,}"#, "the reply is no JSON-RPC reply: unexpected byte at byte 8"),
        ] {
            let error = Reply::new().take(text.as_bytes(), |_| {}).unwrap_err();
            assert_eq!(error.to_string(), wanted);
        }
    }

    #[test]
    fn lines_are_whole_wherever_pieces_end() {
        let text = "one\n\ntwo three\nfour";
        for at in 0..=text.len() {
            let (mut lines, mut seen) = (Lines::default(), Vec::new());
            let mut each = |line: &str| seen.push(line.to_owned());
            lines.take(&text.as_bytes()[..at], &mut each);
            lines.take(&text.as_bytes()[at..], &mut each);
            lines.end(&mut each);
            assert_eq!(seen, ["one", "two three", "four"]);
        }
    }
}
