//! Which directory of a package may import from which: imports between the rooms of a package point one way.
//!
//! A room is a top-level module of the package: a directory or a single file of `src/`. Each may import from those before it in
//! the package's list, and from no other. Tests (`tests.rs`, and everything after the first `#[cfg(test)]` of a file)
//! may import from any.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::{exec, paths};

/// The rooms of a package, lowest first.
struct Package {
    source: &'static str,
    rooms: &'static [&'static str],
}

const PACKAGES: &[Package] = &[
    Package {
        source: "controller/src",
        rooms: &[
            "unit",
            "config",
            "index",
            "alloc",
            "plan",
            "reconcile",
            "state",
            "metrics",
            "engine",
            "admin",
            "kubernetes",
            "certificates",
            "network_api",
            "cleanup",
            "run",
            "args",
        ],
    },
    Package {
        source: "node-agent/src",
        rooms: &[
            "kernel",
            "attach",
            "config",
            "health",
            "metrics",
            "ovs",
            "kube",
            "flow_cache",
            "bpf",
            "lock",
            "datapath",
            "node",
            "pod",
            "cni",
            "gateway",
            "admin",
            "cleanup",
            "run",
            "args",
        ],
    },
    Package {
        source: "traffic/src",
        rooms: &[
            "statistics",
            "measure",
            "net",
            "protocol",
            "server",
            "load",
            "report",
            "client",
            "slices",
            "compare",
            "cli",
        ],
    },
    // The programs and the programs for benchmarks are binaries, for which the library is another crate.
    Package { source: "ebpf/src", rooms: &["layout", "packet", "decide", "programs", "bench"] },
];

/// Checks every file that git tracks or would add.
pub(super) fn check() -> Result<()> {
    let list =
        exec::output(exec::command("git").args(["ls-files", "--cached", "--others", "--exclude-standard"]))
            .context("list of files")?;
    let mut wrong = Vec::new();
    for package in PACKAGES {
        let mut seen = BTreeSet::new();
        for file in list.lines().filter_map(|file| Some((file, package.inside(file)?))) {
            let (path, inside) = file;
            // Deleted but not yet committed: nothing to check.
            let Ok(text) = std::fs::read_to_string(paths::root().join(path)) else { continue };
            let Some(room) = room_of(inside) else { continue };
            seen.insert(room.to_owned());
            if !is_test(inside) {
                wrong.extend(package.violations(room, &text).into_iter().map(|why| format!("{path}: {why}")));
            }
        }
        for unlisted in seen.iter().filter(|room| !package.rooms.contains(&room.as_str())) {
            wrong.push(format!(
                "{}/{unlisted} is new: say in xtask/src/lint/rooms.rs where in the order it stands",
                package.source
            ));
        }
        for gone in package.rooms.iter().filter(|room| !seen.contains(**room)) {
            wrong.push(format!(
                "{}/{gone} is listed in xtask/src/lint/rooms.rs, and is not there",
                package.source
            ));
        }
    }
    if wrong.is_empty() { Ok(()) } else { bail!("{}", wrong.join("\n")) }
}

impl Package {
    /// The path of a source file below the package's sources.
    fn inside<'a>(&self, file: &'a str) -> Option<&'a str> {
        file.strip_prefix(self.source)?.strip_prefix('/').filter(|file| file.ends_with(".rs"))
    }

    /// Forbidden imports of a file of `room`.
    fn violations(&self, room: &str, text: &str) -> Vec<String> {
        let place = |of: &str| self.rooms.iter().position(|r| *r == of);
        let Some(own) = place(room) else { return Vec::new() };
        let imported = imports(text);
        let above = imported.iter().filter(|other| place(other).is_some_and(|at| at > own));
        above.map(|other| format!("`{room}` must not import from `{other}`, which stands above it")).collect()
    }
}

/// The room of a file; `None` for the roots of the library and the program.
fn room_of(inside: &str) -> Option<&str> {
    let first = inside.split('/').next()?;
    let room = first.strip_suffix(".rs").unwrap_or(first);
    (!matches!(first, "lib.rs" | "main.rs")).then_some(room)
}

fn is_test(inside: &str) -> bool {
    let file = Path::new(inside).file_name().and_then(|name| name.to_str());
    matches!(file, Some("tests.rs" | "fake.rs" | "fixture.rs"))
}

/// The top-level modules that a file names after `crate::`, except in tests and comments.
fn imports(text: &str) -> BTreeSet<String> {
    let code: String = text
        .split("#[cfg(test)]\nmod ")
        .next()
        .unwrap_or_default()
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n");
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        // `other_crate::` is not a path of this crate.
        if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let rest = &code[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            Some(list) => found.extend(heads(list)),
            None => found.extend(head(rest)),
        }
    }
    found
}

/// The first name of a path.
fn head(path: &str) -> Option<String> {
    let name: String = path.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    (!name.is_empty()).then_some(name)
}

/// The first names of the paths in `a::b, c::{d, e}, f}`, up to the brace that closes the list.
fn heads(list: &str) -> Vec<String> {
    let (mut depth, mut start, mut heads) = (0_u32, 0, Vec::new());
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => {
                heads.extend(head(&list[start..at]));
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                heads.extend(head(&list[start..at]));
                start = at + 1;
            }
            _ => {}
        }
    }
    heads
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUSE: Package = Package { source: "x/src", rooms: &["low", "middle", "high"] };

    #[test]
    fn a_room_imports_only_from_those_before_it() {
        assert_eq!(HOUSE.violations("middle", "use crate::low::Thing;\nuse std::fs;").len(), 0);
        assert_eq!(HOUSE.violations("middle", "use crate::high::Thing;").len(), 1);
        assert_eq!(HOUSE.violations("low", "fn f() { crate::middle::g() }").len(), 1);
        assert_eq!(HOUSE.violations("low", "use crate::low::other;").len(), 0);
    }

    #[test]
    fn every_form_of_import_is_seen() {
        let heads = |text| imports(text).into_iter().collect::<Vec<_>>();
        assert_eq!(heads("use crate::{low::{a, b}, high};\n"), ["high", "low"]);
        assert_eq!(heads("use crate::{\n    low,\n    middle::x,\n};\n"), ["low", "middle"]);
        assert_eq!(heads("pub(in crate::low) fn f() {}"), ["low"]);
        assert!(heads("use their_crate::high; // crate::high").is_empty());
    }

    #[test]
    fn tests_may_import_from_any() {
        let text = "use crate::low;\n#[cfg(test)]\nmod tests {\n    use crate::high;\n}\n";
        assert_eq!(HOUSE.violations("middle", text).len(), 0);
        assert!(is_test("low/tests.rs") && !is_test("low/mod.rs"));
    }

    #[test]
    fn a_room_is_a_directory_or_a_file() {
        assert_eq!(room_of("low/deep/file.rs"), Some("low"));
        assert_eq!(room_of("low.rs"), Some("low"));
        assert_eq!(room_of("lib.rs"), None);
    }
}
