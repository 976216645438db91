//! Whether the scopes of a change cover every flow whose verdict it changes. Random flows are traced through br-int of one node
//! before and after each of many changes, by `ofproto/trace`; a flow monitor of its own feeds the agent's classifier. A flow
//! whose verdict differs must have a scope that the classifier named.

mod by_hand;
mod change;
mod control;
mod flows;
mod kubernetes;
mod monitor;
mod scene;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::harness::Checks;
use anyhow::{Context, Result};
use node_agent::flow_cache::scope::{Rule, Why};
use testbed::cluster::{Bed, Shape};
use testbed::ui::say;

use crate::harness::{Case, Group, Program, Settings, flags};
use crate::random::Random;
use change::{Change, Expected};
use control::Control;
use flows::{Flow, Verdict, is_hit, reason};
use monitor::{Monitor, Seen};
use scene::Scene;

/// The node whose flows are looked at.
const NODE: &str = "n1";
/// How long a trial may take.
const LIMIT: Duration = Duration::from_secs(1200);
/// How long a change of Kubernetes' objects may take to reach br-int. Some change nothing there.
const REACHES: Duration = Duration::from_millis(1500);
/// After this without an update a change is complete.
const QUIET: Duration = Duration::from_millis(150);

/// How much is tested.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Makes the random flows and changes repeatable.
    #[arg(long)]
    seed: Option<u64>,
    /// How many flows are traced before and after each change.
    #[arg(long, default_value_t = 200)]
    flows: usize,
    /// How often every kind of change by hand is made, each time with other details.
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// Say what each change did.
    #[arg(long)]
    verbose: bool,
    #[command(flatten)]
    shape: Shape,
}

#[derive(Clone, Copy, Debug)]
enum Part {
    Kubernetes,
    ByHand,
    Controls,
}

/// Two nodes with both families.
#[must_use]
pub fn main() -> ExitCode {
    Program::new("scoped_changes", Settings::from_environment())
        .with(flags::<Args>("--dual-stack").group("", "scoped"))
        .main()
}

impl Args {
    /// The trials, on a cluster of that name.
    #[must_use]
    pub fn group(self, prefix: &'static str, cluster: &str) -> Group {
        let parts = [
            ("kubernetes", Part::Kubernetes),
            ("by_hand", Part::ByHand),
            ("a_missing_rule_is_noticed", Part::Controls),
        ];
        let cases = parts.map(|(name, part)| Case::new(name, LIMIT, part)).into();
        let name = cluster.to_owned();
        Group::new(prefix, cases, vec![name.clone()], move |settings, jobs| {
            settings.on_cluster(self.shape.config(&name)?, jobs, |bed, jobs| {
                let mut run = Run::begin(bed, &self)?;
                jobs.each(|part, checks| run.play(*part, checks));
                Ok(())
            })
        })
    }
}

/// The updates that are everything.
fn wide(why: Why, seen: &Seen) -> String {
    let wide = seen
        .updates
        .iter()
        .filter(|text| ["scopes", "nothing", "lint"].iter().all(|scoped| !text.starts_with(scoped)));
    wide.take(6).fold(why.name().to_owned(), |text, update| text + "\n  " + update)
}

/// Sums over changes.
#[derive(Debug, Default)]
struct Sums {
    changes: usize,
    updates: usize,
    /// Verdicts that a scoped entry could have held, of all changes.
    cached: usize,
    changed: usize,
    invalidated: usize,
    missed: usize,
    /// Changed verdicts that would be missed without a rule.
    without: BTreeMap<Rule, usize>,
    /// Changes by what they were.
    reasons: BTreeMap<&'static str, usize>,
}

struct Run<'a> {
    bed: &'a Bed,
    args: &'a Args,
    scene: Scene,
    monitor: Monitor,
    control: Control,
    random: Random,
    flows: Vec<Flow>,
    verdicts: Vec<Verdict>,
    /// Came while flows were traced, so it counts for the change before and the one after.
    late: Seen,
    sums: Sums,
}

impl<'a> Run<'a> {
    fn begin(bed: &'a Bed, args: &'a Args) -> Result<Self> {
        let seed = args.seed.unwrap_or_else(Random::seed);
        say(format_args!("seed {seed}"));
        let mut random = Random::new(seed);
        let scene = Scene::make(bed)?;
        let flows = scene.flows(bed, &mut random, args.flows)?;
        let monitor = Monitor::connect(bed, NODE)?;
        let (count, took) = monitor.initial();
        say(format_args!("{count} flows, classified in {took:.1?}"));
        let control = Control::connect(bed, NODE)?;
        let (verdicts, late, sums) = (Vec::new(), Seen::default(), Sums::default());
        let mut run = Self { bed, args, scene, monitor, control, random, flows, verdicts, late, sums };
        let begin = Instant::now();
        run.verdicts = run.trace()?;
        let entries = run.verdicts.iter().filter(|verdict| verdict.scopes.is_some()).count();
        say(format_args!(
            "{} flows of which {entries} would be cached, traced in {:.1?}",
            run.flows.len(),
            begin.elapsed()
        ));
        run.late = run.monitor.read(QUIET, QUIET)?;
        Ok(run)
    }

    fn trace(&mut self) -> Result<Vec<Verdict>> {
        let ports = self.control.ports()?;
        self.flows.iter().map(|flow| flow.verdict(&mut self.control, &ports)).collect()
    }

