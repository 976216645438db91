//! What one source file names: paths of its own package, and names that it brings in with `use`.
//!
//! Read as tokens, so that paths inside macros count and those in comments and texts do not.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::Peekable;
use std::str::FromStr;
use std::vec::IntoIter;

use anyhow::{Result, anyhow};
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// A module or what is in one, by its names from the root of the package.
pub(super) type Path = Vec<String>;

/// What a file names outside of what only tests compile.
#[derive(Debug, Default)]
pub(super) struct Source {
    /// Paths from the root of the package. Those that do not begin with `crate`, `self` or `super` are taken as paths of modules below the
    /// file's own, which they need not be.
    pub(super) paths: Vec<Path>,
    /// What `use` at the top of the file brings in, by the name that it has there.
    pub(super) names: BTreeMap<String, Path>,
    /// Names of the items at the top of the file.
    pub(super) items: BTreeSet<String>,
    /// Modules all of whose names `use` at the top of the file brings in.
    pub(super) globs: BTreeSet<Path>,
    /// Modules below this one that only tests compile.
    pub(super) tests: BTreeSet<String>,
}

type Tokens = Peekable<IntoIter<TokenTree>>;

impl Source {
    /// Reads the text of the file whose module is `module`.
    pub(super) fn read(text: &str, module: &[String]) -> Result<Self> {
        let tokens =
            TokenStream::from_str(text).map_err(|error| anyhow!("cannot be read as Rust: {error}"))?;
        let mut source = Self::default();
        source.walk(tokens, module, true);
        Ok(source)
    }

    /// Reads tokens of the module `at`; `top` says that they are the file's own items, not those of a block.
    fn walk(&mut self, tokens: TokenStream, at: &[String], top: bool) {
        let mut tokens = list(tokens);
        let (mut test, mut file, mut inside_path) = (false, None, false);
        while let Some(token) = tokens.next() {
            let continues = std::mem::take(&mut inside_path);
            match token {
                TokenTree::Punct(p) if p.as_char() == '#' => {
                    next_is(&mut tokens, '!');
                    if let Some(attribute) = group(&mut tokens, Delimiter::Bracket) {
                        test |= is_for_tests(&attribute);
                        file = file.or_else(|| path_attribute(&attribute));
                        self.texts(attribute.stream(), at);
                    }
                    continue;
                }
                TokenTree::Ident(word) if test => {
                    if let Some(name) = skip_item(word.to_string(), &mut tokens) {
                        self.tests.insert(file.take().unwrap_or(name));
                    }
                }
                // The bounds in `impl Trait + use<'a>` are no import.
                TokenTree::Ident(word) if word == "use" && !peeks(&mut tokens, '<') => {
                    for (path, name) in tree(&mut tokens) {
                        self.import(path, name, at, top);
                    }
                }
                TokenTree::Ident(word) if top && is_item(&word.to_string()) => {
                    let mut name = ident(&mut tokens);
                    while name.as_deref().is_some_and(is_item) {
                        name = ident(&mut tokens);
                    }
                    self.items.extend(name);
                }
                TokenTree::Ident(word) if word == "mod" => {
                    let name = ident(&mut tokens);
                    if let (Some(name), Some(body)) = (name, group(&mut tokens, Delimiter::Brace)) {
                        self.walk(body.stream(), &[at, &[name]].concat(), false);
                    }
                }
                TokenTree::Ident(word)
                    if !continues && is_anchor(&word.to_string()) && peeks(&mut tokens, ':') =>
                {
                    let path = [vec![word.to_string()], rest(&mut tokens)].concat();
                    self.paths.extend(from_root(&path, at));
                }
                TokenTree::Punct(p) => inside_path = p.as_char() == ':',
                TokenTree::Group(group) => self.walk(group.stream(), at, false),
                TokenTree::Ident(_) | TokenTree::Literal(_) => {}
            }
            (test, file) = (false, None);
        }
    }

