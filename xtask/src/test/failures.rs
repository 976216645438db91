//! What failed tests said, for the end of a run: the output of a whole run is too long to look for it.

/// So many lines are shown of one program.
const LINES: usize = 40;

/// What a test program printed of its failed tests (libtest's section `failures:`), without back traces. `None`: it has no such
/// section.
pub(super) fn excerpt(output: &str) -> Option<String> {
    let (_, section) = output.split_once("\nfailures:\n")?;
    let section = section.split_once("\nfailures:\n").map_or(section, |(said, _names)| said);
    let mut lines: Vec<_> =
        section.lines().filter(|line| !line.trim().is_empty() && !is_trace(line)).collect();
    let more = lines.len().saturating_sub(LINES);
    lines.truncate(LINES);
    let mut text = lines.join("\n");
    if more > 0 {
        text.push_str(&format!("\n… and {more} lines more"));
    }
    Some(text)
}

/// A line of a back trace: a numbered frame, where it is, or what is said around it.
fn is_trace(line: &str) -> bool {
    let line = line.trim_start();
    let number = line
        .split_once(": ")
        .is_some_and(|(number, _)| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()));
    number || line.starts_with("at ") || line.starts_with("stack backtrace:") || line.starts_with("note: ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_tests_said_is_shown_without_back_traces() {
        let output = "test a ... FAILED\n\nfailures:\n\n---- a stdout ----\n\nthread 'a' panicked at x.rs:1:1:\nno such \
                      port\nstack backtrace:\n   0: panic\n             at /x.rs:1\nnote: more\n\n\nfailures:\n    a\n\ntest \
                      result: FAILED. 0 passed; 1 failed";
        let said = excerpt(output).unwrap();
        assert_eq!(said, "---- a stdout ----\nthread 'a' panicked at x.rs:1:1:\nno such port");
        assert_eq!(excerpt("test result: ok. 1 passed; 0 failed"), None);
    }

    #[test]
    fn a_long_story_is_cut() {
        let output = format!("\nfailures:\n{}", "FAIL x\n".repeat(LINES + 2));
        assert!(excerpt(&output).unwrap().ends_with("FAIL x\n… and 2 lines more"));
    }
}
