//! As much JSON as the executable needs: writing a string, and finding a member of the outermost object.

use std::fmt::Write;

/// Appends `text` as a JSON string (RFC 8259 section 7).
pub(crate) fn string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            // Writing to a string has no failure.
            c if c < ' ' => drop(write!(out, "\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
}

/// The string value of a member of the outermost object; `None` when it is missing, no string, or the text no object.
pub(crate) fn member(text: &str, key: &str) -> Option<String> {
    let value = find(text, key)?;
    Reader { rest: value }.string()
}

/// The whole, non-negative number that a member of the outermost object is.
pub(crate) fn number(text: &str, key: &str) -> Option<u64> {
    let value = find(text, key)?;
    let end = value.find(|c: char| !c.is_ascii_digit())?;
    // Not of a fraction, nor with an exponent.
    value.get(end..)?.starts_with([',', '}', ' ', '\t', '\n', '\r']).then_some(())?;
    value.get(..end)?.parse().ok()
}

/// The text from a member's value on. The last of members with the same name counts, as with most readers.
fn find<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let mut reader = Reader { rest: text };
    reader.expect('{')?;
    let mut found = None;
    loop {
        let name = reader.string()?;
        reader.expect(':')?;
        reader.space();
        if name == key {
            found = Some(reader.rest);
        }
        reader.skip_value()?;
        if reader.expect(',').is_none() {
            reader.expect('}')?;
            return found;
        }
    }
}

struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    fn space(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\n', '\r']);
    }

    fn expect(&mut self, c: char) -> Option<()> {
        self.space();
        self.rest = self.rest.strip_prefix(c)?;
        Some(())
    }

    fn next(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = self.rest.get(c.len_utf8()..)?;
        Some(c)
    }

    fn string(&mut self) -> Option<String> {
        self.expect('"')?;
        let mut out = String::new();
        loop {
            match self.next()? {
                '"' => return Some(out),
                '\\' => out.push(self.escape()?),
                c => out.push(c),
            }
        }
    }

    fn escape(&mut self) -> Option<char> {
        Some(match self.next()? {
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'u' => {
                let first = self.hex()?;
                if !(0xd800..0xdc00).contains(&first) {
                    return Some(char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER));
                }
                self.rest = self.rest.strip_prefix("\\u")?;
                let second = self.hex()?;
                let pair = 0x10000 + ((first - 0xd800) << 10) + second.checked_sub(0xdc00)?;
                char::from_u32(pair).unwrap_or(char::REPLACEMENT_CHARACTER)
            }
            c => c,
        })
    }

    fn hex(&mut self) -> Option<u32> {
        let digits = self.rest.get(..4)?;
        self.rest = self.rest.get(4..)?;
        u32::from_str_radix(digits, 16).ok()
    }

    /// Steps over one value of any kind, by counting brackets outside of strings.
    fn skip_value(&mut self) -> Option<()> {
        let mut depth = 0_usize;
        loop {
            self.space();
            match self.rest.chars().next()? {
                '"' => drop(self.string()?),
                '{' | '[' => {
                    depth += 1;
                    self.next();
                    continue;
                }
                '}' | ']' if depth > 0 => {
                    depth -= 1;
                    self.next();
                }
                ',' | ':' if depth > 0 => {
                    self.next();
                    continue;
                }
                _ => {
                    let end = self.rest.find([',', '}', ']', ' ', '\t', '\n', '\r'])?;
                    if end == 0 {
                        return None;
                    }
                    self.rest = self.rest.get(end..)?;
                }
            }
            if depth == 0 {
                return Some(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn strings_are_read_by_serde_as_they_were_written(text in any::<String>()) {
            let mut out = String::new();
            string(&mut out, &text);
            prop_assert_eq!(serde_json::from_str::<String>(&out).unwrap(), text);
        }

        #[test]
        fn members_are_found_as_serde_wrote_them(value in any::<String>(), other in any::<String>(), n in any::<u64>()) {
            let json = serde_json::json!({ "a": [{ "socket": "wrong", "x": [other] }, 1.5, null, true], "socket": value, "z": n });
            for text in [json.to_string(), serde_json::to_string_pretty(&json).unwrap()] {
                prop_assert_eq!(member(&text, "socket"), Some(value.clone()));
                prop_assert_eq!(number(&text, "z"), Some(n));
                prop_assert_eq!(member(&text, "x"), None);
            }
        }

        #[test]
        fn anything_else_is_no_member_and_ends(text in any::<String>(), cut in 0..60_usize) {
            let _ = member(&text, "socket");
            let json = r#"{"a":{"b":[1,2,{"c":"\u00e4"}]},"socket":"x","d":1}"#;
            let _ = member(json.get(..cut).unwrap_or(json), "socket");
        }
    }

    #[test]
    fn a_fraction_is_no_whole_number() {
        for text in ["1.5", "1e3", "-1", "1E0", "true"] {
            assert_eq!(number(&format!("{{\"exit_code\":{text}}}"), "exit_code"), None, "{text}");
        }
        assert_eq!(number("{\"exit_code\":1\n}", "exit_code"), Some(1));
    }

    #[test]
    fn escapes_of_other_writers_are_read() {
        assert_eq!(member(r#"{"k":"\/run\u002fx\ud83d\ude00"}"#, "k").unwrap(), "/run/x\u{1f600}");
        assert_eq!(member("", "k"), None);
        assert_eq!(member(r#"{"k":5}"#, "k"), None);
    }
}
