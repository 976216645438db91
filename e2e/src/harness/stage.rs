//! The thread that the trials of a group run in, seen from outside: started by the first trial, watched by the clock.

use std::os::unix::process::CommandExt;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use libtest_mimic::Failed;
use testbed::cluster::Bed;
use testbed::cluster::config;
use testbed::exec;
use testbed::ui::say;

use super::group::{Group, Run};
use super::jobs::{Done, Order, Orders};
use super::junit::Report;
use super::settings::Settings;

/// How long a cluster may take to come up, or to be taken down.
const CLUSTER: Duration = Duration::from_secs(300);

/// Where the stage is.
enum State {
    New(Run),
    Runs {
        orders: Sender<Order>,
        thread: JoinHandle<Result<()>>,
    },
    Ended,
    /// It ended before its time, because of this.
    Broken(String),
}

/// A group's stage.
pub(super) struct Stage {
    state: State,
    settings: Settings,
    selected: Vec<usize>,
    limits: Vec<Duration>,
    clusters: Vec<String>,
    report: Arc<Mutex<Report>>,
}

impl Stage {
    pub(super) fn new(
        group: Group,
        settings: Settings,
        selected: Vec<usize>,
        report: Arc<Mutex<Report>>,
    ) -> Self {
        let (limits, clusters, run) = group.into_parts();
        Self { state: State::New(run), settings, selected, limits, clusters, report }
    }

    /// Runs one trial.
    pub(super) fn play(&mut self, index: usize, name: &str) -> Result<(), Failed> {
        // The harness has begun a line.
        say("");
        let begin = Instant::now();
        let mut limit = exec::patient(self.limits[index]);
        if matches!(self.state, State::New(_)) {
            limit += exec::patient(CLUSTER);
            self.start()?;
        }
        let State::Runs { orders, .. } = &self.state else { return self.failed(name, begin) };
        let (reply, answer) = mpsc::channel();
        if orders.send(Order { index, reply }).is_err() {
            return self.failed(name, begin);
        }
        match answer.recv_timeout(limit) {
            Ok(done) => self.tell(name, begin, done),
            Err(RecvTimeoutError::Disconnected) => self.failed(name, begin),
            Err(RecvTimeoutError::Timeout) => self.give_up(name, begin),
        }
    }

    /// Lets the stage take down what it has brought up.
    pub(super) fn end(&mut self, name: &str) -> Result<(), Failed> {
        say("");
        let begin = Instant::now();
        let thread = match std::mem::replace(&mut self.state, State::Ended) {
            State::Runs { orders, thread } => {
                drop(orders);
                thread
            }
            State::Broken(why) => {
                self.record(name, begin, &[], Some(&why));
                return Err(why.into());
            }
            State::New(_) | State::Ended => return Ok(()),
        };
        let end = begin + exec::patient(CLUSTER);
        while !thread.is_finished() {
            if Instant::now() > end {
                self.give_up(name, begin)?;
            }
            thread::sleep(Duration::from_millis(20));
        }
        let outcome = joined(thread).map_err(|error| format!("{error:#}"));
        self.record(name, begin, &[], outcome.as_ref().err().map(String::as_str));
        outcome.map_err(Failed::from)
    }

    fn start(&mut self) -> Result<(), Failed> {
        let State::New(run) = std::mem::replace(&mut self.state, State::Ended) else { return Ok(()) };
        let (orders, receiver) = mpsc::channel();
        let (settings, selected) = (self.settings.clone(), self.selected.clone());
        let thread = thread::Builder::new()
            .name("stage".into())
            .spawn(move || run(&settings, Orders { receiver, selected }))
            .map_err(|error| format!("cannot start a thread: {error}"))?;
        self.state = State::Runs { orders, thread };
        Ok(())
    }

    fn tell(&self, name: &str, begin: Instant, done: Done) -> Result<(), Failed> {
        let Done { checks, outcome } = done;
        let mut wrong: Vec<String> = checks.failed().map(str::to_owned).collect();
        wrong.extend(outcome.err().map(|error| format!("{error:#}")));
        let verdict = (!wrong.is_empty()).then(|| wrong.join("\n"));
        self.record(name, begin, checks.lines(), verdict.as_deref());
        let seconds = begin.elapsed().as_secs_f64();
        say(format_args!("{name}: {} checks in {seconds:.1} s", checks.lines().len()));
        verdict.map_or(Ok(()), |verdict| Err(verdict.into()))
    }

    /// The stage has ended by itself: because of an error, or a panic.
    fn failed(&mut self, name: &str, begin: Instant) -> Result<(), Failed> {
        let why = match std::mem::replace(&mut self.state, State::Ended) {
            State::Runs { orders, thread } => {
                drop(orders);
                match joined(thread) {
                    Ok(()) => "the stage ended before this trial".to_owned(),
                    Err(error) => format!("{error:#}"),
                }
            }
            State::Broken(why) => why,
            State::New(_) | State::Ended => "the stage has ended".to_owned(),
        };
        self.state = State::Broken(why.clone());
        self.record(name, begin, &[], Some(&why));
        Err(why.into())
    }

    /// The trial exceeds its limit. Whatever it does cannot be stopped but with this process, which takes the clusters down
    /// instead of going on.
    fn give_up(&self, name: &str, begin: Instant) -> Result<(), Failed> {
        let why = format!("{name} exceeded its limit: not over after {:.0?}", begin.elapsed());
        self.record(name, begin, &[], Some(&why));
        self.report.lock().unwrap_or_else(PoisonError::into_inner).write(begin.elapsed());
        say(format_args!("\nFAILED: {why}; this ends the program"));
        let mut script = String::new();
        if let Ok(programs) = config::programs()
            && !self.settings.leaves_clusters()
        {
            for cluster in &self.clusters {
                if let Ok(Some(bed)) = Bed::rest(cluster) {
                    say(format_args!(
                        "logs: {}",
                        bed.keep_logs().unwrap_or_else(|error| format!("{error:#}"))
                    ));
                    script += &format!("'{}' --name '{cluster}' down; ", programs.join("testbed").display());
                }
            }
        }
        say("test result: FAILED. 0 passed; 1 failed");
        // In place of this process, since its threads may hold the clusters' locks.
        let error = exec::command("sh").arg("-c").arg(script + "exit 101").exec();
        Err(format!("{why}; and the clusters could not be taken down: {error}").into())
    }

    fn record(&self, name: &str, begin: Instant, checks: &[String], wrong: Option<&str>) {
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        report.add(name, begin.elapsed(), checks, wrong);
    }
}

fn joined(thread: JoinHandle<Result<()>>) -> Result<()> {
    thread.join().unwrap_or_else(|panic| Err(anyhow!("panicked: {}", message(&*panic))))
}

/// What a panic said.
pub(super) fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message").to_owned()
}
