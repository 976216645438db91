//! From what clients have printed to rows with intervals, ratios and verdicts. Pure.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use traffic::report::{self, PathSeries};
use traffic::statistics::{Estimate, Pair, Pairs, Verdict};
use traffic::{GoalOf, Test};

use crate::document::{Against, Judged, NotMeasured, Row};
use crate::paths::{Client, Path, baseline};
use crate::plan::{Lane, lane_name};

/// The documents that a client's log has, among lines of progress: one a line, or a single one indented on many lines.
pub(crate) fn documents(log: &str) -> Result<Vec<report::Document>> {
    let (mut documents, mut indented) = (Vec::new(), None::<String>);
    let parse = |text: &str| report::Document::parse(text).context("a result in the client's log");
    for line in log.lines() {
        match &mut indented {
            Some(text) => {
                text.push_str(line);
                if line == "}" {
                    documents.push(parse(text)?);
                    indented = None;
                }
            }
            None if line == "{" => indented = Some(line.to_owned()),
            None if line.starts_with('{') => documents.push(parse(line)?),
            None => {}
        }
    }
    ensure!(indented.is_none(), "a result in the client's log has no end");
    Ok(documents)
}

/// Whether a line of the log says how far a client is.
pub(crate) fn is_progress(line: &str) -> bool {
    line.contains(": round ")
}

/// The last words of a log that are none of a result or of progress: what went wrong.
pub(crate) fn last_words(log: &str) -> Option<&str> {
    log.lines().rfind(|line| line.starts_with("slipstream-traffic: "))
}

/// What all passes have given for each path and test.
pub(crate) struct Collected {
    series: BTreeMap<(String, String), Vec<PathSeries>>,
    unreachable: BTreeMap<(String, String), String>,
    tests: Vec<Test>,
}

impl Collected {
    /// Collects documents, which are in the order of passes.
    pub(crate) fn of(documents: Vec<report::Document>) -> Result<Self> {
        let mut all = Self { series: BTreeMap::new(), unreachable: BTreeMap::new(), tests: Vec::new() };
        for document in documents {
            let Some(sliced) = document.sliced else { bail!("a client's result has no slices") };
            if !all.tests.contains(&sliced.test) {
                all.tests.push(sliced.test);
            }
            let key = |name: &str| (name.to_owned(), sliced.test.name());
            for (name, reason) in &sliced.unreachable {
                all.unreachable.insert(key(name), reason.clone());
            }
            for path in sliced.paths {
                all.series.entry(key(&path.name)).or_default().push(path);
            }
        }
        Ok(all)
    }

    fn passes(&self, name: &str, test: Test) -> &[PathSeries] {
        self.series.get(&(name.to_owned(), test.name())).map_or(&[], Vec::as_slice)
    }

    /// The rows of all lanes in all tests, and what is missing.
    pub(crate) fn rows(&self, lanes: &[Lane], goals: &[GoalOf]) -> (Vec<Row>, Vec<NotMeasured>) {
        let (mut rows, mut missing) = (Vec::new(), Vec::new());
        for &test in &self.tests {
            for lane in lanes {
                if self.passes(&lane.name, test).is_empty() {
                    let key = (lane.name.clone(), test.name());
                    let reason = self.unreachable.get(&key).cloned();
                    let reason = reason.unwrap_or_else(|| "its client has not measured it".to_owned());
                    missing.push(NotMeasured { path: lane.name.clone(), test: Some(test), reason });
                    continue;
                }
                rows.push(self.row(lane, lanes, test, goals));
            }
        }
        (rows, missing)
    }

