//! Scenario files: which measurement runs, with which settings, and the goals that it is held to. Those of the program are in `perf-tests/scenarios`.
//! Pure but for the reading; [`line`] makes a command line of one.

mod line;

use std::path::Path as FilePath;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use traffic::statistics::Goal;

use crate::names::{LoadName, Part, Path};
use crate::record::{self, Figure, Series};

pub(crate) use line::{expanded, list};

/// Scenarios that come with the program, by name.
const OWN: [(&str, &str); 11] = [
    ("fastpath", include_str!("../../scenarios/fastpath.toml")),
    ("services", include_str!("../../scenarios/services.toml")),
    ("telemetry-tax", include_str!("../../scenarios/telemetry-tax.toml")),
    ("policy-scale", include_str!("../../scenarios/policy-scale.toml")),
    ("service-scale", include_str!("../../scenarios/service-scale.toml")),
    ("churn", include_str!("../../scenarios/churn.toml")),
    ("failover", include_str!("../../scenarios/failover.toml")),
    ("cni", include_str!("../../scenarios/cni.toml")),
    ("rows", include_str!("../../scenarios/rows.toml")),
    ("scale", include_str!("../../scenarios/scale.toml")),
    ("ingest", include_str!("../../scenarios/ingest.toml")),
];

/// A command of `cargo xtask bench` that measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Run {
    Fastpath,
    PolicyScale,
    ServiceScale,
    Churn,
    Failover,
    Cni,
    Rows,
    Scale,
    Ingest,
}

impl Run {
    /// The word that the command line has for it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Fastpath => "fastpath",
            Self::PolicyScale => "policy-scale",
            Self::ServiceScale => "service-scale",
            Self::Churn => "churn",
            Self::Failover => "failover",
            Self::Cni => "cni",
            Self::Rows => "rows",
            Self::Scale => "scale",
            Self::Ingest => "ingest",
        }
    }
}

/// A scenario as it stands in a file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScenarioFile {
    /// What it answers, in a sentence.
    description: String,
    run: Run,
    /// Flags of the command, without their dashes.
    #[serde(default)]
    settings: toml::Table,
    /// Loads with paths that are measured beside those that goals need. `fastpath` alone.
    #[serde(default)]
    pub(crate) loads: Vec<LoadOn>,
    #[serde(default)]
    pub(crate) ratios: Vec<Ratio>,
    #[serde(default)]
    pub(crate) figures: Vec<FigureGoal>,
    #[serde(default)]
    series: Vec<SeriesGoal>,
    #[serde(default)]
    pub(crate) stalls: Vec<Stall>,
}

/// A load and the paths that it is measured on.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LoadOn {
    pub(crate) load: LoadName,
    pub(crate) paths: Vec<Path>,
}

/// A goal for one path against another, under a load.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Ratio {
    /// What the table calls it. Words in braces stand for settings of the run.
    pub(crate) what: String,
    pub(crate) load: LoadName,
    pub(crate) path: Path,
    pub(crate) against: Path,
    pub(crate) at_least: f64,
    #[serde(default)]
    pub(crate) note: String,
}

/// A goal for a figure that is no ratio of slices. `fastpath` alone.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct FigureGoal {
    /// What the table calls it.
    pub(crate) row: String,
    /// What the table holds it against.
    #[serde(default)]
    pub(crate) against: String,
    at_least: Option<f64>,
    at_most: Option<f64>,
}

/// A goal for a series of samples.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct SeriesGoal {
    /// The name of the series. Words in braces stand for settings of the run.
    name: String,
    median_below: Option<f64>,
    max_below: Option<f64>,
}

/// How long a running flow may stand still. `failover` alone.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Stall {
    /// When one of these is killed.
    pub(crate) killed: Vec<Part>,
    /// Milliseconds, of the median of the longest stalls.
    pub(crate) below_ms: u64,
}

impl FigureGoal {
    pub(crate) fn goal(&self) -> Result<Goal> {
        match (self.at_least, self.at_most) {
            (Some(bound), None) => Ok(Goal::AtLeast(bound)),
            (None, Some(bound)) => Ok(Goal::AtMost(bound)),
            _ => bail!("figures: {:?}: must have one of at-least and at-most", self.row),
        }
    }
}

impl SeriesGoal {
    fn goal(&self) -> Result<record::Goal> {
        match (self.median_below, self.max_below) {
            (Some(below), None) => Ok(record::Goal { figure: Figure::Median, below }),
            (None, Some(below)) => Ok(record::Goal { figure: Figure::Max, below }),
            _ => bail!("series: {:?}: must have one of median-below and max-below", self.name),
        }
    }
}

