//! What is measured on what: the paths, the loads, and which load runs on which path.

use serde::{Deserialize, Serialize};

use super::load::Kind;
use crate::names::{LoadName, Path};
use crate::scenario_file::ScenarioFile;

/// A kind of traffic, and how much of it at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Load {
    /// One pair of ends on the one CPU.
    One(Kind),
    /// A pair on every CPU.
    All(Kind),
    /// One pair of ends as in `One`, on the paths of services, of the outside and of nodes: fewer paths at once keep their rounds short.
    Ways(Kind),
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
            Self::Ways(Kind::TcpRr) => ("TCP_RR/s, other ways", 1.0),
            Self::Ways(Kind::UdpRr) => ("UDP_RR/s, other ways", 1.0),
            Self::Ways(Kind::UdpPps) => ("UDP 18 B, kpps, other ways", 1e3),
            Self::Ways(Kind::TcpStream) => ("TCP stream, Gbit/s, other ways", 1e9),
            Self::One(Kind::Paced) | Self::All(_) | Self::Ways(_) => ("per second", 1.0),
        }
    }

    /// Kind of the traffic.
    pub(super) fn kind(self) -> Kind {
        match self {
            Self::One(kind) | Self::All(kind) | Self::Ways(kind) => kind,
        }
    }
}

impl LoadName {
    pub(super) fn load(self) -> Load {
        match self {
            Self::TcpRr => Load::One(Kind::TcpRr),
            Self::UdpRr => Load::One(Kind::UdpRr),
            Self::UdpPps => Load::One(Kind::UdpPps),
            Self::TcpStream => Load::One(Kind::TcpStream),
            Self::Crr => Load::One(Kind::Crr),
            Self::CrrAll => Load::All(Kind::Crr),
            Self::WaysTcpRr => Load::Ways(Kind::TcpRr),
            Self::WaysUdpRr => Load::Ways(Kind::UdpRr),
            Self::WaysUdpPps => Load::Ways(Kind::UdpPps),
            Self::WaysTcpStream => Load::Ways(Kind::TcpStream),
        }
    }
}

/// Which loads run on which paths: those that the scenario's goals need, and those that it names. Paths that are asked for by name take every load that
/// is, also those that no goal needs.
pub(super) fn wanted(file: &ScenarioFile, paths: &[Path], loads: &[LoadName]) -> Vec<(Load, Vec<Path>)> {
    let mut plan: Vec<(LoadName, Vec<Path>)> = Vec::new();
    let mut add = |load: LoadName, path: Path| match plan.iter_mut().find(|(known, _)| *known == load) {
        Some((_, paths)) if paths.contains(&path) => {}
        Some((_, paths)) => paths.push(path),
        None => plan.push((load, vec![path])),
    };
    for one in &file.loads {
        one.paths.iter().for_each(|path| add(one.load, *path));
    }
    for ratio in &file.ratios {
        add(ratio.load, ratio.against);
        add(ratio.load, ratio.path);
    }
    plan.into_iter()
        .filter(|(load, _)| loads.is_empty() || loads.contains(load))
        .map(|(load, planned)| (load.load(), if paths.is_empty() { planned } else { paths.to_vec() }))
        .collect()
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;
    use crate::scenario_file::{Run, ScenarioFile};

    fn file(name: &str) -> ScenarioFile {
        ScenarioFile::of(name, Run::Fastpath).unwrap()
    }

    #[test]
    fn without_names_all_of_the_scenario_is_wanted() {
        let all = wanted(&file("fastpath"), &[], &[]);
        assert_eq!(all.len(), LoadName::value_variants().len(), "{all:?}");
        assert_eq!(all[0].1.len(), 10);
        let tax = wanted(&file("telemetry-tax"), &[], &[]);
        assert_eq!(tax.len(), 3);
        assert!(tax.iter().all(|(_, paths)| *paths == [Path::Uncounted, Path::Fast]), "{tax:?}");
    }

    #[test]
    fn named_paths_take_named_loads() {
        let some = wanted(&file("fastpath"), &[Path::Veth, Path::Host], &[LoadName::TcpRr, LoadName::CrrAll]);
        let (rr, all) = (Load::One(Kind::TcpRr), Load::All(Kind::Crr));
        let paths = vec![Path::Veth, Path::Host];
        assert_eq!(some, [(rr, paths.clone()), (all, paths)]);
    }
}