    fn play(&mut self, part: Part, checks: &mut Checks) -> Result<()> {
        let changes = match part {
            Part::Controls => {
                self.controls(checks);
                return Ok(());
            }
            Part::Kubernetes => kubernetes::changes(self.bed)?,
            Part::ByHand => {
                let mut changes = Vec::new();
                for _ in 0..self.args.rounds {
                    changes.extend(by_hand::changes(self.bed, &self.scene, &mut self.random)?);
                }
                changes
            }
        };
        let lint = self.monitor.lint().map_or(Ok("accepted".to_owned()), |why| Err(why.to_owned()));
        checks.check("br-int's flows are as the rules assume", lint);
        for Change { name, expected, make, undo } in &changes {
            for (sign, act) in [("+", make), ("-", undo)] {
                self.step(&format!("{sign} {name}"), *expected, act, checks)?;
            }
        }
        let lint = self.monitor.lint().map_or(Ok("accepted".to_owned()), |why| Err(why.to_owned()));
        checks.check("br-int's flows still are as the rules assume", lint);
        self.report();
        Ok(())
    }

    /// Makes a change and compares.
    fn step(
        &mut self,
        name: &str,
        expected: Expected,
        act: &dyn Fn(&Bed) -> Result<()>,
        checks: &mut Checks,
    ) -> Result<()> {
        act(self.bed).with_context(|| name.to_owned())?;
        let first = if expected == Expected::Any { Duration::from_millis(50) } else { REACHES };
        let mut seen = self.monitor.read(first, QUIET)?;
        // What is written only now, such as a binding, comes before the answer.
        self.bed.nbctl(&["--wait=hv", "sync"])?;
        seen.join(&self.monitor.read(Duration::from_millis(30), QUIET)?);
        let alone = seen.impact.everything;
        let verdicts = self.trace()?;
        let before = std::mem::replace(&mut self.verdicts, verdicts);
        seen.join(&std::mem::take(&mut self.late));
        self.late = self.monitor.read(Duration::from_millis(1), QUIET)?;
        seen.join(&self.late);
        let missed = self.compare(&before, &seen);
        if self.args.verbose || !missed.is_empty() {
            say(format_args!(
                "{name}: {} updates, {}, {} scopes",
                seen.impact.updates,
                reason(&seen.impact),
                seen.impact.scopes.len()
            ));
        }
        if !missed.is_empty() {
            checks.check(
                format_args!("{name}: scopes cover what changed"),
                Err(self.explain(&before, &seen, &missed)),
            );
        }
        if expected == Expected::Scopes
            && let Some(why) = alone
        {
            checks.check(format_args!("{name}: is not everything"), Err(wide(why, &seen)));
        }
        Ok(())
    }

    /// Flows whose verdict changed outside of the scopes.
    fn compare(&mut self, before: &[Verdict], seen: &Seen) -> Vec<usize> {
        let sums = &mut self.sums;
        sums.changes += 1;
        sums.updates += seen.impact.updates;
        *sums.reasons.entry(reason(&seen.impact)).or_default() += 1;
        let mut missed = Vec::new();
        for (at, (before, after)) in before.iter().zip(&self.verdicts).enumerate() {
            let Some(scopes) = &before.scopes else { continue };
            let changed = before.actions != after.actions;
            let hit = is_hit(&seen.impact, scopes);
            sums.cached += 1;
            sums.changed += usize::from(changed);
            sums.invalidated += usize::from(hit);
            if changed && !hit {
                missed.push(at);
            }
            for (rule, impact) in &seen.without {
                *sums.without.entry(*rule).or_default() += usize::from(changed && !is_hit(impact, scopes));
            }
        }
        sums.missed += missed.len();
        missed
    }

    fn explain(&self, before: &[Verdict], seen: &Seen, missed: &[usize]) -> String {
        let mut text = format!("{} flows; the impact is {:?}", missed.len(), seen.impact);
        for at in missed.iter().take(3) {
            let (Some(flow), Some(old), Some(new)) =
                (self.flows.get(*at), before.get(*at), self.verdicts.get(*at))
            else {
                continue;
            };
            text += &format!(
                "\n{}: {:?}\n  was {:?}\n  is  {:?}\n  of  {:?}",
                flow.name, flow.packet, old.actions, new.actions, old.scopes
            );
        }
        let updates = seen.updates.iter().take(20);
        updates.fold(text, |text, update| text + "\n  " + update)
    }

    fn report(&self) {
        let Sums { changes, updates, cached, changed, invalidated, missed, reasons, .. } = &self.sums;
        say(format_args!(
            "{changes} changes, {updates} updates; of {cached} verdicts {changed} changed, {invalidated} were invalidated, {missed} missed"
        ));
        say(format_args!("changes by what they were: {reasons:?}"));
    }

    /// Without a rule some of the changed verdicts are missed. The others are asked of a model of the table, by the classifier's tests.
    fn controls(&self, checks: &mut Checks) {
        say(format_args!(
            "of {} changed verdicts, missed without a rule: {:?}",
            self.sums.changed, self.sums.without
        ));
        for rule in [Rule::Address, Rule::LocalPort, Rule::Everything] {
            let missed = self.sums.without.get(&rule).copied().unwrap_or_default();
            let said = format!("{missed} of {} are missed", self.sums.changed);
            let outcome = if missed > self.sums.missed { Ok(said) } else { Err(said) };
            checks.check(format_args!("without rule {rule:?}"), outcome);
        }
    }
}
