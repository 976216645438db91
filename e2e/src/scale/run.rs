//! Parts of suite `scale` that share one control plane full of objects.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use kube::Client;

use super::controller::{Controller, load_average};
use super::figures::{self, Figures, milliseconds};
use super::watch::Watch;
use super::world::World;
use super::{Args, Part, SHOWN, SOCKET, Trial, away, eventually, latency, load, rebuild, told, told_text};
use crate::harness::Checks;
use crate::random::Random;
use testbed::cluster::Bed;
use testbed::exec;
use testbed::ui::Progress;

/// One cluster full of objects.
pub(super) struct Run<'a> {
    pub(super) args: &'a Args,
    pub(super) bed: &'a Bed,
    pub(super) controller: Controller<'a>,
    pub(super) client: Client,
    pub(super) random: Random,
    pub(super) world: World,
    pub(super) progress: Progress,
}

impl Run<'_> {
    /// One trial; whatever it is, the world is put into the cluster before it.
    pub(super) async fn trial(
        &mut self,
        trial: Trial,
        filled: &mut bool,
        checks: &mut Checks,
        figures: &mut Figures,
    ) -> Result<()> {
        if !*filled {
            *filled = true;
            self.fill(checks, figures).await?;
        }
        match trial {
            Trial::Fill | Trial::Part(Part::Gap) => Ok(()),
            Trial::Part(Part::Rebuild) => rebuild::run(self, checks, figures).await,
            Trial::Part(Part::Churn) => self.churn(checks, figures).await,
            Trial::Part(Part::Idle) => self.idle(checks, figures).await,
            Trial::Part(Part::Restart) => away::run(self, checks, figures).await,
        }
    }

    /// The time that something may take.
    pub(super) fn limit(&self) -> Duration {
        exec::patient(Duration::from_secs(self.args.limit))
    }

    pub(super) fn done(&self, what: &str) {
        self.progress.done(format_args!("{what} (load average {})", load_average()));
    }

    pub(super) async fn watch(&self) -> Result<Watch> {
        Watch::open(&self.bed.host("central").path(SOCKET)?, &self.world).await
    }

    /// Creates all objects of the world in the cluster.
    async fn fill(&mut self, checks: &mut Checks, figures: &mut Figures) -> Result<()> {
        let (client, world, limit) = (&self.client, &self.world, self.limit());
        self.controller.settled(limit).await?;
        let watch = self.watch().await?;
        load::namespaces(client, &world.namespaces).await?;
        load::nodes(client, self.args.nodes).await?;
        load::policies(client, world.policies()).await?;
        self.done("nodes and policies");
        let begin = Instant::now();
        load::pods(client, world.pods.values()).await?;
        figures.time("pods posted", begin.elapsed());
        let rows = eventually(limit, "every pod has its row", || {
            let ports = watch.ports();
            if ports == world.pods.len() { Ok(()) } else { Err(anyhow!("{ports} of {}", world.pods.len())) }
        });
        let rows = rows.await;
        checks.check(
            format_args!("{} pods on {} nodes have their rows", world.pods.len(), self.args.nodes),
            told(rows),
        );
        figures.time("pods posted → last row", watch.last().unwrap_or(begin) - begin);
        let annotated = load::annotated(client, limit).await;
        if let Ok(at) = &annotated {
            figures.time("pods posted → all seen annotated", *at - begin);
        }
        checks.check("every pod has its annotation", told(annotated.map(drop)));
        self.done("pods");
        let begin = Instant::now();
        load::services(client, world, &watch.contents()).await?;
        figures.time("services posted", begin.elapsed());
        let outcome = self.is_right(&watch, limit).await;
        figures.time(
            "services posted → all there",
            watch.last().unwrap_or(begin).saturating_duration_since(begin),
        );
        checks.check(format_args!("NB holds what the objects say: {}", self.amounts()), outcome);
        self.controller.settled(limit).await?;
        checks.check("no pod that a policy isolates was open meanwhile", told_text(watch.never_open()));
        self.peak("largest memory of the controller, filling", figures)?;
        self.done("services");
        Ok(())
    }

    fn amounts(&self) -> String {
        let world = &self.world;
        format!(
            "{} pods, {} services, {} policies in {} namespaces",
            world.pods.len(),
            world.services.len(),
            world.policies().count(),
            world.namespaces.len()
        )
    }

    /// Waits until the database holds what the book says.
    pub(super) async fn is_right(&self, watch: &Watch, limit: Duration) -> Result<String, String> {
        let begin = Instant::now();
        let right = eventually(limit, "NB is as it should be", || {
            let found = watch.contents().differences(&self.world);
            let some: Vec<_> = found.iter().take(SHOWN).cloned().collect();
            if found.is_empty() {
                Ok(())
            } else {
                Err(anyhow!("{} differences: {}", found.len(), some.join("; ")))
            }
        });
        told(right.await)?;
        Ok(format!("after {:.1} s", begin.elapsed().as_secs_f64()))
    }

    pub(super) fn peak(&self, what: &str, figures: &mut Figures) -> Result<u64> {
        let peak = self.controller.peak_megabytes()?;
        figures.note(what, format!("{peak} MB"));
        Ok(peak)
    }

    async fn churn(&mut self, checks: &mut Checks, figures: &mut Figures) -> Result<()> {
        let watch = self.watch().await?;
        let (rate, seconds) = (self.args.rate, self.args.churn_seconds);
        let load = load_average();
        let times = latency::run(self, &watch, rate, seconds).await?;
        let title = format!("pod → row at {rate} pods/s for {seconds} s");
        figures.note("pods made and deleted meanwhile", times.pods.to_string());
        figures.note("achieved rate", format!("{:.1} pods/s", times.rate));
        figures.note("load average before and after", format!("{load} and {}", load_average()));
        for (from, list) in [("watch event", &times.from_event), ("API server's answer", &times.from_answer)]
        {
            let of = |percent| milliseconds(figures::percentile(list, percent));
            figures.note(&format!("{title}, from the {from}: p50"), format!("{:.1} ms", of(50)));
            let what = format!("{title}, from the {from}: p99");
            if from == "watch event" {
                figures.at_most(checks, &what, of(99), 20.0, "ms");
            } else {
                figures.note(&what, format!("{:.1} ms", of(99)));
            }
            figures.note(&format!("{title}, from the {from}: max"), format!("{:.1} ms", of(100)));
        }
        checks.check("each of these pods had its row, and none is left", told(times.complete));
        checks.check("none of them that a policy isolates was open", told_text(watch.never_open()));
        checks.check("NB holds what the objects say afterwards", self.is_right(&watch, self.limit()).await);
        self.done("pods that come and go");
        Ok(())
    }

    async fn idle(&mut self, checks: &mut Checks, figures: &mut Figures) -> Result<()> {
        self.controller.settled(self.limit()).await?;
        let window = Duration::from_secs(self.args.idle_seconds);
        let (begin, before) = (Instant::now(), self.controller.used()?);
        tokio::time::sleep(window).await;
        let used = self.controller.used()?.saturating_sub(before);
        let share = 100.0 * used.as_secs_f64() / begin.elapsed().as_secs_f64();
        figures.at_most(
            checks,
            &format!("idle CPU of the controller over {} s", window.as_secs()),
            share,
            1.0,
            "%",
        );
        self.done("idle");
        Ok(())
    }
}
