//! Unused dependencies: of a package whose sources never mention them, and of the workspace if no package uses them.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::{exec, paths};

/// Dependencies that are needed although no source names them: package, dependency, reason.
const KEPT: &[(&str, &str, &str)] = &[
    ("testbed", "crc32fast", "as test programs have it: its dependents are built once"),
    ("testbed", "getrandom", "as test programs have it: its dependents are built once"),
];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    rename: Option<String>,
}

/// Reads manifests and sources and fails on a dependency that no source names.
pub(super) fn check() -> Result<()> {
    let text = exec::output(exec::cargo().args(["metadata", "--format-version=1", "--no-deps"]))?;
    let metadata: Metadata = serde_json::from_str(&text).context("output of cargo metadata")?;
    let mut wrong = Vec::new();
    for package in &metadata.packages {
        let directory =
            Path::new(&package.manifest_path).parent().context("a manifest without a directory")?;
        let crates = crates_below(directory)?;
        for dependency in &package.dependencies {
            let name = dependency.rename.as_ref().unwrap_or(&dependency.name);
            let kept = KEPT.iter().any(|(p, d, _)| *p == package.name && d == name);
            if !kept && !crates.contains(&name.replace('-', "_")) {
                wrong.push(format!(
                    "{} names {name} in no source: take it out of its Cargo.toml",
                    package.name
                ));
            }
        }
    }
    let manifest = std::fs::read_to_string(paths::root().join("Cargo.toml")).context("Cargo.toml")?;
    let taken: BTreeSet<&str> = metadata
        .packages
        .iter()
        .flat_map(|p| &p.dependencies)
        .map(|d| d.rename.as_ref().unwrap_or(&d.name).as_str())
        .collect();
    for name in shared(&manifest).filter(|name| !taken.contains(name)) {
        wrong.push(format!("no package takes {name}: take it out of [workspace.dependencies]"));
    }
    if wrong.is_empty() { Ok(()) } else { bail!("{}", wrong.join("\n")) }
}

/// The names in the section `[workspace.dependencies]`.
fn shared(manifest: &str) -> impl Iterator<Item = &str> {
    let section = manifest.lines().skip_while(|l| *l != "[workspace.dependencies]").skip(1);
    section
        .take_while(|l| !l.starts_with('['))
        .filter(|l| !l.starts_with('#'))
        .filter_map(|l| l.split_once('=').map(|(name, _)| name.trim()))
}

/// Every crate that the Rust sources under a directory may name.
fn crates_below(directory: &Path) -> Result<BTreeSet<String>> {
    let mut crates = BTreeSet::new();
    let list = exec::output(exec::command("git").arg("-C").arg(directory).args([
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
        "*.rs",
    ]))?;
    for file in list.lines() {
        // Deleted but not yet committed: nothing to read.
        let Ok(text) = std::fs::read_to_string(directory.join(file)) else { continue };
        crates.extend(crates_of(&text).map(str::to_owned));
    }
    Ok(crates)
}

/// Words that may be the name of a crate in code: the first of a path (`name::`), and the word after `use`.
fn crates_of(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(|l| l.split("//").next().unwrap_or(l)).flat_map(|code| {
        let word = |c: char| c.is_alphanumeric() || c == '_';
        let begins_path = code.match_indices("::").filter_map(move |(at, _)| {
            let head = &code[..at];
            let name = &head[head.trim_end_matches(word).len()..];
            (!name.is_empty() && !head[..head.len() - name.len()].ends_with(':')).then_some(name)
        });
        let used = code.trim_start().trim_start_matches("pub ").strip_prefix("use ");
        begins_path.chain(used.map(move |u| u.split(|c| !word(c)).next().unwrap_or(u)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_package_has_a_dependency_that_it_does_not_name() {
        check().unwrap();
    }

    #[test]
    fn crates_are_named_at_the_beginning_of_a_path_or_after_use() {
        let named = |text| crates_of(text).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(named("use a_b::C; // bytes::Bytes"), ["a_b", "a_b"]);
        assert_eq!(
            named("let bytes = x.bytes(); crate::slab::y(serde_json::from_str(z))"),
            ["crate", "serde_json"]
        );
        assert_eq!(named("pub use kube;"), ["kube"]);
    }

    #[test]
    fn shared_dependencies_are_those_of_the_workspaces_section() {
        let manifest = "[workspace]\na = 1\n[workspace.dependencies]\n# ours\nb = { path = \"b\" }\nc-d = \"1\"\n\n[x]\ne = 1\n";
        assert_eq!(shared(manifest).collect::<Vec<_>>(), ["b", "c-d"]);
    }
}
