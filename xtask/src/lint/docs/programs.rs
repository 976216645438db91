//! The commands that documents may name: verbs and flags of the workspace's programs, packages and their targets.
//!
//! Verbs and flags of `cargo xtask` come from clap. Other programs need not be built: their verbs are the variants of an enum in
//! one source file, their flags the fields with `#[arg(long)]` anywhere in their package.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::tree::Tree;
use crate::{exec, paths};

/// The file that names a program's verbs, and the enum in it.
type Verbs = (&'static str, &'static str);

/// A program, the directories of packages that have its flags, and where its verbs are: file and enum. A program without verbs has none.
const PROGRAMS: &[(&str, &[&str], Option<Verbs>)] = &[
    ("testbed", &["testbed/"], Some(("testbed/src/cli.rs", "Verb"))),
    ("e2e", &["e2e/", "testbed/"], Some(("e2e/src/cli.rs", "Verb"))),
    ("slipctl", &["slipctl/"], Some(("slipctl/src/args.rs", "Command"))),
    (
        "slipstream-node-agent",
        &["node-agent/", "api/", "supervision/"],
        Some(("node-agent/src/args.rs", "Command")),
    ),
    (
        "slipstream-controller",
        &["controller/", "api/", "supervision/"],
        Some(("controller/src/args.rs", "Command")),
    ),
    ("slipstream-entrypoint", &["entrypoint/"], Some(("entrypoint/src/args.rs", "Role"))),
    ("slipstream-traffic", &["traffic/"], Some(("traffic/src/cli/mod.rs", "Command"))),
    ("cluster-bench", &["cluster-bench/"], Some(("cluster-bench/src/args.rs", "Command"))),
    ("perf-tests", &["perf-tests/"], None),
];
/// Packages without a program whose flags may be named.
const MORE_FLAGS: &[&str] = &["api/", "supervision/"];
/// Flags of other programs that documents name without the program: kubectl's.
const FLAGS_OF_OTHERS: &[&str] = &["bound-object-kind"];

/// One program's command line.
#[derive(Debug, Default)]
pub(super) struct Program {
    /// Empty when it has none.
    pub(super) verbs: BTreeSet<String>,
    pub(super) flags: BTreeSet<String>,
}

/// Everything that commands in documents are compared with.
#[derive(Debug, Default)]
pub(super) struct Programs {
    /// By the name of the executable.
    pub(super) ours: BTreeMap<String, Program>,
    /// Verbs of `cargo xtask` with their flags; `None` for verbs that pass all arguments on.
    pub(super) xtask: BTreeMap<String, Option<BTreeSet<String>>>,
    /// Packages of the workspace with their targets, as `kind name`, such as `test bpf`.
    pub(super) packages: BTreeMap<String, BTreeSet<String>>,
    /// Flags of packages without a program.
    more: BTreeSet<String>,
}

impl Programs {
    /// Reads sources, `verbs`, clap's description of this program, and `cargo metadata`.
    pub(super) fn read(tree: &Tree, verbs: &clap::Command) -> Result<Self> {
        let mut programs = Self { xtask: xtask(verbs), packages: packages()?, ..Self::default() };
        for (name, directories, source) in PROGRAMS {
            let verbs = source.map(|(file, item)| verbs_of(file, item)).transpose()?.unwrap_or_default();
            let mut flags = BTreeSet::new();
            for directory in *directories {
                flags.extend(flags_below(tree, directory)?);
            }
            programs.ours.insert((*name).to_owned(), Program { verbs, flags });
        }
        for directory in MORE_FLAGS {
            programs.more.extend(flags_below(tree, directory)?);
        }
        Ok(programs)
    }

    /// Flags in a text without a program that no program of the workspace has.
    pub(super) fn unknown_flags_of_any(&self, text: &str) -> Vec<String> {
        let known = |flag: &String| {
            self.more.contains(flag)
                || FLAGS_OF_OTHERS.contains(&flag.as_str())
                || self.ours.values().any(|p| p.flags.contains(flag))
                || self.xtask.values().flatten().any(|flags| flags.contains(flag))
        };
        flags_in(text)
            .filter(|f| !known(f))
            .map(|f| format!("no program of ours has the flag --{f}"))
            .collect()
    }

    #[cfg(test)]
    pub(super) fn for_tests() -> Self {
        let set = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<BTreeSet<_>>();
        let program = |verbs: &[&str], flags: &[&str]| Program { verbs: set(verbs), flags: set(flags) };
        Self {
            ours: BTreeMap::from([
                ("testbed".to_owned(), program(&["up", "down"], &["name", "nodes"])),
                ("slipctl".to_owned(), program(&["status", "flows"], &["limit"])),
            ]),
            xtask: BTreeMap::from([("test".to_owned(), Some(set(&["only"]))), ("up".to_owned(), None)]),
            packages: BTreeMap::from([(
                "node-agent".to_owned(),
                set(&["test bpf", "bin slipstream-node-agent"]),
            )]),
            more: BTreeSet::new(),
        }
    }
}

