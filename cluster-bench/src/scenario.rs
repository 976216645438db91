//! Scenarios: what a run measures and what it is held to, in a file. Flags of the command line win over the file. Pure but for the reading.

use std::path::Path as FilePath;

use anyhow::{Context, Result, anyhow, bail};
use clap::ValueEnum;
use serde::Deserialize;
use traffic::{GoalOf, Test};

use crate::options::{Family, RunArgs};
use crate::paths::Path;

/// What is measured if neither a flag nor a scenario says so.
pub(crate) const TESTS: [Test; 5] = [Test::TcpRr, Test::UdpRr, Test::TcpStream, Test::UdpRate, Test::TcpCrr];

/// Scenarios that come with the program, by name.
const OWN: [(&str, &str); 4] = [
    ("services", include_str!("../scenarios/services.toml")),
    ("connections", include_str!("../scenarios/connections.toml")),
    ("throughput", include_str!("../scenarios/throughput.toml")),
    ("latency", include_str!("../scenarios/latency.toml")),
];

/// A scenario as it stands in a file.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Scenario {
    /// What it answers, in a sentence.
    description: String,
    #[serde(default)]
    paths: Vec<String>,
    #[serde(default)]
    tests: Vec<String>,
    family: Option<String>,
    rounds: Option<u32>,
    passes: Option<u32>,
    slice_ms: Option<u64>,
    #[serde(default)]
    goals: Vec<String>,
}

/// The arguments of a run with those of its scenario, and with what is measured by default.
///
/// # Errors
/// The scenario does not exist or cannot be read; the error names the field.
pub(crate) fn applied(mut args: RunArgs) -> Result<RunArgs> {
    if let Some(name) = args.scenario.clone() {
        let text = text(&name)?;
        Scenario::parse(&text)
            .and_then(|scenario| scenario.fill(&mut args))
            .with_context(|| format!("scenario {name}"))?;
    }
    if args.tests.is_empty() {
        args.tests = TESTS.to_vec();
    }
    Ok(args)
}

/// Names of the program's own scenarios with what they answer.
pub(crate) fn list() -> String {
    let line = |(name, text): &(&str, &str)| {
        let description = Scenario::parse(text).map(|scenario| scenario.description).unwrap_or_default();
        format!("{name:<12} {description}\n")
    };
    OWN.iter().map(line).collect()
}

/// A scenario of the program's own, or that of a file.
fn text(name: &str) -> Result<String> {
    if let Some((_, text)) = OWN.iter().find(|(own, _)| *own == name) {
        return Ok((*text).to_owned());
    }
    let known = || OWN.map(|(name, _)| name).join(", ");
    let path = FilePath::new(name);
    std::fs::read_to_string(path)
        .with_context(|| format!("--scenario {name}: neither a file nor one of {}", known()))
}

impl Scenario {
    fn parse(text: &str) -> Result<Self> {
        Ok(toml::from_str(text)?)
    }

    /// Puts into the arguments what they do not say.
    fn fill(self, args: &mut RunArgs) -> Result<()> {
        if args.paths.is_empty() {
            args.paths = values::<Path>("paths", &self.paths)?;
        }
        if args.tests.is_empty() {
            args.tests = values::<Test>("tests", &self.tests)?;
        }
        if args.family.is_none() {
            args.family = values::<Family>("family", self.family.as_slice())?.pop();
        }
        if args.goal.is_empty() {
            let read = |(number, goal): (usize, &String)| {
                goal.parse::<GoalOf>().map_err(|error| anyhow!("goals[{number}]: {error:#}"))
            };
            args.goal = self.goals.iter().enumerate().map(read).collect::<Result<_>>()?;
        }
        let range = |field: &str, value: Option<u64>, most: u64, least: u64| match value {
            Some(value) if !(least..=most).contains(&value) => {
                bail!("{field}: {value}: must be from {least} to {most}")
            }
            _ => Ok(()),
        };
        range("rounds", self.rounds.map(u64::from), 10_000, 1)?;
        range("passes", self.passes.map(u64::from), 20, 1)?;
        range("slice-ms", self.slice_ms, 5_000, 5)?;
        // A quick run is short whatever the scenario says.
        if !args.quick {
            args.rounds = args.rounds.or(self.rounds);
            args.passes = args.passes.or(self.passes);
            args.slice_ms = args.slice_ms.or(self.slice_ms);
        }
        Ok(())
    }
}

/// Words of a field as the command line would read them.
fn values<T: ValueEnum>(field: &str, words: &[String]) -> Result<Vec<T>> {
    let read = |(number, word): (usize, &String)| {
        T::from_str(word, false).ok().with_context(|| {
            let known: Vec<_> = T::value_variants()
                .iter()
                .filter_map(|value| value.to_possible_value().map(|value| value.get_name().to_owned()))
                .collect();
            format!("{field}[{number}]: {word:?}: must be one of {}", known.join(", "))
        })
    };
    words.iter().enumerate().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::tests::parsed;
    use crate::run::check;

    fn filled(line: &str, text: &str) -> Result<RunArgs> {
        let mut args = parsed(line);
        Scenario::parse(text)?.fill(&mut args)?;
        Ok(args)
    }

    #[test]
    fn each_scenario_of_the_program_can_be_run() {
        for (name, _) in OWN {
            let args = applied(parsed(&format!("--scenario {name}"))).unwrap();
            check(&args).unwrap_or_else(|error| panic!("{name}: {error:#}"));
            assert!(!args.tests.is_empty() && !args.paths.is_empty(), "{name}");
            assert!(list().contains(name));
        }
        assert!(list().lines().all(|line| line.len() > 20), "{}", list());
    }

    #[test]
    fn flags_win_over_the_file() {
        let text = "description = \"x\"\npaths = [\"pod-ip\"]\ntests = [\"udp-rr\"]\nrounds = 90\npasses = 5\nfamily = \"ipv6\"";
        let args = filled("--tests tcp-rr --rounds 7", text).unwrap();
        assert_eq!((args.paths, args.tests), (vec![Path::PodIp], vec![Test::TcpRr]));
        assert_eq!((args.rounds, args.passes, args.family), (Some(7), Some(5), Some(Family::Ipv6)));
        let quick = filled("--quick", text).unwrap();
        assert_eq!((quick.rounds, quick.passes), (None, None));
        assert_eq!(applied(parsed("")).unwrap().tests, TESTS);
    }

    #[test]
    fn a_mistake_names_its_field() {
        let error =
            |text: &str| format!("{:#}", filled("", &format!("description = \"x\"\n{text}")).unwrap_err());
        assert!(error("paths = [\"pod-ip\", \"pod\"]").contains("paths[1]: \"pod\": must be one of pod-ip"));
        assert!(error("tests = [\"x\"]").contains("tests[0]"));
        assert!(error("goals = [\"x\"]").contains("goals[0]"));
        assert!(error("passes = 50").contains("passes: 50: must be from 1 to 20"));
        assert!(error("path = [\"pod-ip\"]").contains("unknown field `path`"));
        assert!(error("rounds = \"many\"").contains("rounds"));
        let missing = applied(parsed("--scenario nowhere.toml")).unwrap_err();
        assert!(format!("{missing:#}").contains("neither a file nor one of services"), "{missing:#}");
    }
}
