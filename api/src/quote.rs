//! Values of users in messages: a message is read by people, and an Event holds 1,024 bytes.

use std::fmt::Display;

/// Characters of a value that are quoted at most.
const LONGEST: usize = 200;

/// A value as a message quotes it: its first 200 characters, with `…` where there are more.
pub(crate) fn quoted(value: impl Display) -> String {
    let value = value.to_string();
    match value.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", &value[..at]),
        None => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_value_is_cut_between_characters() {
        assert_eq!(quoted("short"), "short");
        assert_eq!(quoted("ä".repeat(LONGEST)).chars().count(), LONGEST);
        let long = quoted("ä".repeat(LONGEST + 1));
        assert_eq!((long.chars().count(), long.ends_with("ä…")), (LONGEST + 1, true));
    }
}
