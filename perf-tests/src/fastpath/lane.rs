//! A path opened for a load: its ends run and are connected from the first slice to the last.

use std::time::Duration;

use anyhow::{Context, Result};

use super::cell::{End, Route, Settings};
use super::load::{Arrived, Command, Kind, Measured, Sent};
use super::place;
use super::plan::Load;
use super::samples::{Series, Slice};
use crate::names::Path;

/// First port of those on every CPU; two for each.
const PORT_ALL: u16 = 7500;
/// A short run of this part of a slice goes before one-way traffic, as a slice of transactions has its own.
const WARM_UP: u32 = 10;

/// An open path.
pub(super) struct Lane {
    pub(super) series: Series,
    pairs: Vec<Pair>,
}

impl Lane {
    /// Opens a path for a load; a `twin` is the second opening of the same.
    pub(super) fn open(load: Load, path: Path, twin: bool, route: &Route, cpu: usize) -> Result<Self> {
        let kind = load.kind();
        let nth = u16::from(twin);
        let places: Vec<(usize, u16)> = match load {
            Load::One(_) | Load::Ways(_) => vec![(cpu, kind.port() + path.port_offset() + nth)],
            Load::All(_) => {
                let cpus = std::thread::available_parallelism()?.get();
                (0..cpus).zip((PORT_ALL + nth..).step_by(2)).collect()
            }
        };
        let open = |(cpu, port)| {
            // Packets that interrupts have too many of are handled by it.
            let part_of_path =
                [place::processes(&format!("ksoftirqd/{cpu}")), route.part_of_path.clone()].concat();
            Pair::open(route, &Settings { kind, port, cpu, part_of_path, seconds: 0.0 })
        };
        let pairs = places.into_iter().map(open).collect::<Result<_>>();
        let pairs = pairs.with_context(|| format!("{} on path {}", load.label().0, path.label()))?;
        Ok(Self { series: Series { load, path, twin, slices: Vec::new() }, pairs })
    }

    /// Measures one slice on all pairs at once, and keeps it.
    pub(super) fn slice(&mut self, round: usize, length: Duration) -> Result<()> {
        let Series { load, path, .. } = self.series;
        let slice = self.measure(round, length);
        let slice = slice.with_context(|| format!("{} on path {}", load.label().0, path.label()))?;
        self.series.slices.push(slice);
        Ok(())
    }

    fn measure(&mut self, round: usize, length: Duration) -> Result<Slice> {
        if self.series.load.kind().is_one_way() {
            self.once(length / WARM_UP)?;
        }
        let measured = self.once(length)?;
        let per_second = measured.iter().map(|one| one.per_second).sum();
        let away = measured.iter().map(|one| one.away).fold(0.0, f64::max);
        let median_us = measured.first().filter(|_| measured.len() == 1).and_then(|one| one.median_us);
        Ok(Slice { round, per_second, median_us, away })
    }

    fn once(&mut self, length: Duration) -> Result<Vec<Measured>> {
        self.pairs.iter_mut().try_for_each(|pair| pair.go(length))?;
        self.pairs.iter_mut().map(Pair::finish).collect()
    }
}

/// The two ends on one CPU.
struct Pair {
    kind: Kind,
    server: End,
    driver: End,
}

impl Pair {
    fn open(route: &Route, settings: &Settings) -> Result<Self> {
        let server = End::serve(route, settings)?;
        Ok(Self { kind: settings.kind, server, driver: End::drive(route, settings)? })
    }

    fn go(&mut self, length: Duration) -> Result<()> {
        self.driver.tell(Command { length, peer: self.server.pid()? })
    }

    fn finish(&mut self) -> Result<Measured> {
        if !self.kind.is_one_way() {
            return self.driver.answer();
        }
        let sent: Sent = self.driver.answer()?;
        Ok(sent.with(self.server.answer::<Arrived>()?))
    }
}