    fn import(&mut self, path: Path, name: String, at: &[String], top: bool) {
        let path = match path.first() {
            Some(first) if is_anchor(first) => from_root(&path, at),
            Some(_) => Some([at, &path].concat()),
            None => None,
        };
        let Some(path) = path else { return };
        if top && name == "*" {
            self.globs.insert(path.clone());
        } else if top {
            self.names.insert(name, path.clone());
        }
        self.paths.push(path);
    }

    /// Paths in the texts of an attribute, such as `#[serde(with = "crate::words")]`.
    fn texts(&mut self, attribute: TokenStream, at: &[String]) {
        let mut tokens = list(attribute);
        if matches!(tokens.peek(), Some(TokenTree::Ident(name)) if name == "doc") {
            return;
        }
        for token in tokens {
            match token {
                TokenTree::Group(group) => self.texts(group.stream(), at),
                TokenTree::Literal(text) => {
                    let text = text.to_string();
                    let text = text.trim_matches('"');
                    let anchored = text.split_once("::").is_some_and(|(first, _)| is_anchor(first));
                    if let Some(tokens) = anchored.then(|| TokenStream::from_str(text).ok()).flatten() {
                        self.walk(tokens, at, false);
                    }
                }
                TokenTree::Ident(_) | TokenTree::Punct(_) => {}
            }
        }
    }
}

fn list(tokens: TokenStream) -> Tokens {
    tokens.into_iter().collect::<Vec<_>>().into_iter().peekable()
}

fn peeks(tokens: &mut Tokens, wanted: char) -> bool {
    matches!(tokens.peek(), Some(TokenTree::Punct(p)) if p.as_char() == wanted)
}

/// Takes the next token if it is this sign.
fn next_is(tokens: &mut Tokens, wanted: char) -> bool {
    peeks(tokens, wanted) && tokens.next().is_some()
}

/// Takes the next token if it is such a group.
fn group(tokens: &mut Tokens, delimiter: Delimiter) -> Option<Group> {
    match tokens.peek() {
        Some(TokenTree::Group(group)) if group.delimiter() == delimiter => {
            let group = group.clone();
            tokens.next();
            Some(group)
        }
        _ => None,
    }
}

/// Takes the next token if it is a name.
fn ident(tokens: &mut Tokens) -> Option<String> {
    match tokens.peek() {
        Some(TokenTree::Ident(name)) => {
            let name = name.to_string();
            tokens.next();
            Some(name)
        }
        _ => None,
    }
}

/// Takes `::`.
fn separator(tokens: &mut Tokens) -> bool {
    next_is(tokens, ':') && next_is(tokens, ':')
}

/// The names after the first of a path: `::a::b` is `a`, `b`.
fn rest(tokens: &mut Tokens) -> Path {
    let mut names = Vec::new();
    while separator(tokens) {
        match ident(tokens) {
            Some(name) => names.push(name),
            None => break,
        }
    }
    names
}

/// What a `use` brings in: each path with the name that it has from then on. A glob is the path of its module, with the name `*`.
fn tree(tokens: &mut Tokens) -> Vec<(Path, String)> {
    let mut path = Vec::new();
    let mut found = Vec::new();
    // A path of another crate.
    let foreign = separator(tokens);
    loop {
        if let Some(name) = ident(tokens) {
            path.push(name);
        } else if let Some(list) = group(tokens, Delimiter::Brace) {
            let mut inner = self::list(list.stream());
            while inner.peek().is_some() {
                found.extend(
                    tree(&mut inner).into_iter().map(|(tail, name)| joined(path.clone(), tail, name)),
                );
            }
            break;
        } else {
            if next_is(tokens, '*') {
                found.push((path.clone(), "*".to_owned()));
            }
            break;
        }
        if !separator(tokens) {
            let name = path.last().cloned().unwrap_or_default();
            let renamed = matches!(tokens.peek(), Some(TokenTree::Ident(word)) if word == "as");
            let name = if renamed { tokens.nth(1).map_or(name, |other| other.to_string()) } else { name };
            found.push((path.clone(), name));
            break;
        }
    }
    // The comma to the next of a list, or the end of the item.
    for token in tokens.by_ref() {
        if matches!(&token, TokenTree::Punct(p) if matches!(p.as_char(), ',' | ';')) {
            break;
        }
    }
    if foreign { Vec::new() } else { found }
}

