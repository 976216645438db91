//! `testbed golden`: the reference cluster's objects on our plugin, compared with what ovn-kubernetes wrote and did
//! for them. Every difference is either a failure or in the reviewed list, with its reason.

mod compare;
mod data;
mod flows;
mod normalize;
mod packets;
mod stages;

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::Value;

use crate::bed::Bed;
use crate::cli::Shape;
use crate::ui::{Checks, Progress, say};
use compare::{Difference, Reviewed};
use data::Stage;

/// The northbound database in comparable form: table to rows.
pub fn northbound(bed: &Bed) -> Result<Value> {
    stages::northbound(bed)
}

/// How long a stage may take to reach its final state.
const LIMIT: Duration = Duration::from_secs(15);

/// `testbed golden`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Leave the cluster running.
    #[arg(long)]
    keep: bool,
    /// Only compare databases, annotations and flows; send no packets.
    #[arg(long)]
    no_packets: bool,
    #[command(flatten)]
    shape: Shape,
}

impl Args {
    /// Runs it on a cluster of that name; true if there are no differences but the reviewed ones.
    pub fn run(self, name: &str) -> Result<bool> {
        let Self { keep, no_packets, shape } = self;
        let progress = Progress::new();
        let bed = shape.bring_up(name)?;
        let outcome = compare_all(&bed, no_packets, &progress);
        if keep {
            say(format_args!("the cluster {name} goes on running"));
        } else {
            bed.finish(matches!(outcome, Ok(true)))?;
        }
        outcome
    }
}

fn compare_all(bed: &Bed, no_packets: bool, progress: &Progress) -> Result<bool> {
    let mut checks = Checks::default();
    let mut reviewed = Reviewed::load()?;
    for stage in Stage::ALL {
        stages::apply(bed, stage)?;
        progress.done(format_args!("stage {}: objects applied", stage.name()));
        compare_stage(bed, stage, &mut reviewed, &mut checks)?;
        if !no_packets {
            packets::run(bed, stage, &mut checks)?;
        }
    }
    for entry in reviewed.unused() {
        checks.check(
            format_args!("reviewed difference {entry}"),
            Err("it does not occur any more: remove it from the list".into()),
        );
    }
    Ok(checks.finish())
}

/// One kind of thing to compare: how to get what is there, and what is expected.
struct Subject<'a> {
    name: String,
    expected: Value,
    actual: Box<dyn Fn() -> Result<Value> + 'a>,
}

fn compare_stage(bed: &Bed, stage: Stage, reviewed: &mut Reviewed, checks: &mut Checks) -> Result<()> {
    let mut subjects = vec![
        Subject {
            name: "NB".into(),
            expected: data::northbound(stage)?,
            actual: Box::new(|| stages::northbound(bed)),
        },
        Subject {
            name: "annotations".into(),
            expected: data::annotations(stage)?,
            actual: Box::new(|| stages::annotations(bed)),
        },
    ];
    for node in bed.config().node_names().into_iter().take(2) {
        let host = node.clone();
        subjects.push(Subject {
            name: format!("flows of breth0 on {node}"),
            expected: flows::expected(data::node_state(stage, &node)?),
            actual: Box::new(move || flows::actual(bed, &host)),
        });
    }
    for subject in subjects {
        let (differences, known) = settle(&subject, stage, reviewed);
        let shown: Vec<_> = differences.iter().map(|d| format!("\n  {d}")).collect();
        let what = format!("{}: {}", stage.name(), subject.name);
        checks.check(
            what,
            if differences.is_empty() {
                Ok(format!("equal but for {known} reviewed differences"))
            } else {
                Err(format!("{} differences{}", differences.len(), shown.concat()))
            },
        );
    }
    Ok(())
}

/// Compares until there is no difference or the time is over, since a change takes its time through the cluster.
fn settle(subject: &Subject<'_>, stage: Stage, reviewed: &mut Reviewed) -> (Vec<Difference>, usize) {
    let end = Instant::now() + LIMIT;
    loop {
        let (differences, known) = match (subject.actual)() {
            Ok(actual) => reviewed.subtract(stage, compare::compare(&subject.expected, &actual)),
            Err(error) => (vec![Difference::unreadable(&format!("{error:#}"))], Vec::new()),
        };
        if differences.is_empty() || Instant::now() > end {
            let count = known.len();
            reviewed.mark(known);
            return (differences, count);
        }
        std::thread::sleep(Duration::from_millis(300));
    }
}