/// Words in braces and what they stand for.
pub(crate) type Words<'a> = &'a [(&'a str, String)];

/// A text with settings of the run in place of words in braces.
pub(crate) fn filled(text: &str, words: Words<'_>) -> String {
    words.iter().fold(text.to_owned(), |text, (word, value)| text.replace(&format!("{{{word}}}"), value))
}

impl ScenarioFile {
    /// A scenario of the program's own, or that of a file, for the command `run`.
    pub(crate) fn of(name: &str, run: Run) -> Result<Self> {
        let file = Self::named(name)?;
        ensure!(
            file.run == run,
            "scenario {name} is one of `{}`, not of `{}`: cargo xtask bench scenario {name}",
            file.run.word(),
            run.word()
        );
        Ok(file)
    }

    fn named(name: &str) -> Result<Self> {
        let text = match OWN.iter().find(|(own, _)| *own == name) {
            Some((_, text)) => (*text).to_owned(),
            None => std::fs::read_to_string(FilePath::new(name)).with_context(|| {
                let known = OWN.map(|(name, _)| name).join(", ");
                format!("scenario {name}: neither a file nor one of {known}")
            })?,
        };
        Self::parse(&text).with_context(|| format!("scenario {name}"))
    }

    fn parse(text: &str) -> Result<Self> {
        let file: Self = toml::from_str(text)?;
        file.figures.iter().try_for_each(|figure| figure.goal().map(drop))?;
        file.series.iter().try_for_each(|series| series.goal().map(drop))?;
        let (fast, failover) = (file.run == Run::Fastpath, file.run == Run::Failover);
        let pods = matches!(file.run, Run::Cni | Run::Rows | Run::Scale | Run::Ingest);
        for (field, is_there, has) in [
            ("loads", !file.loads.is_empty(), fast),
            ("ratios", !file.ratios.is_empty(), !failover && !pods),
            ("figures", !file.figures.is_empty(), fast),
            ("series", !file.series.is_empty(), pods),
            ("stalls", !file.stalls.is_empty(), failover),
        ] {
            ensure!(!is_there || has, "{field}: `{}` measures nothing of that kind", file.run.word());
        }
        Ok(file)
    }

    /// Fails on a goal for a path that the command does not measure.
    pub(crate) fn check_paths(&self, paths: &[Path], loads: &[LoadName]) -> Result<()> {
        for (number, Ratio { load, path, against, .. }) in self.ratios.iter().enumerate() {
            for (field, name) in [("path", path), ("against", against)] {
                ensure!(
                    paths.contains(name),
                    "ratios[{number}].{field}: {}: must be one of {}",
                    word(name),
                    paths.iter().map(word).collect::<Vec<_>>().join(", ")
                );
            }
            ensure!(
                loads.contains(load),
                "ratios[{number}].load: {}: must be one of {}",
                word(load),
                loads.iter().map(word).collect::<Vec<_>>().join(", ")
            );
        }
        Ok(())
    }

    /// Sets the goals of series. One that is not there has no samples, and misses its goal.
    pub(crate) fn hold(&self, all: &mut Vec<Series>, words: Words<'_>) -> Result<()> {
        for goal in &self.series {
            let name = filled(&goal.name, words);
            let bound = Some(goal.goal()?);
            match all.iter_mut().find(|series| series.name == name) {
                Some(series) => series.goal = bound,
                None => all.push(Series { goal: bound, ..Series::new(name, "-") }),
            }
        }
        Ok(())
    }
}

/// A name as files have it.
fn word<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scenario_of_the_program_can_be_read_and_has_a_goal() {
        for (name, _) in OWN {
            let file = ScenarioFile::named(name).unwrap_or_else(|error| panic!("{name}: {error:#}"));
            assert!(file.description.len() > 20, "{name}");
            let goals = file.ratios.len() + file.figures.len() + file.series.len() + file.stalls.len();
            assert!(goals > 0, "{name} has no goal");
        }
    }

    #[test]
    fn a_mistake_names_its_field() {
        let error = |text: &str| {
            let text = format!("description = \"x\"\n{text}");
            format!("{:#}", ScenarioFile::parse(&text).unwrap_err())
        };
        assert!(error("run = \"fast\"").contains("unknown variant `fast`"));
        assert!(error("run = \"cni\"\ngoals = []").contains("unknown field `goals`"));
        let ratio = "run = \"churn\"\n[[ratios]]\nwhat = \"x\"\nload = \"tcp-rr\"\npath = \"fsat\"\nagainst = \"fast\"\nat-least = 1";
        assert!(error(ratio).contains("unknown variant `fsat`"));
        let both = "run = \"cni\"\n[[series]]\nname = \"x\"\nmedian-below = 1\nmax-below = 2";
        assert!(error(both).contains("one of median-below and max-below"));
        assert!(
            error("run = \"fastpath\"\n[[figures]]\nrow = \"x\"").contains("one of at-least and at-most")
        );
        let other = "run = \"failover\"\n[[series]]\nname = \"x\"\nmax-below = 2";
        assert!(error(other).contains("series: `failover` measures nothing of that kind"));
        let missing = ScenarioFile::named("nowhere.toml").unwrap_err();
        assert!(
            format!("{missing:#}").contains("neither a file nor one of fastpath, services"),
            "{missing:#}"
        );
        let other = ScenarioFile::of("services", Run::Churn).unwrap_err().to_string();
        assert!(other.contains("is one of `fastpath`, not of `churn`"), "{other}");
    }

    #[test]
    fn a_path_that_is_not_measured_is_named() {
        let file = ScenarioFile::named("policy-scale").unwrap();
        let loads = [LoadName::TcpRr, LoadName::UdpRr, LoadName::Crr];
        assert!(file.check_paths(&[Path::Fast, Path::SomePolicies, Path::ManyPolicies], &loads).is_ok());
        let error = file.check_paths(&[Path::Fast, Path::Veth], &loads).unwrap_err().to_string();
        assert!(error.contains("ratios[0].path: some-policies: must be one of fast, veth"), "{error}");
    }

    #[test]
    fn goals_of_series_are_set_and_a_missing_series_misses() {
        let text = "description = \"x\"\nrun = \"cni\"\n[[series]]\nname = \"{burst} at once\"\nmax-below = 9\n[[series]]\nname = \"other\"\nmedian-below = 1";
        let file = ScenarioFile::parse(text).unwrap();
        let mut all = vec![Series { samples: vec![5.0], ..Series::new("30 at once", "ms") }];
        file.hold(&mut all, &[("burst", "30".to_owned())]).unwrap();
        assert_eq!(all.iter().map(Series::met).collect::<Vec<_>>(), [Some(true), Some(false)]);
        assert_eq!(all[1].name, "other");
    }
}
