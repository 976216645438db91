//! Whether the commands in a document exist: verbs, flags, packages and their targets.

use super::programs::{Programs, flags_in};

/// Code spans that begin like a command and are not one: names of checks, as a run prints them.
const NOT_COMMANDS: &[&str] = &["slipctl shows the pressure"];

/// Problems with the commands of one line or code span. Commands of other projects are not checked.
pub(super) fn problems(text: &str, programs: &Programs) -> Vec<String> {
    if NOT_COMMANDS.contains(&text) {
        return Vec::new();
    }
    let parts = text.split("&&").flat_map(|t| t.split(';')).flat_map(|t| t.split(" | "));
    parts.flat_map(|part| command(part, programs)).collect()
}

fn command(text: &str, programs: &Programs) -> Vec<String> {
    // Variables that are set for the command precede it.
    let words: Vec<&str> =
        text.split_whitespace().skip_while(|w| w.contains('=') && !w.starts_with('-')).collect();
    match words.as_slice() {
        ["cargo", "xtask", rest @ ..] => xtask(rest, programs),
        ["cargo", "test" | "bench" | "build" | "check" | "clippy" | "run" | "nextest", rest @ ..] => {
            cargo(rest, programs)
        }
        [program, rest @ ..] => {
            let name = program.rsplit_once('/').map_or(*program, |(_, name)| name);
            ours(name, rest, programs)
        }
        [] => Vec::new(),
    }
}

fn xtask(words: &[&str], programs: &Programs) -> Vec<String> {
    let Some(verb) = words.first().filter(|w| is_name(w)) else { return Vec::new() };
    match programs.xtask.get(*verb) {
        None => vec![format!("cargo xtask has no verb {verb}")],
        Some(None) => Vec::new(),
        Some(Some(known)) => flags_in(&before_separator(words))
            .filter(|f| !known.contains(f) && f != "help")
            .map(|f| format!("cargo xtask {verb} has no flag --{f}"))
            .collect(),
    }
}

fn ours(name: &str, words: &[&str], programs: &Programs) -> Vec<String> {
    let Some(program) = programs.ours.get(name) else { return Vec::new() };
    let words = before_separator(words);
    let mut wrong: Vec<String> = flags_in(&words)
        .filter(|f| !program.flags.contains(f) && f != "help" && f != "version")
        .map(|f| format!("{name} has no flag --{f}"))
        .collect();
    // A flag before the verb may have its value as a separate word.
    let mut words = words.split_whitespace();
    let verb = loop {
        match words.next() {
            Some(flag) if flag.starts_with('-') => drop((!flag.contains('=')).then(|| words.next())),
            other => break other,
        }
    };
    if let Some(verb) = verb.filter(|v| is_name(v) && !program.verbs.is_empty())
        && !program.verbs.contains(verb)
    {
        wrong.push(format!("{name} has no verb {verb}"));
    }
    wrong
}

fn cargo(words: &[&str], programs: &Programs) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut package = None;
    let words = before_separator(words);
    let words: Vec<&str> = words.split_whitespace().collect();
    let pairs =
        words.iter().zip(words.iter().skip(1).map(|w| w.trim_end_matches(','))).filter(|(_, v)| is_name(v));
    for (flag, value) in pairs {
        let kind = match *flag {
            "-p" | "--package" => {
                if !programs.packages.contains_key(value) {
                    wrong.push(format!("there is no package {value}"));
                }
                package = Some(value);
                continue;
            }
            "--test" => "test",
            "--bench" => "bench",
            "--bin" => "bin",
            "--example" => "example",
            _ => continue,
        };
        let target = format!("{kind} {value}");
        let has = |name: &str| programs.packages.get(name).is_none_or(|targets| targets.contains(&target));
        if package.is_some_and(|name| !has(name)) {
            wrong.push(format!("the package {} has no {target}", package.unwrap_or_default()));
        }
    }
    wrong
}

/// The words before `--`, after which the words of another program begin.
fn before_separator(words: &[&str]) -> String {
    words.iter().take_while(|w| **w != "--").copied().collect::<Vec<_>>().join(" ")
}

/// Whether a word is a name, and not a placeholder such as `VERB`, `[FOCUS]` or `…`.
fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_lowercase())
        && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> Vec<String> {
        problems(text, &Programs::for_tests())
    }

    #[test]
    fn verbs_and_flags_of_xtask_exist() {
        for good in
            ["cargo xtask test --only real", "cargo xtask VERB", "cargo xtask up --anything", "cargo xtask"]
        {
            assert_eq!(wrong(good), [""; 0], "{good}");
        }
        assert_eq!(wrong("cargo xtask gone"), ["cargo xtask has no verb gone"]);
        assert_eq!(wrong("X=1 cargo xtask test [--gone N]"), ["cargo xtask test has no flag --gone"]);
    }

    #[test]
    fn verbs_and_flags_of_our_programs_exist() {
        for good in [
            "testbed",
            "testbed …",
            "target/debug/testbed --name mine up --nodes 3",
            "slipctl flows --limit 3",
        ] {
            assert_eq!(wrong(good), [""; 0], "{good}");
        }
        assert_eq!(wrong("target/release/testbed --name mine gone"), ["testbed has no verb gone"]);
        assert_eq!(
            wrong("slipctl status && slipctl gone --what"),
            ["slipctl has no flag --what", "slipctl has no verb gone"]
        );
    }

    #[test]
    fn what_follows_two_dashes_is_of_another_program() {
        assert_eq!(wrong("testbed up -- ip --gone"), [""; 0]);
    }

    #[test]
    fn packages_and_their_targets_exist() {
        for good in [
            "cargo test -p node-agent --test bpf",
            "cargo test -p CRATE --lib",
            "cargo build --release -p node-agent",
        ] {
            assert_eq!(wrong(good), [""; 0], "{good}");
        }
        assert_eq!(wrong("cargo test -p gone"), ["there is no package gone"]);
        assert_eq!(
            wrong("cargo test -p node-agent --test gone"),
            ["the package node-agent has no test gone"]
        );
    }
}
