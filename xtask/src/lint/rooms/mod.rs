//! Which module of a package may import from which: imports point one way.
//!
//! A room is a top-level module of the package: a directory or a single file of `src/`. Each may import from those before it in the
//! package's list, and from no other. Within a room no modules may use each other in a circle, but for suites
//! of end-to-end tests. What a root passes on with `use` counts
//! as the module that it is from. What only tests compile may import from any.

mod arrows;
mod packages;
mod source;

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};

use crate::{exec, paths};
use arrows::{Arrows, Modules, circles};
use packages::{PACKAGES, Package, Rooms};
use source::{Path, Source};

/// Checks every file that git tracks or would add.
pub(super) fn check() -> Result<()> {
    let list =
        exec::output(exec::command("git").args(["ls-files", "--cached", "--others", "--exclude-standard"]))
            .context("list of files")?;
    let files: Vec<&str> = list.lines().filter(|file| paths::root().join(file).exists()).collect();
    let mut wrong = unlisted(&files);
    for package in PACKAGES {
        let (Rooms::Ordered(rooms) | Rooms::Suites(rooms)) = package.rooms;
        let mut modules = Modules::default();
        for (file, module) in files.iter().filter_map(|file| Some((file, package.module(file)?))) {
            let text =
                std::fs::read_to_string(paths::root().join(file)).with_context(|| (*file).to_owned())?;
            let source = Source::read(&text, &module).with_context(|| (*file).to_owned())?;
            modules.add(module, source);
        }
        wrong.extend(places(package.source, rooms, &modules));
        let arrows = modules.arrows();
        wrong.extend(upward(package.source, rooms, &arrows));
        if matches!(package.rooms, Rooms::Ordered(_)) {
            wrong.extend(round(package.source, &arrows));
        }
    }
    if wrong.is_empty() { Ok(()) } else { bail!("{}", wrong.join("\n")) }
}

impl Package {
    /// The module of a source file of the package; the root of library and program is the empty path.
    fn module(&self, file: &str) -> Option<Path> {
        let inside = file.strip_prefix(self.source)?.strip_prefix('/')?.strip_suffix(".rs")?;
        let mut module: Path = inside.split('/').map(str::to_owned).collect();
        let is_root = module.len() == 1 && matches!(inside, "lib" | "main");
        if is_root || module.last().is_some_and(|name| name == "mod") {
            module.pop();
        }
        Some(module)
    }
}

/// Packages of the workspace that are not listed.
fn unlisted(files: &[&str]) -> Vec<String> {
    let sources = files.iter().filter_map(|file| {
        let directory = file.strip_suffix("/Cargo.toml")?;
        Some(format!("{directory}/src"))
    });
    let unlisted = sources.filter(|source| {
        let inside = format!("{source}/");
        files.iter().any(|file| file.starts_with(&inside)) && PACKAGES.iter().all(|p| p.source != source)
    });
    unlisted
        .map(|source| format!("{source} is new: list its rooms in xtask/src/lint/rooms/packages.rs"))
        .collect()
}

/// Rooms without a place in the order, and places without a room.
fn places(source: &str, rooms: &[&str], modules: &Modules) -> Vec<String> {
    let seen = modules.rooms();
    let unlisted = seen.iter().filter(|room| !rooms.contains(room)).map(|room| {
        format!(
            "{source}/{room} is new: say in xtask/src/lint/rooms/packages.rs where in the order it stands"
        )
    });
    let gone = rooms.iter().filter(|room| !seen.contains(**room)).map(|room| {
        format!("{source}/{room} is listed in xtask/src/lint/rooms/packages.rs, and is not there")
    });
    unlisted.chain(gone).collect()
}

/// Arrows from a room to one that stands above it.
fn upward(source: &str, rooms: &[&str], arrows: &Arrows) -> Vec<String> {
    let place = |of: &str| rooms.iter().position(|room| *room == of);
    let between = arrows.get(&Path::new()).into_iter().flatten();
    let above =
        between.filter(|((from, to), _)| matches!((place(from), place(to)), (Some(a), Some(b)) if b > a));
    above
        .map(|((from, to), why)| {
            format!("{source}: `{from}` must not import from `{to}`, which stands above it: {why}")
        })
        .collect()
}