/// `a::b` and what follows it in a list, where `self` is `a::b` itself.
fn joined(mut path: Path, tail: Path, name: String) -> (Path, String) {
    if tail == ["self"] {
        let own = path.last().cloned().unwrap_or_default();
        return (path, if name == "self" { own } else { name });
    }
    path.extend(tail);
    (path, name)
}

/// Whether the name of an item follows the word, or another such word, as in `const fn`.
fn is_item(word: &str) -> bool {
    matches!(word, "fn" | "struct" | "enum" | "trait" | "type" | "static" | "const" | "union")
}

fn is_anchor(word: &str) -> bool {
    matches!(word, "crate" | "self" | "super")
}

/// A path in the module `at` as one from the root; `None` for one that leads out of the package.
fn from_root(path: &[String], at: &[String]) -> Option<Path> {
    let mut base = at.to_vec();
    let mut names = path.iter().peekable();
    while let Some(name) = names.next_if(|name| is_anchor(name)) {
        match name.as_str() {
            "crate" => base.clear(),
            "super" => drop(base.pop()?),
            _ => {}
        }
    }
    base.extend(names.cloned());
    Some(base)
}

/// Whether the attribute is `cfg(test)` or `cfg(all(test, …))`.
fn is_for_tests(attribute: &Group) -> bool {
    let mut tokens = list(attribute.stream());
    if ident(&mut tokens).as_deref() != Some("cfg") {
        return false;
    }
    let Some(condition) = group(&mut tokens, Delimiter::Parenthesis) else { return false };
    let mut tokens = list(condition.stream());
    match ident(&mut tokens).as_deref() {
        Some("test") => true,
        Some("all") => group(&mut tokens, Delimiter::Parenthesis).is_some_and(|all| {
            list(all.stream()).any(|t| matches!(t, TokenTree::Ident(word) if word == "test"))
        }),
        _ => false,
    }
}

/// The module that `#[path = "udp_tests.rs"]` names.
fn path_attribute(attribute: &Group) -> Option<String> {
    let mut tokens = list(attribute.stream());
    if ident(&mut tokens).as_deref() != Some("path") {
        return None;
    }
    let text = tokens.nth(1)?.to_string();
    Some(text.trim_matches('"').strip_suffix(".rs")?.to_owned())
}

