//! The repository's files, and whether a word of a document that looks like one of them exists.

use std::collections::BTreeSet;

/// A word of a document with one of these endings is checked as a path of the repository.
const ENDINGS: &[&str] = &[".rs", ".md", ".toml", ".yaml", ".json"];

/// Files and directories of the repository.
#[derive(Debug)]
pub(super) struct Tree {
    files: BTreeSet<String>,
    directories: BTreeSet<String>,
}

impl Tree {
    /// From the list of files, relative to the root.
    pub(super) fn new<'a>(files: impl Iterator<Item = &'a str>) -> Self {
        let files: BTreeSet<String> = files.map(str::to_owned).collect();
        let parents = |f: &str| f.match_indices('/').map(|(at, _)| f[..at].to_owned()).collect::<Vec<_>>();
        let directories = files.iter().flat_map(|f| parents(f)).collect();
        Self { files, directories }
    }

    /// All files, sorted.
    pub(super) fn files(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(String::as_str)
    }

    /// Whether the path is a file or a directory; `""` is the root.
    pub(super) fn has(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        path.is_empty() || self.files.contains(path) || self.directories.contains(path)
    }

    /// Whether the word begins with a directory of the root.
    pub(super) fn is_rooted(&self, word: &str) -> bool {
        word.split_once('/').is_some_and(|(first, _)| self.directories.contains(first))
    }

    /// The problem with a word of a document, if it looks like a path of the repository: a path that does not exist, or one that is
    /// neither relative to the root nor to the document's directory and fits several files.
    pub(super) fn problem(&self, document: &str, word: &str) -> Option<String> {
        let word =
            word.trim_start_matches(['(', '\'', '"']).trim_end_matches([',', ';', ':', '.', ')', '\'', '"']);
        let word = word.split('#').next().unwrap_or(word);
        let all: Vec<String> = braces(word);
        let wrong: Vec<String> = all.iter().filter_map(|path| self.problem_of_one(document, path)).collect();
        (!wrong.is_empty()).then(|| wrong.join("; "))
    }

    fn problem_of_one(&self, document: &str, path: &str) -> Option<String> {
        let names_file = path.contains('/') && ENDINGS.iter().any(|e| path.ends_with(e));
        let names_room = path.ends_with('/') && path.matches('/').count() > 1 && !path.starts_with('.');
        let rooted = self.is_rooted(path);
        if !(rooted || names_file || names_room) || is_elsewhere(path) {
            return None;
        }
        let beside = relative(document, path).is_some_and(|p| self.has(&p));
        if beside || self.exists(path) {
            return None;
        }
        let missing = Some(format!("the path {path} does not exist"));
        if rooted {
            return missing;
        }
        let ending = format!("/{}", path.trim_end_matches('/'));
        if names_room {
            return if self.directories.iter().any(|d| d.ends_with(&ending)) { None } else { missing };
        }
        let fitting: Vec<&str> = self.files().filter(|f| f.ends_with(&ending)).collect();
        match fitting.as_slice() {
            [] => missing,
            [_] => None,
            several => Some(format!("the path {path} may be any of {}: say which", several.join(", "))),
        }
    }

    /// Whether the path exists. A component `*` matches any name.
    fn exists(&self, path: &str) -> bool {
        let fits = |name: &str| {
            let (mut wanted, mut there) = (path.trim_end_matches('/').split('/'), name.split('/'));
            loop {
                match (wanted.next(), there.next()) {
                    (None, None) => return true,
                    (Some(w), Some(t)) if w == "*" || w == t => {}
                    _ => return false,
                }
            }
        };
        self.has(path) || (path.contains('*') && self.files.iter().chain(&self.directories).any(|f| fits(f)))
    }
}

/// A path outside of the repository, one with a placeholder, or one under a name with a dot, such as an annotation's.
fn is_elsewhere(path: &str) -> bool {
    let first = path.split('/').next().unwrap_or(path);
    path.starts_with(['/', '~', '$', '-'])
        || path.contains(['<', '>', '=', '…', '$', ':'])
        || path.contains("..")
        || first == "target"
        || (first.contains('.') && first != ".github" && first != ".ci" && first != ".cargo")
}

/// `a/{b,c}.rs` as `a/b.rs` and `a/c.rs`; any other word unchanged.
fn braces(word: &str) -> Vec<String> {
    let parts = word.split_once('{').and_then(|(head, rest)| Some((head, rest.split_once('}')?)));
    let Some((head, (middle, tail))) = parts else { return vec![word.to_owned()] };
    middle.split(',').flat_map(|one| braces(&format!("{head}{}{tail}", one.trim()))).collect()
}

/// Converts a path relative to a document to one relative to the root; `None` when it leads out of the repository.
pub(super) fn relative(document: &str, path: &str) -> Option<String> {
    let mut at: Vec<&str> = document.split('/').collect();
    at.pop();
    for component in path.trim_end_matches('/').split('/') {
        match component {
            "." | "" => {}
            ".." => drop(at.pop()?),
            name => at.push(name),
        }
    }
    Some(at.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(word: &str) -> Option<String> {
        let files = [
            "docs/a.md",
            "docs/decisions/0001-one.md",
            "controller/src/plan/mod.rs",
            "controller/src/index/mod.rs",
            "controller/src/index/service.rs",
            "testbed/go/x/go.mod",
            ".github/workflows/ci.yaml",
        ];
        Tree::new(files.into_iter()).problem("docs/a.md", word)
    }

    #[test]
    fn a_path_from_the_root_must_exist() {
        assert_eq!(problem("controller/src/plan/"), None);
        assert_eq!(problem("controller/src/plan/mod.rs,"), None);
        assert_eq!(problem(".github/workflows/ci.yaml"), None);
        assert!(problem(".github/workflows/gone.yaml").is_some());
        assert!(problem("controller/src/plan/gone").is_some());
        assert!(problem("controller/gone.txt").is_some());
    }

    #[test]
    fn a_path_from_elsewhere_must_fit_one_file() {
        assert_eq!(problem("index/service.rs"), None);
        assert_eq!(problem("decisions/0001-one.md"), None, "beside the document");
        assert!(problem("index/gone.rs").unwrap().contains("does not exist"));
        let files = ["a/x/mod.rs", "b/x/mod.rs"];
        let several = Tree::new(files.into_iter()).problem("docs/a.md", "x/mod.rs").unwrap();
        assert!(several.contains("a/x/mod.rs, b/x/mod.rs"), "{several}");
    }

    #[test]
    fn a_directory_by_its_last_names_must_exist_somewhere() {
        assert_eq!(problem("src/index/"), None);
        assert!(problem("src/fastpath/").is_some());
        assert_eq!(problem("logs/"), None, "may be a directory of anything");
    }

    #[test]
    fn braces_and_stars_are_expanded() {
        assert_eq!(problem("controller/src/{plan,index}/mod.rs"), None);
        assert!(problem("controller/src/{plan,gone}/mod.rs").is_some());
        assert_eq!(problem("testbed/go/*/go.mod"), None);
        assert!(problem("testbed/go/*/go.sum").is_some());
    }

    #[test]
    fn other_words_with_slashes_are_no_paths() {
        for word in [
            "and/or",
            "target/bench/x.json",
            "/etc/x.yaml",
            "~/.cache/y.json",
            "slipstream.dev/",
            "$X/z.json",
        ] {
            assert_eq!(problem(word), None, "{word}");
        }
    }
}
