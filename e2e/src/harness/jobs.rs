//! What a stage is asked to do: one trial after another.

use std::sync::mpsc::{Receiver, Sender};

use crate::harness::Checks;
use anyhow::Result;

/// A trial by its index, and where its outcome goes.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) index: usize,
    pub(super) reply: Sender<Done>,
}

/// What a stage gets from the harness.
#[derive(Debug)]
pub(super) struct Orders {
    pub(super) receiver: Receiver<Order>,
    pub(super) selected: Vec<usize>,
}

/// How a trial went.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) checks: Checks,
    pub(super) outcome: Result<()>,
}

/// The trials of a group, as they are asked for.
#[derive(Debug)]
pub struct Jobs<C> {
    cases: Vec<C>,
    orders: Orders,
    good: bool,
}

impl<C: Clone> Jobs<C> {
    pub(super) fn new(cases: Vec<C>, orders: Orders) -> Self {
        Self { cases, orders, good: true }
    }

    /// Waits for the next trial; none if all are done.
    #[expect(clippy::should_implement_trait, reason = "a job borrows the jobs")]
    pub fn next(&mut self) -> Option<Job<'_, C>> {
        let order = self.orders.receiver.recv().ok()?;
        let case = self.cases.get(order.index)?.clone();
        Some(Job { case, checks: Checks::default(), reply: order.reply, good: &mut self.good })
    }

    /// Takes all trials, one after another.
    pub fn each(&mut self, mut play: impl FnMut(&C, &mut Checks) -> Result<()>) {
        while let Some(mut job) = self.next() {
            let outcome = play(&job.case, &mut job.checks);
            job.done(outcome);
        }
    }

    /// The trials that will be asked for.
    pub fn selected(&self) -> impl Iterator<Item = &C> {
        self.orders.selected.iter().filter_map(|index| self.cases.get(*index))
    }

    /// Whether every trial so far went well.
    #[must_use]
    pub fn are_good(&self) -> bool {
        self.good
    }
}

/// One trial under way.
#[derive(Debug)]
pub struct Job<'a, C> {
    /// What the suite knows it by.
    pub case: C,
    /// The checks of the trial. A failed check fails the trial, which continues.
    pub checks: Checks,
    reply: Sender<Done>,
    good: &'a mut bool,
}

impl<C> Job<'_, C> {
    /// Ends the trial. An error fails it, as does a failed check.
    pub fn done(self, outcome: Result<()>) {
        *self.good &= outcome.is_ok() && self.checks.failures() == 0;
        // The receiver is gone if the trial exceeded its limit.
        let _ = self.reply.send(Done { checks: self.checks, outcome });
    }
}
