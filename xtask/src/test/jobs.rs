//! Programs that run side by side in lanes. The output of each is kept until it ends and then printed as a whole.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{disk, failures, junit};
use crate::tally::{CLOSING, Tally};
use crate::{exec, paths};

/// Number of programs started so far, for the names of their logs.
static STARTED: AtomicUsize = AtomicUsize::new(0);
/// A program that runs longer counts as stuck.
const LIMIT: Duration = Duration::from_secs(1800);
/// As [`LIMIT`], with what others leave of the processors.
const IDLE_LIMIT: Duration = Duration::from_secs(4000);
/// Number of programs that run at the same time as those of real nodes, which mostly wait for kubelets. When those are done it is one more.
const SHARED: usize = 2;
/// Number of quick programs that run at the same time.
const FIRST: usize = 2;
/// Number of programs that mostly wait and run at the same time. With three, OVN takes longer to carry out a change than the
/// suites allow.
const WAITING: usize = 2;

/// Number of programs that compute all the time and run at the same time.
const BACKGROUND: usize = 2;
/// Number of calm programs that run at the same time.
const CALM: usize = 3;

/// Which programs may run at the same time as a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// Before all others: quick programs, whose failure makes the rest pointless.
    First,
    /// With others.
    Shared,
    /// With others, but not with one of this lane: real nodes change settings of the machine.
    Real,
    /// With others of this lane. They keep the processors idle most of the time, and their expectations concern times of
    /// hundreds of milliseconds.
    Waiting,
    /// With one other of this lane, after the shared ones: programs that compute all the time, and whose expectations concern no times.
    /// Beside a virtual machine OVS stands still for seconds, whatever the machine's priority.
    Background,
    /// One after the other beside all that are shared, in the background or waiting, with what these leave of the processors (`SCHED_IDLE`,
    /// sched(7)): compilers, which keep nobody from a processor.
    Idle,
    /// With two others of this lane, after those that mostly wait: programs that leave the processors idle nearly all the time, and fail
    /// beside busy ones.
    Calm,
    /// With no other program.
    Alone,
}

/// A program to run.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) name: String,
    /// The part of the run to which it belongs.
    pub(super) part: &'static str,
    /// Name of the test target, by which it can be selected.
    pub(super) target: String,
    pub(super) lane: Lane,
    /// It writes its own JUnit file.
    pub(super) reports_itself: bool,
    pub(super) command: Command,
}

/// Duration of a program.
#[derive(Debug)]
pub(super) struct Took {
    pub(super) name: String,
    pub(super) time: Duration,
    /// Percentage of it that the processors had nothing to do, whatever else ran.
    pub(super) idle: u64,
}

/// Result of a program.
struct Outcome {
    name: String,
    reports_itself: bool,
    output: Result<String>,
    good: bool,
    time: Duration,
    /// Percentage of the time that the processors had nothing to do meanwhile, whatever else ran.
    idle: u64,
}

/// Runs all jobs and counts their tests.
pub(super) fn run_all(jobs: Vec<Job>, tally: &mut Tally) -> Result<Vec<Took>> {
    fs::create_dir_all(logs()).with_context(|| logs().display().to_string())?;
    let of = |jobs: &mut Vec<Job>, lane| -> VecDeque<Job> {
        let (chosen, rest): (Vec<_>, _) = std::mem::take(jobs).into_iter().partition(|job| job.lane == lane);
        *jobs = rest;
        chosen.into()
    };
    let mut jobs = jobs;
    let (first, real, shared) =
        (of(&mut jobs, Lane::First), of(&mut jobs, Lane::Real), of(&mut jobs, Lane::Shared));
    let (waiting, background) = (of(&mut jobs, Lane::Waiting), of(&mut jobs, Lane::Background));
    let (calm, idle) = (of(&mut jobs, Lane::Calm), of(&mut jobs, Lane::Idle));
    let alone = VecDeque::from(jobs);
    let mut took = Vec::new();
    in_lanes(vec![(first, FIRST)], tally, &mut took);
    let beside = thread::scope(|scope| {
        let idle = scope.spawn(|| idle.into_iter().map(run).collect::<Vec<_>>());
        for queues in
            [vec![(real, 1), (shared, SHARED)], vec![(background, BACKGROUND)], vec![(waiting, WAITING)]]
        {
            in_lanes(queues, tally, &mut took);
        }
        idle.join()
    });
    match beside {
        Ok(outcomes) => outcomes.into_iter().for_each(|outcome| end(outcome, tally, &mut took)),
        Err(_) => tally.fail("the thread of the programs with the lowest priority has panicked"),
    }
    in_lanes(vec![(calm, CALM)], tally, &mut took);
    in_lanes(vec![(alone, 1)], tally, &mut took);
    Ok(took)
}

