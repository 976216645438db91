//! The parts of a Markdown text that are checked: code spans, lines of code blocks, link targets, and the anchors of its headings.

use std::collections::BTreeSet;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// The checked parts of a document.
#[derive(Debug, Default)]
pub(super) struct Document {
    /// In the order of the text.
    pub(super) pieces: Vec<Piece>,
    /// The anchors of its headings, as GitHub makes them.
    pub(super) anchors: BTreeSet<String>,
}

/// One thing to check.
#[derive(Debug)]
pub(super) struct Piece {
    /// Line number, from 1.
    pub(super) line: usize,
    pub(super) content: Content,
}

#[derive(Debug)]
pub(super) enum Content {
    /// Text between backticks in running text.
    Span(String),
    /// One line of a fenced or indented block.
    CodeLine(String),
    /// The target of a link or image.
    Link(String),
}

impl Document {
    /// Parses a text.
    pub(super) fn parse(text: &str) -> Self {
        let mut document = Self::default();
        let (mut in_block, mut heading) = (false, None::<String>);
        for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
            let line = 1 + text[..range.start].matches('\n').count();
            let mut add = |line, content| document.pieces.push(Piece { line, content });
            match event {
                Event::Start(Tag::CodeBlock(_)) => in_block = true,
                Event::End(TagEnd::CodeBlock) => in_block = false,
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    document.anchors.extend(heading.take().map(|h| anchor(&h)));
                }
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    add(line, Content::Link(dest_url.into_string()));
                }
                Event::Text(block) if in_block => {
                    for (number, code) in (line..).zip(block.lines()) {
                        add(number, Content::CodeLine(code.to_owned()));
                    }
                }
                Event::Code(span) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&span);
                    }
                    add(line, Content::Span(span.into_string()));
                }
                Event::Text(words) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&words);
                    }
                }
                _ => {}
            }
        }
        document
    }
}

/// The anchor that GitHub gives to a heading: lower case; only letters, digits, `-` and `_`; spaces as `-`.
fn anchor(heading: &str) -> String {
    heading
        .trim()
        .chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            '-' | '_' => Some(c),
            c if c.is_alphanumeric() => Some(c),
            _ => None,
        })
        .flat_map(char::to_lowercase)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(text: &str) -> Vec<String> {
        Document::parse(text).pieces.iter().map(|p| format!("{} {:?}", p.line, p.content)).collect()
    }

    #[test]
    fn spans_links_and_lines_of_blocks_have_their_line() {
        assert_eq!(
            pieces("a `b`\n\n| x | [`c`](d.md) |\n|---|---|\n\n    one\n    two\n"),
            [
                r#"1 Span("b")"#,
                r#"3 Link("d.md")"#,
                r#"3 Span("c")"#,
                r#"6 CodeLine("one")"#,
                r#"7 CodeLine("two")"#,
            ]
        );
        assert_eq!(pieces("```sh\none\ntwo\n```"), [r#"2 CodeLine("one")"#, r#"3 CodeLine("two")"#]);
    }

    #[test]
    fn headings_have_the_anchors_that_github_gives_them() {
        let anchors =
            Document::parse("## Invalidation: when `what` is cached, is forgotten\n## Hold").anchors;
        assert_eq!(
            anchors.into_iter().collect::<Vec<_>>(),
            ["hold", "invalidation-when-what-is-cached-is-forgotten"]
        );
    }
}