/// The long flags in a text, without dashes.
pub(super) fn flags_in(text: &str) -> impl Iterator<Item = String> {
    let words = text.split(|c: char| c.is_whitespace() || "[]|(),".contains(c));
    words.filter_map(|word| {
        let name = word.strip_prefix("--")?;
        let end = name.find(|c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'));
        Some(name[..end.unwrap_or(name.len())].to_owned()).filter(|n| !n.is_empty())
    })
}

fn xtask(command: &clap::Command) -> BTreeMap<String, Option<BTreeSet<String>>> {
    let flags = |verb: &clap::Command| {
        let passes_on = verb.get_arguments().any(clap::Arg::is_trailing_var_arg_set);
        (!passes_on).then(|| verb.get_arguments().filter_map(|a| a.get_long()).map(str::to_owned).collect())
    };
    command.get_subcommands().map(|verb| (verb.get_name().to_owned(), flags(verb))).collect()
}

fn packages() -> Result<BTreeMap<String, BTreeSet<String>>> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Package>,
    }
    #[derive(Deserialize)]
    struct Package {
        name: String,
        targets: Vec<Target>,
    }
    #[derive(Deserialize)]
    struct Target {
        name: String,
        kind: Vec<String>,
    }
    let text = exec::output(exec::cargo().args(["metadata", "--format-version=1", "--no-deps"]))?;
    let metadata: Metadata = serde_json::from_str(&text).context("output of cargo metadata")?;
    let targets = |targets: Vec<Target>| {
        targets
            .into_iter()
            .flat_map(|t| t.kind.into_iter().map(move |kind| format!("{kind} {}", t.name)))
            .collect()
    };
    Ok(metadata.packages.into_iter().map(|p| (p.name, targets(p.targets))).collect())
}

fn verbs_of(file: &str, item: &str) -> Result<BTreeSet<String>> {
    let text = std::fs::read_to_string(paths::root().join(file))
        .with_context(|| format!("{file}, named in xtask/src/lint/docs/programs.rs"))?;
    let verbs = variants(&text, item);
    if verbs.is_empty() {
        bail!("{file} has no enum {item}: say in xtask/src/lint/docs/programs.rs where the verbs are");
    }
    Ok(verbs)
}

/// The variants of an enum in formatted source text, in the spelling that clap gives them on the command line. In place of a variant that
/// clap flattens there are those of the enum in it, which has the variant's name.
fn variants(text: &str, item: &str) -> BTreeSet<String> {
    let head = format!("enum {item} {{");
    let body = text.lines().skip_while(|l| !l.ends_with(&head)).skip(1).take_while(|l| *l != "}");
    let (mut names, mut is_flattened) = (BTreeSet::new(), false);
    for line in body.filter_map(|line| line.strip_prefix("    ")) {
        if line == "#[command(flatten)]" {
            is_flattened = true;
        } else if line.starts_with(|c: char| c.is_ascii_uppercase()) {
            let name = line.split(|c: char| !c.is_alphanumeric()).next().unwrap_or(line);
            if std::mem::take(&mut is_flattened) {
                names.append(&mut variants(text, name));
            } else {
                names.insert(kebab(name));
            }
        }
    }
    names
}

/// The long flags of every `#[arg(long)]` under a directory.
fn flags_below(tree: &Tree, directory: &str) -> Result<BTreeSet<String>> {
    let mut flags = BTreeSet::new();
    for file in tree.files().filter(|f| f.starts_with(directory) && f.ends_with(".rs")) {
        let text = std::fs::read_to_string(paths::root().join(file)).with_context(|| file.to_owned())?;
        flags.extend(flags_of(&text));
    }
    Ok(flags)
}

fn flags_of(text: &str) -> Vec<String> {
    let mut flags = Vec::new();
    for (at, start) in text.match_indices("#[arg(") {
        let Some((attribute, rest)) = text[at + start.len()..].split_once(")]") else { continue };
        let words: Vec<&str> = attribute.split(',').map(str::trim).collect();
        if let Some(name) = words.iter().find_map(|w| w.strip_prefix("long = \"")) {
            flags.push(name.trim_end_matches('"').to_owned());
        } else if words.contains(&"long") {
            // Further attributes and comments may be between this one and the field.
            let field = rest.lines().map(str::trim).find(|l| !l.is_empty() && !l.starts_with(['#', '/']));
            let name = field.and_then(|f| f.split(':').next()).and_then(|f| f.split_whitespace().last());
            flags.extend(name.map(|n| n.replace('_', "-")));
        }
    }
    flags
}

fn kebab(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !out.is_empty() {
            out.push('-');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn verbs_are_the_variants_of_the_enum() {
        let text = "enum Other {\n    No,\n}\n#[derive(Subcommand)]\nenum Verb {\n    /// Bring up.\n    Up(Shape),\n    \
                    #[command(hide = true)]\n    HostInit {\n        Path: u8,\n    },\n    Down,\n}\n";
        assert_eq!(variants(text, "Verb").into_iter().collect::<Vec<_>>(), ["down", "host-init", "up"]);
        let all =
            format!("{text}enum All {{\n    Demo(Demo),\n    #[command(flatten)]\n    Verb(Verb),\n}}\n");
        assert_eq!(
            variants(&all, "All").into_iter().collect::<Vec<_>>(),
            ["demo", "down", "host-init", "up"]
        );
    }

    #[test]
    fn flags_are_fields_with_long() {
        let text = "#[arg(long, default_value_t = f(1))]\n    pub nodes: u8,\n  #[arg(short)]\n x: u8,\n #[arg(long = \"cap\")]\n y: u8,\n \
                    #[arg(\n        long,\n        env = \"X\"\n    )]\n    pub(crate) dual_stack: bool,";
        assert_eq!(flags_of(text), ["nodes", "cap", "dual-stack"]);
    }

    #[test]
    fn flags_of_a_usage_line_are_found() {
        let flags: Vec<_> =
            flags_in("x [FOCUS] [--skip REGEX].. [--datapath auto|ebpf] --flow-table-size=1024 --").collect();
        assert_eq!(flags, ["skip", "datapath", "flow-table-size"]);
    }

    #[test]
    fn this_program_tells_its_own_verbs() {
        let verbs = xtask(&crate::cli::Args::command());
        assert!(verbs["test"].as_ref().is_some_and(|flags| flags.contains("only")));
        assert!(verbs["bench"].is_none(), "passes its arguments on");
    }
}
