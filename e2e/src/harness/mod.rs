//! The frame of every suite: named trials under `libtest-mimic` (`--list`, filters, `--skip`, `--exact`), with a time limit
//! each and, if `SLIPSTREAM_JUNIT` names a directory, a JUnit file per program.
//!
//! Trials that share a cluster form a [`Group`]. The first of them that is selected starts the group's stage, a thread that
//! brings the cluster up and then takes one trial after another as [`Job`]s from [`Jobs`]; after the last one the stage takes
//! the cluster down, which is a trial of its own (`taken_down`). Trials run one after another in the order of the list, since
//! most of them change the cluster that the next one finds.

mod checks;
mod group;
mod jobs;
mod junit;
mod settings;
mod stage;

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use clap::Parser;
use libtest_mimic::{Arguments, Trial};

pub use checks::Checks;
pub use group::{Case, Group};
pub use jobs::{Job, Jobs};
pub use settings::{Settings, bring_up};

use junit::Report;
use stage::Stage;

/// The trial at the end of each group: the cluster goes, with all that was made for it.
const TAKEN_DOWN: &str = "taken_down";

/// All trials of one test program.
#[derive(Debug)]
pub struct Program {
    name: &'static str,
    settings: Settings,
    groups: Vec<Group>,
}

impl Program {
    /// A program without trials.
    #[must_use]
    pub fn new(name: &'static str, settings: Settings) -> Self {
        Self { name, settings, groups: Vec::new() }
    }

    /// Adds trials that share a stage.
    #[must_use]
    pub fn with(mut self, group: Group) -> Self {
        self.groups.push(group);
        self
    }

    /// Adds several groups.
    #[must_use]
    pub fn with_all(mut self, groups: Vec<Group>) -> Self {
        self.groups.extend(groups);
        self
    }

    /// Runs the trials that the command line selects.
    #[must_use]
    pub fn main(self) -> ExitCode {
        self.run(&Arguments::from_args())
    }

    /// Runs the trials that the arguments select.
    #[must_use]
    pub fn run(self, arguments: &Arguments) -> ExitCode {
        if arguments.list {
            let names = self.groups.iter().flat_map(Group::names);
            let trials = names.map(|name| Trial::test(name, || Ok(()))).collect();
            return libtest_mimic::run(arguments, trials).exit_code();
        }
        let begin = Instant::now();
        let report = Arc::new(Mutex::new(Report::new(self.name)));
        let mut trials = Vec::new();
        for group in self.groups {
            trials.extend(trials_of(group, &self.settings, arguments, &report));
        }
        // What is selected is selected already; the order of the list counts.
        let all = Arguments {
            filter: None,
            exact: false,
            skip: Vec::new(),
            test_threads: Some(1),
            ..arguments.clone()
        };
        let conclusion = libtest_mimic::run(&all, trials);
        let report = report.lock().unwrap_or_else(PoisonError::into_inner);
        report.write(begin.elapsed());
        conclusion.exit_code()
    }
}

/// Parameters of a suite as its flags on the command line of `e2e` would give them.
///
/// # Panics
/// The suite knows no such flag.
#[must_use]
pub fn flags<A: clap::Args>(line: &str) -> A {
    #[derive(clap::Parser)]
    #[command(no_binary_name = true)]
    struct Line<A: clap::Args> {
        #[command(flatten)]
        args: A,
    }
    Line::parse_from(line.split_whitespace()).args
}

/// The selected trials of a group, and the one that ends it.
fn trials_of(
    group: Group,
    settings: &Settings,
    arguments: &Arguments,
    report: &Arc<Mutex<Report>>,
) -> Vec<Trial> {
    let selected: Vec<usize> = group
        .names()
        .enumerate()
        .filter(|(_, name)| is_selected(arguments, name))
        .map(|(index, _)| index)
        .collect();
    if selected.is_empty() {
        return Vec::new();
    }
    let names: Vec<String> = group.names().collect();
    let end = group.full_name(TAKEN_DOWN);
    let stage = Stage::new(group, settings.clone(), selected.clone(), Arc::clone(report));
    let stage = Arc::new(Mutex::new(stage));
    let lock = |stage: &Arc<Mutex<Stage>>| Arc::clone(stage);
    let mut trials: Vec<Trial> = selected
        .into_iter()
        .map(|index| {
            let (stage, name) = (lock(&stage), names[index].clone());
            Trial::test(name.clone(), move || {
                stage.lock().unwrap_or_else(PoisonError::into_inner).play(index, &name)
            })
        })
        .collect();
    trials.push(Trial::test(end.clone(), move || {
        stage.lock().unwrap_or_else(PoisonError::into_inner).end(&end)
    }));
    trials
}

/// What `libtest-mimic` does with the same arguments.
fn is_selected(arguments: &Arguments, name: &str) -> bool {
    let matches = |pattern: &str| if arguments.exact { name == pattern } else { name.contains(pattern) };
    arguments.filter.as_deref().is_none_or(matches) && !arguments.skip.iter().any(|skip| matches(skip))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use anyhow::bail;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    fn arguments(list: &[&str]) -> Arguments {
        Arguments::from_iter(["program", "--logfile", "/dev/null"].iter().chain(list))
    }

    fn program(log: &Arc<Mutex<Vec<String>>>, broken: bool) -> Program {
        let log = Arc::clone(log);
        let cases = ["one", "two", "three"].map(|name| Case::new(name, LIMIT, name)).to_vec();
        let group = Group::new("", cases, Vec::new(), move |_, jobs| {
            let note = |what: &str| log.lock().unwrap().push(what.to_owned());
            note("up");
            if broken {
                bail!("no cluster");
            }
            while let Some(mut job) = jobs.next() {
                let name = job.case;
                note(name);
                job.checks.check(name, if name == "two" { Err("wrong".into()) } else { Ok(String::new()) });
                job.done(Ok(()));
            }
            note("down");
            Ok(())
        });
        Program::new("test", Settings::default()).with(group)
    }

    fn run(list: &[&str], broken: bool) -> (ExitCode, Vec<String>) {
        let log = Arc::default();
        let code = program(&log, broken).run(&arguments(list));
        let log = log.lock().unwrap().clone();
        (code, log)
    }

    #[test]
    fn trials_run_in_order_on_one_stage_and_a_failed_check_fails_the_program() {
        let (code, log) = run(&[], false);
        assert_eq!(log, ["up", "one", "two", "three", "down"]);
        assert_ne!(code, ExitCode::SUCCESS);
    }

    #[test]
    fn a_filter_leaves_out_what_it_does_not_name() {
        let (code, log) = run(&["--skip", "two"], false);
        assert_eq!(log, ["up", "one", "three", "down"]);
        assert_eq!(code, ExitCode::SUCCESS);
        assert_eq!(run(&["nothing"], false).1, [""; 0]);
    }

    #[test]
    fn without_its_stage_every_trial_fails() {
        let (code, log) = run(&[], true);
        assert_eq!(log, ["up"]);
        assert_ne!(code, ExitCode::SUCCESS);
    }
}
