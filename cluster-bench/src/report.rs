//! The table for the terminal and the Markdown report of a run. Pure.

use std::fmt::Write;

use traffic::Test;
use traffic::report::thousands;
use traffic::statistics::{Estimate, Goal, Verdict};

use crate::document::{Document, NotMeasured, Row};
use crate::paths::Client;

/// A rate with its unit.
pub(crate) fn rate(test: Test, value: f64) -> String {
    match test {
        Test::TcpStream => format!("{:.2} Gbit/s", value / 1e9),
        Test::UdpRate => format!("{} packets/s", thousands(value)),
        Test::TcpCrr => format!("{} conn/s", thousands(value)),
        _ => format!("{} trans/s", thousands(value)),
    }
}

/// A ratio with its interval.
pub(crate) fn figure(estimate: Option<Estimate>) -> String {
    estimate.map_or_else(|| "-".to_owned(), |e| format!("{:.3} ({:.3}–{:.3})", e.median, e.low, e.high))
}

/// Rows as they are read: what misses its goal first, then what has no verdict, then by its ratio to the baseline.
pub(crate) fn losing_first(document: &Document) -> Vec<&Row> {
    let mut rows: Vec<&Row> = document.rows.iter().collect();
    let rank = |row: &Row| {
        let of = |verdict: Verdict| match verdict {
            Verdict::Missed => 0,
            Verdict::NotMeasured => 1,
            Verdict::Undecided(_) => 2,
            Verdict::Met => 3,
        };
        row.goals.iter().map(|judged| of(judged.verdict)).min().unwrap_or(3)
    };
    let ratio = |row: &Row| row.against.as_ref().and_then(|a| a.pairs.estimate).map_or(1.0, |e| e.median);
    rows.sort_by(|a, b| rank(a).cmp(&rank(b)).then(ratio(a).total_cmp(&ratio(b))));
    rows
}

/// What is said of a row.
pub(crate) struct Cells {
    pub(crate) rate: String,
    pub(crate) interval: String,
    pub(crate) time: String,
    pub(crate) lost: String,
    pub(crate) ratio: String,
    pub(crate) goals: String,
}

pub(crate) fn cells(row: &Row) -> Cells {
    let own = row.per_second;
    let percent = |e: Estimate| {
        let wide = if e.median > 0.0 { 50.0 * (e.high - e.low) / e.median } else { 0.0 };
        format!("±{wide:.1} %")
    };
    let time = |e: Estimate| format!("{:.1} us", e.median);
    let goal = |goal: Goal| match goal {
        Goal::AtLeast(bound) => format!(">= {bound}"),
        Goal::AtMost(bound) => format!("<= {bound}"),
    };
    let judged = row.goals.iter().map(|j| {
        let ratio = figure(j.against.pairs.estimate);
        format!("{} of {} {}: {}", ratio, j.against.name, goal(j.goal), j.verdict.text())
    });
    Cells {
        rate: own.map_or_else(|| "-".to_owned(), |e| rate(row.test, e.median)),
        interval: own.map_or_else(String::new, percent),
        time: row.median_us.map_or_else(|| "-".to_owned(), time),
        lost: lost(row),
        ratio: row.against.as_ref().map_or_else(
            || "baseline".to_owned(),
            |a| {
                let by_time =
                    a.pairs.by_times.map_or_else(String::new, |ratio| format!(", by p50 {ratio:.2}"));
                format!("{} of {}{by_time}", figure(a.pairs.estimate), a.name)
            },
        ),
        goals: judged.collect::<Vec<_>>().join("; "),
    }
}

fn lost(row: &Row) -> String {
    match row.sent {
        sent if sent > 0 && row.test.is_udp() => format!("{:.2} %", 100.0 * row.lost as f64 / sent as f64),
        _ => "-".to_owned(),
    }
}

/// For the terminal.
pub(crate) fn table(document: &Document) -> String {
    let mut text = format!(
        "{:<11} {:<18} {:>18} {:>9} {:>11} {:>8}  against the baseline\n",
        "test", "path", "median", "95 %", "p50", "lost"
    );
    for row in losing_first(document) {
        let Cells { rate, interval, time, lost, ratio, goals } = cells(row);
        let _ = write!(
            text,
            "{:<11} {:<18} {rate:>18} {interval:>9} {time:>11} {lost:>8}  {ratio}",
            row.test.name(),
            row.name
        );
        let _ = writeln!(text, "{}{goals}", if goals.is_empty() { "" } else { "  " });
    }
    for NotMeasured { path, test, reason } in &document.not_measured {
        let test = test.map_or_else(|| "all".to_owned(), Test::name);
        let _ = writeln!(text, "{test:<11} {path:<18} not measured: {reason}");
    }
    text
}

