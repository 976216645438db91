//! Which module of a package uses which: one arrow for each pair of neighbours, at every depth.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Path, Source};

/// The modules of a package.
#[derive(Debug, Default)]
pub(super) struct Modules(BTreeMap<Path, Source>);

/// The arrows between the modules directly below each module: from whom, to whom, and one place that makes it.
pub(super) type Arrows = BTreeMap<Path, BTreeMap<(String, String), String>>;

/// A name is followed through so many roots at most.
const MOST_STEPS: usize = 8;

impl Modules {
    /// Adds a file. The roots of library and program are one module.
    pub(super) fn add(&mut self, module: Path, source: Source) {
        let known = self.0.entry(module).or_default();
        known.paths.extend(source.paths);
        known.names.extend(source.names);
        known.items.extend(source.items);
        known.globs.extend(source.globs);
        known.tests.extend(source.tests);
    }

    /// Names of the modules directly below the root.
    pub(super) fn rooms(&self) -> BTreeSet<&str> {
        self.0.keys().filter_map(|module| module.first().map(String::as_str)).collect()
    }

    /// Every arrow, except those of what only tests compile.
    pub(super) fn arrows(&self) -> Arrows {
        let mut arrows = Arrows::new();
        for (module, source) in self.0.iter().filter(|(module, _)| !self.is_for_tests(module)) {
            for path in &source.paths {
                let to = self.module_of(path);
                let shared = module.iter().zip(&to).take_while(|(one, other)| one == other).count();
                if let (Some(from), Some(to)) = (module.get(shared), to.get(shared)) {
                    let place = format!("{} names {}", module.join("::"), path.join("::"));
                    let level = arrows.entry(module[..shared].to_vec()).or_default();
                    level.entry((from.clone(), to.clone())).or_insert(place);
                }
            }
        }
        arrows
    }

    fn is_for_tests(&self, module: &[String]) -> bool {
        (0..module.len()).any(|depth| {
            self.0.get(&module[..depth]).is_some_and(|above| above.tests.contains(&module[depth]))
        })
    }

    /// The module in which a thing is, found through the names that modules pass on.
    fn module_of(&self, path: &[String]) -> Path {
        let mut path = path.to_vec();
        for _ in 0..MOST_STEPS {
            let depth =
                (0..=path.len()).rev().find(|depth| self.0.contains_key(&path[..*depth])).unwrap_or(0);
            let (module, inside) = path.split_at(depth);
            let further = inside.first().and_then(|name| self.further(module, name));
            match further {
                // What is brought in from another crate is at home here.
                Some(further) if further != path && self.is_ours(&further, module) => {
                    path = [&further, &inside[1..]].concat();
                }
                _ => return module.to_vec(),
            }
        }
        path
    }

    /// Where a module has a name from, if it brings it in.
    fn further(&self, module: &[String], name: &String) -> Option<Path> {
        let source = self.0.get(module)?;
        if let Some(path) = source.names.get(name) {
            return Some(path.clone());
        }
        let foreign = |_: &&Path| !source.items.contains(name);
        let glob = source.globs.iter().filter(foreign).find(|glob| self.has(glob, name, MOST_STEPS))?;
        Some([&**glob, std::slice::from_ref(name)].concat())
    }

    /// Whether a module has a name, its own or one that it brings in.
    fn has(&self, module: &[String], name: &String, steps: usize) -> bool {
        let Some(source) = self.0.get(module).filter(|_| steps > 0) else { return false };
        source.items.contains(name)
            || source.names.contains_key(name)
            || source.globs.iter().any(|glob| self.has(glob, name, steps - 1))
    }

    /// Whether a path that a module brings in is one of this package.
    fn is_ours(&self, path: &[String], module: &[String]) -> bool {
        let below = path.strip_prefix(module);
        !below.is_some_and(|below| {
            below
                .first()
                .is_some_and(|first| !self.0.contains_key(&[module, std::slice::from_ref(first)].concat()))
        })
    }
}

