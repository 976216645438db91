//! The report of a run as one page that needs nothing else: no script, no picture and no font of its own. Pure.

mod chart;

use std::fmt::Write;

use traffic::Test;
use traffic::statistics::{Estimate, Verdict};

use crate::document::{Document, NotMeasured, Row};
use crate::report::{self, Cells, losing_first};
use chart::{Curve, Mark};

/// The look of the page.
const STYLE: &str = include_str!("style.css");

/// The page.
pub(crate) fn page(document: &Document) -> String {
    let cluster = &document.cluster;
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Network performance: {}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n",
        escaped(&cluster.plugin)
    );
    let mut say = |text: String| {
        page.push_str(&text);
        page.push('\n');
    };
    say("<h1>Network performance</h1>".to_owned());
    say(format!(
        "<p>Kubernetes {}, {} node(s), network plugin: {}.</p>",
        escaped(&cluster.kubernetes),
        cluster.nodes,
        escaped(&cluster.plugin)
    ));
    say(summary(document));
    say("<h2>Rows</h2>\n<p class=\"soft\">What loses comes first: missed goals, then the lowest ratio to the baseline.</p>".to_owned());
    say(rows(document));
    for test in tests(document) {
        say(charts(document, test));
    }
    say(not_measured(&document.not_measured));
    say(machines(document));
    say("<h2>Method</h2>".to_owned());
    for text in report::method(document) {
        say(format!("<p>{}</p>", escaped(&text)));
    }
    say(format!("<h2>What this does not say</h2>\n<p>{}</p>", escaped(report::LIMITS)));
    say("</body>\n</html>".to_owned());
    page
}

/// How many goals were met.
fn summary(document: &Document) -> String {
    let (mut met, mut missed, mut open, mut not) = (0, 0, 0, 0);
    for verdict in document.verdicts() {
        match verdict {
            Verdict::Met => met += 1,
            Verdict::Missed => missed += 1,
            Verdict::Undecided(_) => open += 1,
            Verdict::NotMeasured => not += 1,
        }
    }
    let rows = document.rows.len();
    let left_out: usize = document.rows.iter().map(|row| row.disturbed).sum();
    let slices: usize = document.rows.iter().flat_map(|row| &row.passes).map(|pass| pass.slices.len()).sum();
    format!(
        "<p>{rows} rows; goals: <span class=\"met\">{met} met</span>, <span class=\"missed\">{missed} missed</span>, \
         <span class=\"open\">{open} without a verdict</span>, {not} not measured. {left_out} of {slices} slices were left out, as others \
         had the processors.</p>"
    )
}

fn rows(document: &Document) -> String {
    let mut text = String::from(
        "<div class=\"wide\"><table>\n<tr><th>test</th><th>path</th><th>what</th><th class=\"n\">median</th><th class=\"n\">95 %</th>\
         <th class=\"n\">p50</th><th class=\"n\">lost</th><th>against the baseline</th><th>goals</th><th class=\"n\">left out</th></tr>\n",
    );
    for row in losing_first(document) {
        let Cells { rate, interval, time, lost, ratio, goals } = report::cells(row);
        let slices: usize = row.passes.iter().map(|pass| pass.slices.len()).sum();
        let six = if row.is_ipv6 { ", IPv6" } else { "" };
        let _ = writeln!(
            text,
            "<tr><td>{}</td><td>{}</td><td>{}{six}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td><td>{}</td><td class=\"{}\">{}</td><td class=\"n\">{} of {slices}</td></tr>",
            escaped(&row.test.name()),
            escaped(&row.name),
            escaped(row.path.what()),
            escaped(&rate),
            escaped(&interval),
            escaped(&time),
            escaped(&lost),
            escaped(&ratio),
            class(row),
            escaped(&goals),
            row.disturbed
        );
    }
    text.push_str("</table></div>");
    text
}

/// The class of the worst verdict on a row.
fn class(row: &Row) -> &'static str {
    let mut found = "met";
    for judged in &row.goals {
        match judged.verdict {
            Verdict::Missed => return "missed",
            Verdict::Undecided(_) | Verdict::NotMeasured => found = "open",
            Verdict::Met => {}
        }
    }
    if row.goals.is_empty() { "soft" } else { found }
}

/// The tests that have rows, in their order.
fn tests(document: &Document) -> Vec<Test> {
    let mut found: Vec<Test> = Vec::new();
    for row in &document.rows {
        if !found.contains(&row.test) {
            found.push(row.test);
        }
    }
    found
}

/// Rates, ratios and times of one test.
fn charts(document: &Document, test: Test) -> String {
    let rows: Vec<&Row> = document.rows.iter().filter(|row| row.test == test).collect();
    let rates: Vec<Mark> = rows
        .iter()
        .filter_map(|row| mark(&row.name, row.per_second?, |value| report::rate(test, value)))
        .collect();
    let ratios: Vec<Mark> = rows
        .iter()
        .filter_map(|row| {
            let against = row.against.as_ref()?;
            mark(&format!("{} / {}", row.name, against.name), against.pairs.estimate?, |value| {
                format!("{value:.3}")
            })
        })
        .collect();
    let times: Vec<Curve> = rows
        .iter()
        .map(|row| Curve {
            name: row.name.clone(),
            values: row.passes.iter().flat_map(traffic::report::PathSeries::times_us).collect(),
        })
        .filter(|curve| !curve.values.is_empty())
        .collect();
    let mut text = format!("<h2>{}</h2>\n", escaped(&test.name()));
    let mut figure = |caption: &str, drawing: Option<String>| {
        if let Some(drawing) = drawing {
            let _ = writeln!(text, "<figure><figcaption>{caption}</figcaption>\n{drawing}</figure>");
        }
    };
    figure("Medians of the slices, with intervals of 95 %", chart::bars(&rates));
    figure(
        "Against the baseline of the same client, slice by slice; dashed: as fast",
        chart::ratios(&ratios),
    );
    figure(
        "Median time of a transaction, in microseconds: part of the slices in which it was at most that",
        chart::distribution(&times),
    );
    text
}