    fn row(&self, lane: &Lane, lanes: &[Lane], test: Test, goals: &[GoalOf]) -> Row {
        let passes = self.passes(&lane.name, test);
        let client = lane.path.client();
        let against = self.baseline(client, lanes, test, lane.is_ipv6).filter(|name| *name != lane.name);
        let judge = |goal: &GoalOf| {
            let pairs = self.ratio(lane, lanes, &goal.against, test);
            let verdict = Verdict::of_pairs(goal.goal, &pairs);
            Judged { against: Against { name: goal.against.clone(), pairs }, goal: goal.goal, verdict }
        };
        let runs =
            |of: fn(&PathSeries) -> Vec<f64>| Estimate::of_runs(&passes.iter().map(of).collect::<Vec<_>>());
        Row {
            name: lane.name.clone(),
            path: lane.path,
            is_ipv6: lane.is_ipv6,
            client,
            test,
            per_second: runs(PathSeries::rates),
            median_us: runs(PathSeries::times_us),
            sent: passes.iter().map(|pass| pass.sent).sum(),
            lost: passes.iter().map(|pass| pass.lost).sum(),
            disturbed: passes.iter().map(|pass| pass.disturbed).sum(),
            against: against.map(|name| Against { pairs: self.ratio(lane, lanes, &name, test), name }),
            goals: goals.iter().filter(|goal| goal.path == lane.name).map(judge).collect(),
            passes: passes.to_vec(),
        }
    }

    /// The baseline of a client and a family: the plainest of the paths that were measured.
    fn baseline(&self, client: Client, lanes: &[Lane], test: Test, is_ipv6: bool) -> Option<String> {
        let is_there = |lane: &&Lane| lane.is_ipv6 == is_ipv6 && !self.passes(&lane.name, test).is_empty();
        let measured: Vec<Path> = lanes.iter().filter(is_there).map(|lane| lane.path).collect();
        baseline(client, &measured).map(|path| lane_name(path, is_ipv6))
    }

    /// The ratio to another path: of one client by neighbouring slices, of two clients by their passes.
    fn ratio(&self, lane: &Lane, lanes: &[Lane], against: &str, test: Test) -> Pairs {
        let (ours, theirs) = (self.passes(&lane.name, test), self.passes(against, test));
        let of = |name: &str| lanes.iter().find(|lane| lane.name == name).map(|lane| lane.path.client());
        if of(against).is_some_and(|client| client == lane.path.client()) {
            let pairs: Vec<Vec<Pair>> =
                ours.iter().zip(theirs).map(|(ours, theirs)| ours.pairs(theirs)).collect();
            return of_pairs(&pairs);
        }
        let rates = |all: &[PathSeries]| all.iter().map(PathSeries::rates).collect::<Vec<_>>();
        Pairs { estimate: Estimate::of_ratio_of_runs(&rates(ours), &rates(theirs)), ..Pairs::default() }
    }
}

/// Pairs of several passes together, with an interval that knows of the passes.
pub(crate) fn of_pairs(passes: &[Vec<Pair>]) -> Pairs {
    let runs: Vec<Vec<f64>> = passes.iter().map(|pass| ratios(pass)).collect();
    Pairs { estimate: Estimate::of_runs(&runs), ..Pairs::of(passes.iter().flatten().copied()) }
}