/// Groups of neighbours that use each other, directly or through others.
pub(super) fn circles(arrows: &BTreeMap<(String, String), String>) -> Vec<BTreeSet<&str>> {
    let mut circles: Vec<BTreeSet<&str>> = Vec::new();
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        arrows.keys().map(|(from, _)| (from.as_str(), reach(from, arrows))).collect();
    for (from, to) in &reached {
        let circle: BTreeSet<&str> = to
            .iter()
            .copied()
            .filter(|other| reached.get(other).is_some_and(|back| back.contains(from)))
            .collect();
        if circle.len() > 1 && !circles.contains(&circle) {
            circles.push(circle);
        }
    }
    circles
}

/// Everything that arrows lead to from a module.
fn reach<'a>(from: &str, arrows: &'a BTreeMap<(String, String), String>) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut open = vec![from];
    while let Some(one) = open.pop() {
        for (_, to) in arrows.keys().filter(|(from, _)| from == one) {
            if found.insert(to.as_str()) {
                open.push(to);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Path {
        text.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect()
    }

    fn modules(files: &[(&str, &str)]) -> Modules {
        let mut modules = Modules::default();
        for (module, text) in files {
            modules.add(path(module), Source::read(text, &path(module)).unwrap());
        }
        modules
    }

    fn arrows(files: &[(&str, &str)], level: &str) -> Vec<String> {
        let arrows = modules(files).arrows();
        arrows.get(&path(level)).into_iter().flat_map(|l| l.keys()).map(|(a, b)| format!("{a} {b}")).collect()
    }

    #[test]
    fn arrows_are_between_neighbours_at_every_depth() {
        let files = [
            ("a::x::deep", "use super::super::y::Thing; use crate::b::Other; use super::Own;"),
            ("a::x", ""),
            ("a::y", "use std::fs;"),
            ("a", "mod x; mod y;"),
            ("b", ""),
        ];
        assert_eq!(arrows(&files, ""), ["a b"]);
        assert_eq!(arrows(&files, "a"), ["x y"]);
        assert_eq!(arrows(&files, "a::x"), [""; 0]);
    }

    #[test]
    fn a_name_is_followed_through_the_root_that_passes_it_on() {
        let files = [
            ("", "mod high; mod low; pub use high::Thing; use serde::Value;"),
            ("high", "pub use inner::Thing; mod inner;"),
            ("high::inner", "use crate::Thing;"),
            ("low", "use crate::{Thing, Value};"),
        ];
        assert_eq!(arrows(&files, ""), ["low high"]);
        let files = [
            ("", "mod high; mod low; pub use high::*;"),
            ("high", "pub use inner::*; mod inner;"),
            ("high::inner", "pub struct Thing;"),
            ("low", "use crate::Thing;"),
        ];
        assert_eq!(arrows(&files, ""), ["low high"], "by all names of a module");
    }

    #[test]
    fn tests_may_import_from_any() {
        let files = [
            ("low", "#[cfg(test)] mod fake;"),
            ("low::fake", "use crate::high::A;"),
            ("low::fake::more", "use crate::high::A;"),
            ("high", ""),
        ];
        assert_eq!(arrows(&files, ""), [""; 0]);
    }

    #[test]
    fn a_circle_is_found_and_a_chain_is_none() {
        let level = |pairs: &[(&str, &str)]| -> BTreeMap<(String, String), String> {
            pairs.iter().map(|(a, b)| (((*a).to_owned(), (*b).to_owned()), String::new())).collect()
        };
        assert!(circles(&level(&[("a", "b"), ("b", "c"), ("a", "c")])).is_empty());
        let round = level(&[("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("e", "a")]);
        assert_eq!(circles(&round), [BTreeSet::from(["a", "b", "c"])]);
        let two = level(&[("a", "b"), ("b", "a"), ("c", "d"), ("d", "c")]);
        assert_eq!(circles(&two).len(), 2);
    }
}
