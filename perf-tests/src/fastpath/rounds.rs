//! All paths, interleaved: in every round each kind of traffic runs once on every path that has it, one right after the
//! other, and each round begins with another path.

use std::io::Write;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::cell::{self, Route, Settings};
use super::load::Kind;

/// A way from one process to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Path {
    /// Pods of two nodes, eBPF.
    Fast,
    /// The same with programs that neither count nor compare.
    Uncounted,
    /// The same with OVS.
    Ovs,
    /// Pods of one node, eBPF.
    FastSame,
    /// The same with OVS.
    OvsSame,
    /// Processes of two nodes.
    Host,
    /// Pods of two nodes, redirected without encapsulation.
    Direct,
    /// Pods of two nodes, routed.
    Routed,
    /// Pods of two nodes, VXLAN.
    Vxlan,
    /// A bare veth pair.
    Veth,
}

impl Path {
    /// In tables.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Fast => "fast, across nodes",
            Self::Uncounted => "fast, across nodes, no counters",
            Self::Ovs => "OVS, across nodes",
            Self::FastSame => "fast, same node",
            Self::OvsSame => "OVS, same node",
            Self::Host => "host",
            Self::Direct => "direct",
            Self::Routed => "routed",
            Self::Vxlan => "VXLAN",
            Self::Veth => "veth",
        }
    }
}

/// What a column of the raw figures is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Load {
    /// One pair of ends on the one CPU.
    One(Kind),
    /// A pair on every CPU.
    All(Kind),
}

impl Load {
    /// In tables, with the unit, and by what to divide.
    pub(super) fn label(self) -> (&'static str, f64) {
        match self {
            Self::One(Kind::TcpRr) => ("TCP_RR/s", 1.0),
            Self::One(Kind::UdpRr) => ("UDP_RR/s", 1.0),
            Self::One(Kind::UdpPps) => ("UDP 18 B, kpps", 1e3),
            Self::One(Kind::TcpStream) => ("TCP stream, Gbit/s", 1e9),
            Self::One(Kind::Crr) => ("connections/s", 1.0),
            Self::All(Kind::Crr) => ("connections/s, all CPUs", 1.0),
            Self::One(Kind::Paced) | Self::All(_) => ("per second", 1.0),
        }
    }
}

/// Which loads run on which paths: those that a goal needs, and some to know more.
pub(super) const PLAN: &[(Load, &[Path])] = {
    use Path::*;
    &[
        (
            Load::One(Kind::TcpRr),
            &[Fast, Direct, Host, Routed, Vxlan, Uncounted, FastSame, Veth, Ovs, OvsSame],
        ),
        (
            Load::One(Kind::UdpRr),
            &[Fast, Direct, Host, Routed, Vxlan, Uncounted, FastSame, Veth, Ovs, OvsSame],
        ),
        (Load::One(Kind::UdpPps), &[Fast, Vxlan, Direct, Ovs]),
        (Load::One(Kind::TcpStream), &[Fast, Host, Vxlan, Ovs]),
        (Load::One(Kind::Crr), &[Fast, Ovs, Vxlan]),
        (Load::All(Kind::Crr), &[Fast, Uncounted]),
    ]
};

/// One measurement.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Sample {
    pub(super) round: usize,
    pub(super) path: Path,
    pub(super) load: Load,
    pub(super) per_second: f64,
    pub(super) median_us: Option<f64>,
}

/// What was measured.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Samples(pub(super) Vec<Sample>);

impl Samples {
    /// Ratios of two paths, one for each round in which both were measured.
    pub(super) fn ratios(&self, load: Load, path: Path, against: Path) -> Vec<f64> {
        let of = |path| self.0.iter().filter(move |s| s.load == load && s.path == path);
        of(path)
            .filter_map(|s| of(against).find(|o| o.round == s.round).map(|o| s.per_second / o.per_second))
            .filter(|ratio| ratio.is_finite())
            .collect()
    }

    /// Rates of one path.
    pub(super) fn rates(&self, load: Load, path: Path) -> Vec<f64> {
        self.0.iter().filter(|s| s.load == load && s.path == path).map(|s| s.per_second).collect()
    }

    /// Times of a transaction on one path, in microseconds.
    pub(super) fn times(&self, load: Load, path: Path) -> Vec<f64> {
        self.0.iter().filter(|s| s.load == load && s.path == path).filter_map(|s| s.median_us).collect()
    }
}

/// A rate, with decimals where they say something.
pub(super) fn shown(rate: f64) -> String {
    if rate < 100.0 { format!("{rate:.2}") } else { format!("{rate:.0}") }
}

/// Measures all that there are routes for.
pub(super) fn run(routes: &[(Path, Route)], rounds: usize, settings: Settings) -> Result<Samples> {
    let mut samples = Samples::default();
    let mut err = std::io::stderr().lock();
    for round in 0..rounds {
        for (load, paths) in PLAN {
            let (label, unit) = load.label();
            write!(err, "round {}/{rounds} {label}:", round + 1)?;
            let there: Vec<_> =
                paths.iter().filter_map(|path| routes.iter().find(|route| route.0 == *path)).collect();
            let first = round % there.len().max(1);
            for (path, route) in there.iter().cycle().skip(first).take(there.len()) {
                let measured = match load {
                    Load::One(kind) => cell::measure(*kind, route, settings),
                    Load::All(kind) => cell::measure_on_all(*kind, route, settings),
                };
                let measured = measured.with_context(|| format!("{label} on path {}", path.label()))?;
                write!(err, " {} {};", path.label(), shown(measured.per_second / unit))?;
                samples.0.push(Sample {
                    round,
                    path: *path,
                    load: *load,
                    per_second: measured.per_second,
                    median_us: measured.median_us,
                });
            }
            writeln!(err)?;
        }
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(round: usize, path: Path, per_second: f64) -> Sample {
        Sample { round, path, load: Load::One(Kind::TcpRr), per_second, median_us: None }
    }

    #[test]
    fn ratios_pair_what_was_measured_in_the_same_round() {
        let samples = Samples(vec![
            sample(0, Path::Fast, 90.0),
            sample(0, Path::Direct, 100.0),
            sample(1, Path::Direct, 200.0),
            sample(1, Path::Fast, 200.0),
            sample(2, Path::Fast, 1.0),
        ]);
        assert_eq!(samples.ratios(Load::One(Kind::TcpRr), Path::Fast, Path::Direct), [0.9, 1.0]);
        assert!(samples.ratios(Load::One(Kind::UdpRr), Path::Fast, Path::Direct).is_empty());
    }

    #[test]
    fn a_path_that_carries_nothing_gives_no_ratio() {
        let samples = Samples(vec![sample(0, Path::Fast, 90.0), sample(0, Path::Direct, 0.0)]);
        assert!(samples.ratios(Load::One(Kind::TcpRr), Path::Fast, Path::Direct).is_empty());
    }
}