/// A command of [`Lane::Idle`]; what it starts has no other priority.
pub(super) fn at_idle_priority(program: &Path) -> Command {
    let mut command = exec::command("chrt");
    command.args(["--idle", "0"]).arg(program);
    command
}

/// Counts what came of a program.
fn end(outcome: Outcome, tally: &mut Tally, took: &mut Vec<Took>) {
    count(&outcome, tally);
    took.push(Took { name: outcome.name, time: outcome.time, idle: outcome.idle });
}

/// Runs queues side by side, each in the given number of lanes; a lane whose queue is empty helps with the queues after it.
fn in_lanes(queues: Vec<(VecDeque<Job>, usize)>, tally: &mut Tally, took: &mut Vec<Took>) {
    let (sender, receiver) = mpsc::channel();
    let queues: Vec<_> = queues.into_iter().map(|(queue, lanes)| (Mutex::new(queue), lanes)).collect();
    thread::scope(|scope| {
        // The locks must not be held while a job runs.
        let pop = |(queue, _): &(Mutex<VecDeque<Job>>, usize)| {
            queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
        };
        for (number, (_, lanes)) in queues.iter().enumerate() {
            for _ in 0..*lanes {
                let sender = sender.clone();
                let mine = queues.get(number..).unwrap_or_default();
                scope.spawn(move || {
                    while let Some(job) = mine.iter().find_map(pop) {
                        let _ = sender.send(run(job));
                    }
                });
            }
        }
        drop(sender);
        for outcome in receiver {
            end(outcome, tally, took);
        }
    });
}

fn run(mut job: Job) -> Outcome {
    exec::say(format_args!("started: {}", job.name));
    let (begin, before) = (Instant::now(), Processors::now());
    let limit = if job.lane == Lane::Idle { IDLE_LIMIT } else { LIMIT };
    // A library and a program may have one name, and run at the same time.
    let number = STARTED.fetch_add(1, Ordering::Relaxed);
    let path = logs().join(format!("{}-{number}.log", job.name.replace([' ', '/', ':'], "-")));
    let ended = start(&mut job.command, &path).and_then(|child| wait(child, limit));
    let good = ended.as_ref().is_ok_and(ExitStatus::success);
    let output = ended.and_then(|status| {
        let mut text = String::from_utf8_lossy(&fs::read(&path)?).into_owned();
        if !status.success() && status.code() != Some(101) {
            text.push_str(&format!("\nended: {status}\n"));
        }
        Ok(text)
    });
    let idle = before.idle_until(Processors::now());
    Outcome { name: job.name, reports_itself: job.reports_itself, output, good, time: begin.elapsed(), idle }
}

/// Time of all processors since the start of the machine, in ticks.
#[derive(Clone, Copy, Default)]
struct Processors {
    idle: u64,
    all: u64,
}

impl Processors {
    fn now() -> Self {
        fs::read_to_string("/proc/stat").map(|text| Self::parse(&text)).unwrap_or_default()
    }

    /// The first line of /proc/stat (proc(5)): user, nice, system, idle, iowait, irq, softirq, steal; guests are in user.
    fn parse(text: &str) -> Self {
        let line = text.lines().next().unwrap_or_default();
        let times: Vec<u64> =
            line.split_whitespace().skip(1).take(8).filter_map(|n| n.parse().ok()).collect();
        Self { idle: times.get(3..5).unwrap_or_default().iter().sum(), all: times.iter().sum() }
    }

