//! What of a program's log an error quotes.

/// Lines that are quoted.
const LINES: usize = 6;
/// Characters of a line that are quoted.
const CHARACTERS: usize = 300;

/// The last warnings and errors of a log and its last lines, in order and cut short.
pub(super) fn end(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    let last = lines.len().saturating_sub(LINES / 2);
    let bad = |line: &&str| [" WARN ", " ERROR "].iter().any(|level| line.contains(level));
    let warnings: Vec<&str> = lines[..last].iter().copied().filter(bad).collect();
    let first = warnings.len().saturating_sub(LINES / 2);
    let quoted: Vec<String> = warnings[first..]
        .iter()
        .chain(&lines[last..])
        .map(|line| line.chars().take(CHARACTERS).collect())
        .collect();
    if quoted.is_empty() { "nothing".to_owned() } else { quoted.join(" | ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_and_the_last_lines_are_quoted_in_order() {
        let log = "t WARN a\nt INFO b\nt ERROR c\nt WARN d\nt WARN e\nt INFO f\nt INFO g\nt WARN h\nt INFO i";
        assert_eq!(end(log), "t ERROR c | t WARN d | t WARN e | t INFO g | t WARN h | t INFO i");
        assert_eq!(end("t INFO only"), "t INFO only");
        assert_eq!(end(""), "nothing");
        assert_eq!(end(&"x".repeat(1000)).len(), CHARACTERS);
    }
}