/// The report.
pub(crate) fn markdown(document: &Document) -> String {
    let mut text = String::from("# Network performance\n\n");
    let mut say = |line: String| {
        let _ = writeln!(text, "{line}");
    };
    let cluster = &document.cluster;
    say(format!(
        "Kubernetes {}, {} node(s), network plugin: {}.",
        cluster.kubernetes, cluster.nodes, cluster.plugin
    ));
    say("Rows that lose come first: missed goals, then the lowest ratio to the baseline.\n".into());
    say("| test | path | what | median | 95 % | p50 | lost | against the baseline | goals | left out |"
        .into());
    say("|---|---|---|---|---|---|---|---|---|---|".into());
    for row in losing_first(document) {
        let Cells { rate, interval, time, lost, ratio, goals } = cells(row);
        let slices: usize = row.passes.iter().map(|pass| pass.slices.len()).sum();
        let six = if row.is_ipv6 { ", IPv6" } else { "" };
        say(format!(
            "| {} | {} | {}{six} | {rate} | {interval} | {time} | {lost} | {ratio} | {goals} | {} of {slices} |",
            row.test.name(),
            row.name,
            row.path.what(),
            row.disturbed,
        ));
    }
    say("\n## Not measured\n".into());
    if document.not_measured.is_empty() {
        say("Everything that was asked for was measured.".into());
    }
    for NotMeasured { path, test, reason } in &document.not_measured {
        let test = test.map_or_else(String::new, |test| format!(" ({})", test.name()));
        say(format!("- {path}{test}: {}", one_line(reason)));
    }
    say("\n## Machines\n".into());
    say("| node | kernel | system | CPUs | memory | kubelet | runtime | type | zone |".into());
    say("|---|---|---|---|---|---|---|---|---|".into());
    for node in &cluster.measured {
        let or = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        say(format!(
            "| {} | {} | {}, {} | {} | {} | {} | {} | {} | {} |",
            node.name,
            node.kernel,
            node.os,
            node.architecture,
            node.cpus,
            node.memory,
            node.kubelet,
            node.runtime,
            or(&node.instance_type),
            or(&node.zone)
        ));
    }
    if let Some(host) = &cluster.client {
        say(format!("\nThe client's processor: {}, clock {}.", host.cpu_model, host.clock));
    }
    say("\nWhat says which plugin it is:\n".into());
    for line in &cluster.evidence {
        say(format!("- {}", one_line(line)));
    }
    say("\n## Method\n".into());
    say(method(document).join("\n"));
    say("\n## What this does not say\n".into());
    say(LIMITS.into());
    text
}

/// How it was measured, in paragraphs.
pub(crate) fn method(document: &Document) -> Vec<String> {
    let method = &document.method;
    vec![
        format!(
            "{} passes, each with new pods and connections, of {} rounds; a round has one slice of {} ms of every path of a client, so \
             that what changes with time is the same for all. Image {}. The run took {} s.",
            method.passes, method.rounds, method.slice_ms, method.image, document.seconds
        ),
        "A ratio is the median of the ratios of neighbouring slices; the one \"by p50\" is that of their median times, turned round, which does \
         not see what others do to the CPU. Intervals are of 95 %, by a bootstrap of passes and, in each, of \
         blocks of slices. A slice is left out if the ends waited for a CPU longer than is usual on that path."
            .to_owned(),
        format!(
            "Paths of pods and those of nodes have different clients and different baselines: {} and {}.",
            name_of_baseline(document, Client::Pod),
            name_of_baseline(document, Client::Host)
        ),
    ]
}

/// What must not be concluded from a run.
pub(crate) const LIMITS: &str = "One connection at a time on each path: not how much many connections reach together. Other traffic and other pods of these \
     nodes were there, too. Two clusters are compared only if machines, kernels and load are the same; the command compare names what differs.";

fn name_of_baseline(document: &Document, client: Client) -> String {
    let found = document.rows.iter().find(|row| row.client == client && row.against.is_none());
    found.map_or_else(|| "none".to_owned(), |row| row.name.clone())
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::document::{Cluster, FORMAT, KIND, Method};
    use crate::paths::Path;
    use crate::rows::tests::{lane, line};
    use crate::rows::{Collected, documents};

    /// A run from what its clients have printed.
    pub(crate) fn document(log: &str, paths: &[Path], goals: &[&str]) -> Document {
        let documents = documents(log).unwrap();
        let passes = u32::try_from(documents.len()).unwrap();
        let lanes: Vec<_> = paths.iter().copied().map(lane).collect();
        let goals: Vec<_> = goals.iter().map(|goal| goal.parse().unwrap()).collect();
        let (rows, not_measured) = Collected::of(documents).unwrap().rows(&lanes, &goals);
        Document {
            kind: KIND.into(),
            format: FORMAT,
            version: "0".into(),
            begun: 0,
            seconds: 1,
            cluster: Cluster { kubernetes: "v1".into(), plugin: "x".into(), ..Cluster::default() },
            method: Method { image: "i".into(), passes, rounds: 40, slice_ms: 30 },
            rows,
            not_measured,
        }
    }

    #[test]
    fn losing_rows_come_first_and_what_is_missing_is_said() {
        let one = line(
            "tcp-rr",
            &[("pod-ip", 1000.0), ("cluster-ip", 980.0), ("pod-host", 500.0), ("node-port-other", 970.0)],
            &[("node-port", "no | way")],
        );
        let paths = [Path::PodIp, Path::ClusterIp, Path::PodHost, Path::NodePortOther, Path::NodePort];
        let run = document(&format!("{one}\n{one}"), &paths, &["node-port-other/pod-ip>=0.99"]);
        let names: Vec<_> = losing_first(&run).into_iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["node-port-other", "pod-host", "cluster-ip", "pod-ip"]);
        let text = markdown(&run);
        assert!(text.contains("- node-port (tcp-rr): no \\| way"), "{text}");
        assert!(text.contains("different baselines: pod-ip and none"), "{text}");
        let table = table(&run);
        assert!(table.contains("MISSED") && table.contains("not measured: no | way"), "{table}");
    }

    #[test]
    fn a_document_is_read_as_it_was_written() {
        let one = line("udp-rate", &[("pod-ip", 1000.0)], &[]);
        let run = document(&one, &[Path::PodIp], &[]);
        let text = serde_json::to_string(&run).unwrap();
        assert_eq!(serde_json::from_str::<Document>(&text).unwrap(), run);
        assert!(table(&run).contains("10.00 %"), "{}", table(&run));
    }

    #[test]
    fn rates_have_the_unit_of_their_test() {
        assert_eq!(rate(Test::TcpStream, 2.5e9), "2.50 Gbit/s");
        assert_eq!(rate(Test::UdpRate, 1234.0), "1,234 packets/s");
    }
}