fn mark(name: &str, estimate: Estimate, label: impl Fn(f64) -> String) -> Option<Mark> {
    let good = [estimate.median, estimate.low, estimate.high].iter().all(|value| value.is_finite());
    good.then(|| Mark { name: name.to_owned(), estimate, label: label(estimate.median) })
}

fn not_measured(missing: &[NotMeasured]) -> String {
    let mut text = String::from("<h2>Not measured</h2>\n");
    if missing.is_empty() {
        text.push_str("<p>Everything that was asked for was measured.</p>");
        return text;
    }
    text.push_str("<ul>\n");
    for NotMeasured { path, test, reason } in missing {
        let test = test.map_or_else(String::new, |test| format!(" ({})", test.name()));
        let _ = writeln!(text, "<li>{}{}: {}</li>", escaped(path), escaped(&test), escaped(reason));
    }
    text.push_str("</ul>");
    text
}

fn machines(document: &Document) -> String {
    let mut text = String::from(
        "<h2>Machines</h2>\n<div class=\"wide\"><table>\n<tr><th>node</th><th>kernel</th><th>system</th><th>CPUs</th><th>memory</th>\
         <th>kubelet</th><th>runtime</th><th>type</th><th>zone</th></tr>\n",
    );
    for node in &document.cluster.measured {
        let or = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        let system = format!("{}, {}", node.os, node.architecture);
        let (kind, zone) = (or(&node.instance_type), or(&node.zone));
        text.push_str("<tr>");
        for cell in [
            &node.name,
            &node.kernel,
            &system,
            &node.cpus,
            &node.memory,
            &node.kubelet,
            &node.runtime,
            &kind,
            &zone,
        ] {
            let _ = write!(text, "<td>{}</td>", escaped(cell));
        }
        text.push_str("</tr>\n");
    }
    text.push_str("</table></div>\n");
    if let Some(host) = &document.cluster.client {
        let _ = writeln!(
            text,
            "<p>The client's processor: {}, clock {}.</p>",
            escaped(&host.cpu_model),
            escaped(&host.clock)
        );
    }
    if !document.cluster.evidence.is_empty() {
        text.push_str("<p>What says which plugin it is:</p>\n<ul>\n");
        for line in &document.cluster.evidence {
            let _ = writeln!(text, "<li>{}</li>", escaped(line));
        }
        text.push_str("</ul>");
    }
    text
}

/// Text as it stands in a page. Names, images and errors come from the cluster.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for sign in text.chars() {
        match sign {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::Path;
    use crate::report::tests::document;
    use crate::rows::tests::line;

    fn example() -> Document {
        let one = line(
            "tcp-rr",
            &[("pod-ip", 1000.0), ("cluster-ip", 980.0), ("pod-host", 500.0)],
            &[("node-port", "no <way> & \"so\"")],
        );
        let stream = line("tcp-stream", &[("pod-ip", 9e9)], &[]);
        let paths = [Path::PodIp, Path::ClusterIp, Path::PodHost, Path::NodePort];
        document(&format!("{one}\n{one}\n{stream}"), &paths, &["cluster-ip/pod-ip>=0.99"])
    }

    /// Every element that is opened is closed, in order.
    fn is_well_formed(page: &str) -> Result<(), String> {
        let mut open: Vec<&str> = Vec::new();
        let mut rest = page.split_once("</style>").map_or(page, |(_, rest)| rest);
        while let Some((_, tag)) = rest.split_once('<') {
            let (tag, after) = tag.split_once('>').ok_or("a tag without its end")?;
            rest = after;
            let name = tag.trim_start_matches('/').split_whitespace().next().unwrap_or_default();
            if tag.starts_with('/') {
                let last = open.pop().unwrap_or_default();
                if !["html", "body", "head"].contains(&name) && last != name {
                    return Err(format!("{name} closes {last}"));
                }
            } else if !tag.ends_with('/') && name != "!doctype" {
                open.push(name);
            }
        }
        Ok(())
    }

    #[test]
    fn the_page_needs_nothing_else_and_shows_what_the_other_report_says() {
        let run = example();
        let page = page(&run);
        is_well_formed(&page).unwrap();
        assert!(!page.contains("<script") && !page.contains("http") && !page.contains("src="), "{page}");
        for text in
            ["cluster-ip / pod-ip", "MISSED", "981 trans/s", "9.00 Gbit/s", "What this does not say", "<svg"]
        {
            assert!(page.contains(text), "{text}: {page}");
        }
        let (lost, baseline) = (page.find("<td>cluster-ip</td>"), page.find("<td>pod-ip</td>"));
        assert!(lost < baseline, "what misses its goal comes first");
    }

    #[test]
    fn what_a_cluster_says_is_text_and_no_markup() {
        let mut run = example();
        run.cluster.plugin = "<script>alert(1)</script>".into();
        let page = page(&run);
        assert!(page.contains("no &lt;way&gt; &amp; &quot;so&quot;") && !page.contains("<script"), "{page}");
    }

    #[test]
    fn a_run_without_rows_has_a_page_too() {
        let mut run = example();
        run.rows.clear();
        let page = page(&run);
        is_well_formed(&page).unwrap();
        assert!(page.contains("0 rows") && !page.contains("NaN"), "{page}");
    }
}