/// Circles of modules within the rooms.
fn round(source: &str, arrows: &Arrows) -> Vec<String> {
    let inside = arrows.iter().filter(|(level, _)| !level.is_empty());
    inside
        .flat_map(|(level, between)| {
            circles(between).into_iter().map(move |circle| {
                let within = |((from, to), _): &(&(String, String), &String)| {
                    circle.contains(from.as_str()) && circle.contains(to.as_str())
                };
                let arrows: BTreeMap<_, _> = between.iter().filter(within).collect();
                let arrows: Vec<String> =
                    arrows.into_iter().map(|((from, to), why)| format!("  `{from}` → `{to}`: {why}")).collect();
                format!(
                    "{source}/{}: modules use each other in a circle; move what both sides need below both:\n{}",
                    level.join("/"),
                    arrows.join("\n")
                )
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOMS: &[&str] = &["low", "middle", "high"];

    fn house(files: &[(&str, &str)]) -> Modules {
        let package = Package { source: "x/src", rooms: Rooms::Ordered(ROOMS) };
        let mut modules = Modules::default();
        for (file, text) in files {
            let module = package.module(file).unwrap();
            let source = Source::read(text, &module).unwrap();
            modules.add(module, source);
        }
        modules
    }

    fn upward_in(file: &str, text: &str) -> usize {
        let files = [("x/src/low.rs", ""), ("x/src/middle/mod.rs", ""), ("x/src/high.rs", ""), (file, text)];
        upward("x/src", ROOMS, &house(&files).arrows()).len()
    }

    #[test]
    fn a_room_imports_only_from_those_before_it() {
        assert_eq!(upward_in("x/src/middle/a.rs", "use crate::low::Thing;\nuse std::fs;"), 0);
        assert_eq!(upward_in("x/src/middle/a.rs", "use crate::high::Thing;"), 1);
        assert_eq!(upward_in("x/src/middle/a.rs", "use super::super::high::Thing;"), 1);
        assert_eq!(upward_in("x/src/low.rs", "fn f() { crate::middle::g() }"), 1);
        assert_eq!(upward_in("x/src/low.rs", "use super::middle::g;"), 1);
        assert_eq!(upward_in("x/src/low.rs", "use crate::low::other;"), 0);
        assert_eq!(upward_in("x/src/lib.rs", "use crate::high::Thing;"), 0);
        assert_eq!(upward_in("x/src/low.rs", "#[cfg(test)] use crate::high::Thing;"), 0);
    }

    #[test]
    fn every_room_has_a_place_and_every_place_a_room() {
        let whole =
            [("x/src/low/a.rs", ""), ("x/src/middle.rs", ""), ("x/src/high.rs", ""), ("x/src/main.rs", "")];
        assert!(places("x/src", ROOMS, &house(&whole)).is_empty());
        let odd = places(
            "x/src",
            ROOMS,
            &house(&[("x/src/low.rs", ""), ("x/src/attic.rs", ""), ("x/src/high.rs", "")]),
        );
        assert_eq!(odd.len(), 2, "{odd:?}");
        assert!(
            odd[0].contains("x/src/attic is new") && odd[1].contains("x/src/middle is listed"),
            "{odd:?}"
        );
    }

    #[test]
    fn folders_of_a_room_do_not_use_each_other_in_a_circle() {
        let down = [
            ("x/src/middle/one/a.rs", "use crate::middle::two::b::B;"),
            ("x/src/middle/two/b.rs", "use super::super::three::C;"),
            ("x/src/middle/three.rs", ""),
        ];
        assert!(round("x/src", &house(&down).arrows()).is_empty());
        let mut back = down.to_vec();
        back[2].1 = "use super::one::a::A;";
        let found = round("x/src", &house(&back).arrows());
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("x/src/middle: ") && found[0].contains("`three` → `one`"), "{found:?}");
    }

    #[test]
    fn a_package_that_is_not_listed_is_found() {
        assert_eq!(
            unlisted(&["attic/Cargo.toml", "attic/src/lib.rs", "api/Cargo.toml", "api/src/lib.rs"]).len(),
            1
        );
        assert!(unlisted(&["Cargo.toml", "docs/x.md"]).is_empty());
    }

    #[test]
    fn the_rooms_of_this_workspace_point_one_way() {
        check().unwrap();
    }
}