    /// Percentage of the time that the processors had nothing to do.
    fn idle_until(self, later: Self) -> u64 {
        (later.idle.saturating_sub(self.idle) * 100)
            .checked_div(later.all.saturating_sub(self.all))
            .unwrap_or(0)
    }
}

fn start(command: &mut Command, log: &PathBuf) -> Result<Child> {
    let file = File::create(log).with_context(|| log.display().to_string())?;
    let shown = format!("{command:?}");
    command
        .stdin(Stdio::null())
        .stdout(file.try_clone().context("log of a program")?)
        .stderr(file)
        .spawn()
        .with_context(|| format!("cannot start {shown}"))
}

fn wait(mut child: Child, limit: Duration) -> Result<ExitStatus> {
    let end = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() > end {
            child.kill()?;
            return Ok(child.wait()?);
        }
        thread::sleep(Duration::from_millis(50));
    }
}

fn count(outcome: &Outcome, tally: &mut Tally) {
    let Outcome { name, reports_itself, output, good, time, idle } = outcome;
    exec::heading(name);
    let output = match output {
        Ok(output) => output,
        Err(error) => return tally.fail(format!("{name}: {error:#}")),
    };
    if !reports_itself && let Err(error) = junit::write(&junit_directory(), name, output, *time) {
        exec::say(format_args!("no JUnit file of {name}: {error:#}"));
    }
    // If a part prints its own counts of everything that it ran, those are used.
    let (shown, counts) = match output.rsplit_once(CLOSING) {
        Some((before, closing)) => (before, format!("{CLOSING}{closing}")),
        None => (output.as_str(), output.clone()),
    };
    exec::say(shown.trim());
    let before = tally.failures();
    if !tally.read(name, &counts) {
        tally.fail(format!("{name}: ended without a count"));
    } else if !good && tally.failures() == before {
        tally.fail(format!("{name}: ended badly"));
    }
    if tally.failures() > before
        && let Some(said) = failures::excerpt(output)
    {
        tally.keep(name, said);
    }
    let room =
        disk::free().map_or_else(|error| format!("{error:#}"), |free| format!("{} free", disk::Size(free)));
    exec::say(format_args!("--- {name} took {time:.0?}, processors idle {idle} %; disk: {room}"));
}

/// Where JUnit files go.
pub(super) fn junit_directory() -> PathBuf {
    paths::target().join("junit")
}

fn logs() -> PathBuf {
    paths::target().join("test-logs")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str, lane: Lane, script: &str) -> Job {
        let mut command = exec::command("sh");
        command.args(["-c", script]);
        Job { name: name.into(), part: "unit", target: name.into(), lane, reports_itself: true, command }
    }

    #[test]
    fn idle_time_is_told_as_a_part_of_all_time() {
        let of = |text| Processors::parse(text);
        let (before, after) =
            (of("cpu  10 0 10 80 0 0 0 0 0 0\ncpu0 1"), of("cpu  40 0 20 130 10 0 0 0 5 0\n"));
        assert_eq!(before.idle_until(after), 60);
        assert_eq!(before.idle_until(before), 0);
        assert_eq!(of("").idle_until(of("nothing")), 0);
    }

    #[test]
    fn every_job_is_run_and_counted_and_the_lanes_keep_their_order() {
        let mut tally = Tally::default();
        let took = run_all(
            vec![
                job("jobs test alone", Lane::Alone, "echo 'test result: ok. 1 passed; 0 failed'"),
                job("jobs test idle", Lane::Idle, "echo 'test result: ok. 5 passed; 0 failed'"),
                job("jobs test shared", Lane::Shared, "echo 'test result: ok. 2 passed; 0 failed'"),
                job("jobs test first", Lane::First, "echo 'in all: 4 passed, 1 failed'; exit 1"),
                job("jobs test silent", Lane::Real, "exit 3"),
            ],
            &mut tally,
        );
        let names: Vec<_> = took.unwrap().into_iter().map(|took| took.name).collect();
        assert_eq!(names.first().unwrap(), "jobs test first");
        assert_eq!(names[names.len() - 2..], ["jobs test idle", "jobs test alone"]);
        assert_eq!(tally.closing_line(), "12 passed, 2 failed");
    }
}
