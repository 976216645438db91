//! Checks statements of the documents about the repository: paths, links, commands, flags and metrics must exist.
//!
//! Checked are README.md, CONTRIBUTING.md, SECURITY.md, the README.md of each package, and all of docs/. CHANGELOG.md is not
//! checked: it names what existed at the time.

mod commands;
mod markdown;
mod metrics;
mod programs;
mod tree;

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};

use self::markdown::{Document, Piece};
use self::metrics::Metrics;
use self::programs::Programs;
use self::tree::Tree;
use crate::{exec, paths};

/// Checks every document and reports all problems, with file and line. `verbs` is the command line of `cargo xtask`.
pub(super) fn check(verbs: &clap::Command) -> Result<()> {
    let list =
        exec::output(exec::command("git").args(["ls-files", "--cached", "--others", "--exclude-standard"]))
            .context("list of files")?;
    let root = paths::root();
    let tree = Tree::new(list.lines().filter(|f| root.join(f).exists()));
    let mut documents = BTreeMap::new();
    for file in tree.files().filter(|f| is_checked(f)) {
        let text = std::fs::read_to_string(root.join(file)).with_context(|| file.to_owned())?;
        documents.insert(file.to_owned(), Document::parse(&text));
    }
    let known = Known { programs: Programs::read(&tree, verbs)?, metrics: Metrics::read(&tree)?, tree };
    let wrong = problems(&documents, &known);
    if wrong.is_empty() { Ok(()) } else { bail!("{}", wrong.join("\n")) }
}

/// What exists in the repository.
struct Known {
    tree: Tree,
    programs: Programs,
    metrics: Metrics,
}

fn is_checked(file: &str) -> bool {
    let package = file.split_once('/').is_some_and(|(_, name)| name == "README.md");
    matches!(file, "README.md" | "CONTRIBUTING.md" | "SECURITY.md")
        || package
        || (file.starts_with("docs/") && file.ends_with(".md"))
}

/// Problems in the documents, as lines `file:line: problem`.
fn problems(documents: &BTreeMap<String, Document>, known: &Known) -> Vec<String> {
    let mut wrong = Vec::new();
    for (file, document) in documents {
        for Piece { line, content } in &document.pieces {
            let found = match content {
                markdown::Content::Span(text) => span(file, text, known),
                markdown::Content::CodeLine(text) => code_line(file, text, known),
                markdown::Content::Link(target) => {
                    link(file, target, &known.tree, documents).into_iter().collect()
                }
            };
            wrong.extend(found.into_iter().map(|problem| format!("{file}:{line}: {problem}")));
        }
    }
    wrong
}

/// Checks a code span: a path, a command, a metric, or only flags.
fn span(file: &str, text: &str, known: &Known) -> Vec<String> {
    let mut wrong = paths_in(file, text, &known.tree);
    wrong.extend(known.metrics.problem(text));
    if text.starts_with("--") {
        wrong.extend(known.programs.unknown_flags_of_any(text));
    }
    wrong.extend(commands::problems(text, &known.programs));
    wrong
}

/// Checks a line of a code block: commands, after a prompt if there is one, and paths that begin with a directory of the
/// repository.
fn code_line(file: &str, text: &str, known: &Known) -> Vec<String> {
    let tree = &known.tree;
    let text = text.trim();
    let text = text.strip_prefix("# ").or_else(|| text.strip_prefix("$ ")).unwrap_or(text);
    let text = text.split("  #").next().unwrap_or(text);
    let text = text.split(" # ").next().unwrap_or(text);
    let mut wrong: Vec<String> =
        text.split_whitespace().filter(|w| tree.is_rooted(w)).flat_map(|w| paths_in(file, w, tree)).collect();
    wrong.extend(commands::problems(text, &known.programs));
    wrong
}

fn paths_in(file: &str, text: &str, tree: &Tree) -> Vec<String> {
    text.split_whitespace().filter_map(|word| tree.problem(file, word)).collect()
}

/// Checks a Markdown link: the file must exist, and so must the heading that it names.
fn link(file: &str, target: &str, tree: &Tree, documents: &BTreeMap<String, Document>) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = target.split_once('#').map_or((target, None), |(p, a)| (p, Some(a)));
    let Some(resolved) = (if path.is_empty() { Some(file.to_owned()) } else { tree::relative(file, path) })
    else {
        return Some(format!("the link {target} leaves the repository"));
    };
    if !tree.has(&resolved) {
        return Some(format!("the link {target} leads to {resolved}, which does not exist"));
    }
    let known = |anchor| documents.get(&resolved).is_none_or(|d| d.anchors.contains(anchor));
    anchor.filter(|a| !known(*a)).map(|anchor| {
        format!("the link {target} names the heading #{anchor}, which {resolved} does not have")
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn problems_of(text: &str) -> Vec<String> {
        let tree = Tree::new(
            ["docs/a.md", "docs/b.md", "api/src/lib.rs", "controller/src/plan/mod.rs", "README.md"]
                .into_iter(),
        );
        let mut documents =
            BTreeMap::from([("docs/b.md".to_owned(), Document::parse("# One thing: `x`, and more"))]);
        documents.insert("docs/a.md".to_owned(), Document::parse(text));
        problems(&documents, &Known { tree, programs: Programs::for_tests(), metrics: Metrics::default() })
    }

    #[test]
    fn the_documents_of_the_repository_name_what_there_is() {
        check(&crate::cli::Args::command()).unwrap();
    }

    #[test]
    fn paths_that_exist_pass_and_others_are_told_with_their_line() {
        assert_eq!(problems_of("see `api/src/lib.rs`, `plan/mod.rs` and `docs/`"), [""; 0]);
        let wrong = problems_of("one\n\n`api/src/gone.rs`");
        assert_eq!(wrong, ["docs/a.md:3: the path api/src/gone.rs does not exist"]);
    }

    #[test]
    fn links_lead_to_files_and_headings() {
        assert_eq!(problems_of("[b](b.md), [b](b.md#one-thing-x-and-more), [r](../README.md)"), [""; 0]);
        assert_eq!(problems_of("[b](c.md) [b](b.md#two) [b](../../x.md)").len(), 3);
        assert_eq!(problems_of("[elsewhere](https://example.org/docs/none.md)"), [""; 0]);
    }

    #[test]
    fn commands_in_blocks_are_checked_behind_a_prompt_and_before_a_comment() {
        assert_eq!(
            problems_of("    # slipctl status\n    slipctl flows   # target/debug/testbed nothing"),
            [""; 0]
        );
        assert_eq!(problems_of("```\n$ slipctl nothing\n```").len(), 1);
        assert_eq!(
            problems_of("    kubectl apply -f deploy/gone.yaml"),
            [""; 0],
            "deploy/ is no directory here"
        );
        assert_eq!(problems_of("    kubectl apply -f docs/gone.yaml").len(), 1);
    }

    #[test]
    fn a_flag_alone_is_one_of_some_program() {
        assert_eq!(problems_of("`--limit 5`, `--nodes=3`"), [""; 0]);
        assert_eq!(problems_of("`--unheard-of`").len(), 1);
    }
}