/// Passes over an item whose first word has been taken. The name of a module in a file of its own.
fn skip_item(word: String, tokens: &mut Tokens) -> Option<String> {
    let mut word = word;
    // `pub(super)`
    while word == "pub" {
        group(tokens, Delimiter::Parenthesis);
        word = ident(tokens)?;
    }
    let module = if word == "mod" { ident(tokens) } else { None };
    let ends_with_block = !matches!(word.as_str(), "use" | "const" | "static" | "let" | "type");
    let has_commas =
        matches!(word.as_str(), "fn" | "impl" | "struct" | "enum" | "trait" | "async" | "unsafe");
    for token in tokens.by_ref() {
        match token {
            TokenTree::Punct(p) if p.as_char() == ';' => return module,
            TokenTree::Punct(p) if p.as_char() == ',' && ends_with_block && !has_commas => return None,
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace && ends_with_block => {
                return None;
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Source {
        Source::read(text, &["room".to_owned(), "file".to_owned()]).unwrap()
    }

    fn paths(text: &str) -> Vec<String> {
        let mut paths: Vec<String> = read(text).paths.iter().map(|path| path.join("::")).collect();
        paths.sort_unstable();
        paths
    }

    #[test]
    fn every_form_of_import_is_seen() {
        assert_eq!(paths("use crate::{low::{a, b}, high};"), ["high", "low::a", "low::b"]);
        assert_eq!(paths("use crate::{\n    low,\n    middle::x,\n};"), ["low", "middle::x"]);
        assert_eq!(
            paths("pub(crate) use super::other::{self, Thing as That};"),
            ["room::other", "room::other::Thing"]
        );
        assert_eq!(paths("use super::super::other;"), ["other"]);
        assert_eq!(paths("use crate::low::*;"), ["low"]);
        assert_eq!(paths("use ::low::Thing;"), [""; 0]);
        assert_eq!(paths("fn f<'a>() -> impl Iterator + use<'a> { self::x::y() }"), ["room::file::x::y"]);
    }

    #[test]
    fn paths_in_code_macros_and_attributes_are_seen() {
        assert_eq!(paths("fn f() { crate::low::g(super::Two::new()) }"), ["low::g", "room::Two::new"]);
        assert_eq!(paths("fn f() { say!(\"{}\", crate::high::word()) }"), ["high::word"]);
        assert_eq!(paths("#[serde(with = \"crate::words\")] struct A;"), ["words"]);
        assert_eq!(paths("mod inner { use super::super::other::Thing; }"), ["room::other::Thing"]);
    }

    #[test]
    fn comments_texts_and_other_crates_are_not() {
        assert_eq!(
            paths("/// See [`crate::high`].\n// crate::high\nfn f() -> &'static str { \"// crate::high\" }"),
            [""; 0]
        );
        assert_eq!(paths("fn f() { their::crate_::high(self.super_) }"), [""; 0]);
    }

    #[test]
    fn what_only_tests_compile_is_not() {
        let text = "use crate::low;\n#[cfg(test)]\nmod tests {\n    use crate::high;\n}\n";
        assert_eq!(paths(text), ["low"]);
        for item in [
            "use crate::{high};",
            "pub(crate) fn f(a: A, b: B) -> C { crate::high::g() }",
            "const HIGH: T = crate::high::T { x };",
            "impl A { fn f() { crate::high::g() } }",
        ] {
            assert_eq!(
                paths(&format!("#[cfg(test)]\n#[expect(x)]\n{item}\nuse crate::low;")),
                ["low"],
                "{item}"
            );
            assert_eq!(paths(&format!("#[cfg(all(test, unix))]\n{item}")), [""; 0], "{item}");
        }
        assert_eq!(paths("#[cfg(any(test, feature = \"x\"))] use crate::high;"), ["high"]);
    }

    #[test]
    fn modules_of_tests_are_known_by_their_declaration() {
        let source =
            read("#[cfg(test)]\nmod fake;\n#[cfg(test)]\n#[path = \"udp_tests.rs\"]\nmod tests;\nmod real;");
        assert_eq!(source.tests.iter().collect::<Vec<_>>(), ["fake", "udp_tests"]);
    }

    #[test]
    fn items_and_globs_of_a_root_are_known() {
        let source = read(
            "pub use below::*;\npub const fn f() {}\npub(crate) struct A { x: u8 }\nmod inner { struct B; }",
        );
        assert_eq!(source.items.iter().collect::<Vec<_>>(), ["A", "f"]);
        assert_eq!(
            source.globs.iter().map(|path| path.join("::")).collect::<Vec<_>>(),
            ["room::file::below"]
        );
    }

    #[test]
    fn a_name_of_a_root_leads_to_where_it_is_from() {
        let source = read("pub use below::{One, Two as Three};\nfn f() { use crate::four::Four; }");
        let names: Vec<_> =
            source.names.iter().map(|(name, path)| (name.as_str(), path.join("::"))).collect();
        assert_eq!(
            names,
            [("One", "room::file::below::One".to_owned()), ("Three", "room::file::below::Two".to_owned())]
        );
    }
}