/// Ratios of pairs of which neither slice was disturbed.
pub(crate) fn ratios(pairs: &[Pair]) -> Vec<f64> {
    let calm = pairs.iter().filter(|pair| !pair.is_disturbed && pair.rate.is_finite());
    calm.map(|pair| pair.rate).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;
    use traffic::statistics::Goal;

    /// A document of a client: each path with the rate of its slices.
    pub(crate) fn line(test: &str, paths: &[(&str, f64)], unreachable: &[(&str, &str)]) -> String {
        let host = serde_json::to_value(traffic::Host::default()).unwrap();
        let paths: Vec<_> = paths
            .iter()
            .map(|(name, rate)| {
                let slices: Vec<_> = (0..40).map(|i| json!([i, rate + f64::from(i % 3), 50.0, 0.0])).collect();
                json!({"name": name, "target": "t", "data_address": "d", "per_second": rate, "median_us": 50.0,
                    "disturbed": 0, "sent": 10, "lost": 1, "slices": slices})
            })
            .collect();
        json!({"format": 1, "version": "0", "begun": 0, "client": host, "servers": {}, "rows": [],
            "sliced": {"test": test, "slice_ms": 30, "rounds": 40, "paths": paths, "ratios": [],
                "unreachable": unreachable}})
        .to_string()
    }

    pub(crate) fn lane(path: Path) -> Lane {
        Lane { name: path.name(), path, is_ipv6: false, spec: String::new() }
    }

    #[test]
    fn rows_have_ratios_to_the_baseline_and_goals() {
        let log = [
            "tcp-rr: round 3/40, 5 s left".to_owned(),
            line("tcp-rr", &[("pod-ip", 1000.0), ("cluster-ip", 900.0)], &[("node-port", "cannot connect")]),
            line("tcp-rr", &[("pod-ip", 1000.0), ("cluster-ip", 900.0)], &[("node-port", "cannot connect")]),
            line("tcp-rr", &[("host-host", 2000.0)], &[]),
            line("tcp-rr", &[("host-host", 2000.0)], &[]),
        ]
        .join("\n");
        let collected = Collected::of(documents(&log).unwrap()).unwrap();
        let lanes = [Path::PodIp, Path::ClusterIp, Path::NodePort, Path::HostHost].map(lane);
        let goals = ["cluster-ip/pod-ip>=0.95", "pod-ip/host-host>=0.4", "pod-ip/pod-host>=0.4"];
        let (rows, missing) = collected.rows(&lanes, &goals.map(|goal| goal.parse().unwrap()));
        let row = |name: &str| rows.iter().find(|row| row.name == name).unwrap();
        let cluster_ip = row("cluster-ip");
        let ratio = cluster_ip.against.as_ref().unwrap();
        let estimate = ratio.pairs.estimate.unwrap();
        assert!(
            ratio.name == "pod-ip" && (estimate.median - 0.9).abs() < 0.01 && estimate.values == 80,
            "{ratio:?}"
        );
        assert_eq!(cluster_ip.goals[0].goal, Goal::AtLeast(0.95));
        let verdicts: Vec<_> = rows.iter().flat_map(|row| &row.goals).map(|judged| judged.verdict).collect();
        assert_eq!(verdicts, [Verdict::Met, Verdict::NotMeasured, Verdict::Missed]);
        assert!(row("pod-ip").against.is_none() && row("host-host").against.is_none());
        assert_eq!((cluster_ip.sent, cluster_ip.lost), (20, 2));
        assert_eq!(missing[0].path, "node-port");
        assert_eq!(missing[0].reason, "cannot connect");
    }

    #[test]
    fn passes_that_differ_leave_no_verdict() {
        let log = [
            line("tcp-rr", &[("pod-ip", 1000.0), ("cluster-ip", 800.0)], &[]),
            line("tcp-rr", &[("pod-ip", 1000.0), ("cluster-ip", 1100.0)], &[]),
        ]
        .join("\n");
        let collected = Collected::of(documents(&log).unwrap()).unwrap();
        let goal = ["cluster-ip/pod-ip>=0.95".parse().unwrap()];
        let (rows, _) = collected.rows(&[Path::PodIp, Path::ClusterIp].map(lane), &goal);
        assert!(matches!(rows[1].goals[0].verdict, Verdict::Undecided(_)), "{:?}", rows[1].goals);
    }

    #[test]
    fn a_document_of_one_test_is_indented() {
        let value: serde_json::Value =
            serde_json::from_str(&line("tcp-rr", &[("pod-ip", 1.0)], &[])).unwrap();
        let log = format!("tcp-rr: round 1/2, 0 s left\n{value:#}\n");
        assert_eq!(documents(&log).unwrap().len(), 1);
        assert!(documents("{\n  \"format\": 1,").is_err());
        assert!(is_progress("tcp-rr: round 1/2, 0 s left") && !is_progress("}"));
    }

    #[test]
    fn the_last_words_of_a_client_are_its_error() {
        let log = "tcp-rr: round 1/2, 0 s left\nslipstream-traffic: path pod-ip: control connection: gone\n";
        assert_eq!(last_words(log), Some("slipstream-traffic: path pod-ip: control connection: gone"));
        assert_eq!(last_words("x"), None);
        assert!(documents("{\"format\": 7}").is_err());
    }
}
