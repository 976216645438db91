//! Rules about files: length, words that a directory may not contain, nothing unfinished, no paths of one machine.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::{exec, paths};

const MOST_LINES: usize = 600;

/// Code whose path has a prefix must not contain any of these words.
struct Rule {
    under: &'static str,
    except: &'static [&'static str],
    words: &'static [&'static str],
    why: &'static str,
}

const RULES: &[Rule] = &[
    Rule {
        under: "controller/src/plan/",
        except: &[],
        words: &["tokio", "kube::Client", "kube::client", "ovsdb_client::Client", "ovsdb_client::Session"],
        why: "the plan is pure",
    },
    Rule {
        under: "controller/src/index/",
        except: &[],
        words: &["tokio", "kube::Client", "kube::client", "ovsdb_client"],
        why: "the index is plain data with synchronous methods",
    },
    Rule {
        under: "node-agent/src/",
        except: &["node-agent/src/kernel/netns.rs"],
        words: &["setns("],
        why: "only kernel/netns.rs changes a thread's namespace",
    },
    Rule {
        under: "node-agent/src/",
        except: &["node-agent/src/bpf/"],
        words: &["aya::", "use aya"],
        why: "only bpf/ names aya",
    },
    Rule {
        under: "perf-tests/src/",
        // Programs for comparison, which the product must not contain.
        except: &[
            "perf-tests/src/fastpath/direct/",
            "perf-tests/src/flood/",
            "perf-tests/src/live_frames.rs",
            "perf-tests/src/xdp_forward/",
        ],
        words: &["aya::", "use aya"],
        why: "only the programs to compare with are loaded by the benchmark itself",
    },
    Rule {
        under: "",
        except: &["ebpf/", "node-agent/src/kernel/netns.rs", "xtask/src/lint/"],
        words: &["unsafe {", "unsafe fn", "unsafe impl", "allow(unsafe_code", "expect(unsafe_code"],
        why: "unsafe code is in the eBPF programs and in node-agent/src/kernel/netns.rs only",
    },
    Rule {
        under: "",
        except: &["xtask/src/lint/"],
        words: &["todo!(", "unimplemented!("],
        why: "nothing unfinished is kept",
    },
];

/// Paths that exist only on one machine, split so that this file does not match itself.
const MACHINE_PATHS: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/tmp/", "boot")];

/// Checks every file that git tracks or would add.
pub(super) fn check() -> Result<()> {
    let list =
        exec::output(exec::command("git").args(["ls-files", "--cached", "--others", "--exclude-standard"]))
            .context("list of files")?;
    let mut wrong = Vec::new();
    for file in list.lines() {
        let path = paths::root().join(file);
        // Deleted but not yet committed, or not text: nothing to check.
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        wrong.extend(problems(file, &text));
    }
    if wrong.is_empty() { Ok(()) } else { bail!("{}", wrong.join("\n")) }
}

/// What is wrong with one file.
fn problems(file: &str, text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let generated = text.lines().next().is_some_and(|l| l.contains("@generated"));
    let is_code = Path::new(file).extension().is_some_and(|e| e == "rs");
    if is_code && !generated {
        let lines = text.lines().count();
        if lines > MOST_LINES {
            errors.push(format!("{file}: {lines} lines, more than {MOST_LINES}: split it by concern"));
        }
    }
    for (number, line) in (1..).zip(text.lines()) {
        if let Some(path) = MACHINE_PATHS.iter().find(|p| line.contains(*p)) {
            errors.push(format!("{file}:{number}: {path} is a path of one machine"));
        }
        let code = line.trim_start();
        if !is_code || code.starts_with("//") {
            continue;
        }
        for rule in RULES {
            if !file.starts_with(rule.under) || rule.except.iter().any(|e| file.starts_with(e)) {
                continue;
            }
            if let Some(word) = rule.words.iter().find(|w| code.contains(*w)) {
                errors.push(format!("{file}:{number}: names {word}: {}", rule.why));
            }
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(file: &str, text: &str) -> usize {
        problems(file, text).len()
    }

    #[test]
    fn the_plan_names_no_runtime_and_no_client() {
        assert_eq!(errors("controller/src/plan/lb.rs", "use tokio::sync::watch;"), 1);
        assert_eq!(errors("controller/src/watch.rs", "use tokio::sync::watch;"), 0);
        assert_eq!(errors("controller/src/plan/lb.rs", "//! no tokio here"), 0);
    }

    #[test]
    fn only_bpf_names_aya() {
        assert_eq!(errors("node-agent/src/bpf/load.rs", "use aya::Ebpf;"), 0);
        assert_eq!(errors("node-agent/src/sync.rs", "use aya::Ebpf;"), 1);
        assert_eq!(errors("perf-tests/src/fastpath/direct/mod.rs", "use aya::Ebpf;"), 0);
        assert_eq!(errors("perf-tests/src/fastpath/cell.rs", "use aya::Ebpf;"), 1);
    }

    #[test]
    fn a_file_over_the_limit_fails_unless_it_is_generated() {
        let long = "x\n".repeat(MOST_LINES + 1);
        assert_eq!(errors("api/src/lib.rs", &long), 1);
        assert_eq!(errors("api/src/lib.rs", &"x\n".repeat(MOST_LINES)), 0);
        assert_eq!(errors("api/src/lib.rs", &format!("// @generated\n{long}")), 0);
        assert_eq!(errors("Cargo.lock", &long), 0);
    }

    #[test]
    fn a_path_of_one_machine_is_found_in_any_file() {
        assert_eq!(errors("docs/x.md", concat!("see /ro", "ot/x")), 1);
    }
}
