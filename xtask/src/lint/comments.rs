//! Rules about doc comments of packages that are shipped: each stands alone. A reader sees it in an editor's tooltip, without the line above it,
//! so it names its subject.

use anyhow::{Context, Result, bail};

use crate::{exec, paths};

/// Packages whose comments are checked.
const PACKAGES: &[&str] = &[
    "api",
    "cluster-bench",
    "cni",
    "controller",
    "ebpf",
    "entrypoint",
    "node-agent",
    "oci-image",
    "ovsdb-client",
    "perf-tests",
    "slipctl",
    "supervision",
    "traffic",
];

/// What a comment must not begin with: pronouns, and words that continue the sentence of another comment.
const FRAGMENTS: &[&str] =
    &["It", "Its", "They", "Their", "Those", "That of", "The same", "These", "Of", "As"];
/// Sentences that begin with such a word and name their subject.
const ALLOWED: &[&str] = &["As RFC "];
/// What the header of a module must not begin with: it says what the module is for, and not only where to read on.
const REFERENCES: &[&str] = &["See "];

/// Checks the Rust files of the packages, and the headers of all others.
pub(super) fn check() -> Result<()> {
    let list = exec::output(exec::command("git").args([
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
        "*.rs",
    ]))
    .context("list of Rust files")?;
    let mut wrong = Vec::new();
    for file in list.lines() {
        // Deleted but not yet committed: nothing to check.
        let Ok(text) = std::fs::read_to_string(paths::root().join(file)) else { continue };
        wrong.extend(problems(file, &text));
    }
    if wrong.is_empty() { Ok(()) } else { bail!("{}", wrong.join("\n")) }
}

/// Problems of one file. Only the first line of a comment is looked at: later lines may refer to it.
fn problems(file: &str, text: &str) -> Vec<String> {
    let is_shipped = PACKAGES.iter().any(|package| file.split('/').next() == Some(package));
    let (mut wrong, mut continues) = (Vec::new(), false);
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim_start();
        let (item, header) = (line.strip_prefix("///"), line.strip_prefix("//!"));
        if let Some(comment) = item.or(header)
            && !continues
        {
            let comment = comment.trim_start();
            if let Some(word) = fragment(comment).filter(|_| is_shipped) {
                wrong.push(format!("{file}:{number}: the comment begins with `{word}`: name its subject"));
            }
            if header.is_some()
                && let Some(word) = REFERENCES.iter().find(|word| comment.starts_with(*word))
            {
                wrong.push(format!(
                    "{file}:{number}: the header begins with `{}`: say what the module is for",
                    word.trim_end()
                ));
            }
        }
        continues = item.is_some() || header.is_some();
    }
    wrong
}

/// What a comment begins with, if that cannot stand alone.
fn fragment(comment: &str) -> Option<&'static str> {
    if ALLOWED.iter().any(|allowed| comment.starts_with(allowed)) {
        return None;
    }
    let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_' || c == '-');
    FRAGMENTS.iter().copied().find(|word| comment.strip_prefix(word).is_some_and(ends))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(file: &str, text: &str) -> usize {
        problems(file, text).len()
    }

    #[test]
    fn a_comment_of_a_shipped_package_names_its_subject() {
        for comment in [
            "It is written.",
            "Its name.",
            "That of a pod.",
            "The same, of IPv6.",
            "As [`X`].",
            "Of these, some.",
        ] {
            assert_eq!(wrong("api/src/x.rs", &format!("    /// {comment}\n    a: u8,\n")), 1, "{comment}");
            assert_eq!(wrong("testbed/src/x.rs", &format!("/// {comment}\n")), 0, "{comment}");
        }
        for comment in
            ["Items of a list.", "Assigned.", "That no pod is lost.", "As RFC 768 says, 0 is no checksum."]
        {
            assert_eq!(wrong("api/src/x.rs", &format!("/// {comment}\n")), 0, "{comment}");
        }
    }

    #[test]
    fn later_lines_may_refer_to_the_first() {
        assert_eq!(
            wrong("api/src/x.rs", "/// The name of a pod.\n/// It is unique.\n///\n/// As given.\n"),
            0
        );
        assert_eq!(wrong("api/src/x.rs", "/// A name.\na: u8,\n/// Its length.\nb: u8,\n"), 1);
        assert_eq!(wrong("api/src/x.rs", "// It is no doc comment.\n"), 0);
    }

    #[test]
    fn a_header_says_what_its_module_is_for() {
        assert_eq!(wrong("e2e/tests/x.rs", "//! See `e2e::x`.\n"), 1);
        assert_eq!(wrong("e2e/tests/x.rs", "//! Runs `e2e::x`. See there.\n"), 0);
        assert_eq!(wrong("api/src/x.rs", "//! The same for IPv6.\n"), 1);
    }
}
