//! The reference cluster's objects on our plugin, compared with what ovn-kubernetes wrote and did
//! for them. Every difference is either a failure or in the reviewed list, with its reason.

mod flows;
mod packets;
mod stages;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::Value;

use crate::harness::Checks;
use crate::harness::{Case, Group, Jobs, Program, Settings, flags};
use test_support::ovn_reference::{Difference, Reviewed, Stage, compare, data};
use testbed::cluster::Bed;
use testbed::cluster::Shape;
use testbed::ui::Progress;

/// The northbound database in comparable form: table to rows.
pub fn northbound(bed: &Bed) -> Result<Value> {
    stages::northbound(bed)
}

/// How long the trial of a stage may take.
const STAGE: Duration = Duration::from_secs(300);
/// How long a stage may take to reach its final state.
const LIMIT: Duration = Duration::from_secs(15);

/// What to compare.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Only compare databases, annotations and flows; send no packets.
    #[arg(long)]
    no_packets: bool,
    #[command(flatten)]
    shape: Shape,
}

/// All stages.
#[must_use]
pub fn main() -> ExitCode {
    Program::new("ovn_kubernetes_parity", Settings::from_environment())
        .with(flags::<Args>("").group("", "parity"))
        .main()
}

impl Args {
    /// A trial for each stage, on a cluster of that name.
    #[must_use]
    pub fn group(self, prefix: &'static str, cluster: &str) -> Group {
        let cases = Stage::ALL.map(|stage| Case::new(stage.name(), STAGE, stage)).to_vec();
        let name = cluster.to_owned();
        Group::new(prefix, cases, vec![name.clone()], move |settings, jobs| {
            settings.on_cluster(self.shape.config(&name)?, jobs, |bed, jobs| self.play(bed, jobs))
        })
    }

    fn play(&self, bed: &Bed, jobs: &mut Jobs<Stage>) -> Result<()> {
        let progress = Progress::new();
        let mut reviewed = Reviewed::load()?;
        let mut missing = Stage::ALL.into_iter();
        let mut compared = 0;
        jobs.each(|stage, checks| {
            // A stage needs those before it.
            for before in missing.by_ref() {
                stages::apply(bed, before)?;
                progress.done(format_args!("stage {}: objects applied", before.name()));
                if before == *stage {
                    break;
                }
            }
            compare_stage(bed, *stage, &mut reviewed, checks)?;
            if !self.no_packets {
                packets::run(bed, *stage, checks)?;
            }
            compared += 1;
            if compared == Stage::ALL.len() {
                for entry in reviewed.unused() {
                    checks.check(
                        format_args!("reviewed difference {entry}"),
                        Err("it does not occur any more: remove it from the list".into()),
                    );
                }
            }
            Ok(())
        });
        Ok(())
    }
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
            Ok(actual) => reviewed.subtract(stage, compare(&subject.expected, &actual)),
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
