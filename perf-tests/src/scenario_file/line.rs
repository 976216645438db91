//! Command lines of scenarios: `scenario NAME|FILE` becomes the command that measures, with the file's settings as flags. Pure but for the reading.

use anyhow::{Context, Result, bail};
use toml::Value;

use super::{OWN, ScenarioFile};

/// The words of a command line after the program's name, with a scenario in place of its name. The words that follow the name are flags, and win over
/// the file's settings.
pub(crate) fn expanded(name: &str, rest: &[String]) -> Result<Vec<String>> {
    let file = ScenarioFile::named(name)?;
    let mut line = vec![file.run.word().to_owned()];
    for (key, value) in &file.settings {
        let flag = format!("--{key}");
        let is_given = |word: &String| *word == flag || word.starts_with(&format!("{flag}="));
        if rest.iter().any(is_given) {
            continue;
        }
        line.extend(words(&flag, value).with_context(|| format!("scenario {name}: settings.{key}"))?);
    }
    line.extend(["--scenario".to_owned(), name.to_owned()]);
    line.extend(rest.iter().cloned());
    Ok(line)
}

/// Names of the program's own scenarios with what they answer.
pub(crate) fn list() -> Result<String> {
    OWN.iter()
        .map(|(name, _)| Ok(format!("{name:<14} {}\n", ScenarioFile::named(name)?.description)))
        .collect()
}

/// A flag with its value.
fn words(flag: &str, value: &Value) -> Result<Vec<String>> {
    Ok(match value {
        Value::Boolean(true) => vec![flag.to_owned()],
        Value::Boolean(false) => Vec::new(),
        Value::Array(list) => {
            let list = list.iter().map(text).collect::<Result<Vec<_>>>()?;
            vec![flag.to_owned(), list.join(",")]
        }
        value => vec![flag.to_owned(), text(value)?],
    })
}

fn text(value: &Value) -> Result<String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Float(number) => Ok(number.to_string()),
        other => bail!("{}: must be a number, a string, true, false, or a list of these", other.type_str()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, rest: &[&str]) -> String {
        let rest: Vec<String> = rest.iter().map(|word| (*word).to_owned()).collect();
        expanded(name, &rest).unwrap().join(" ")
    }

    #[test]
    fn settings_become_flags_and_flags_that_are_given_win() {
        assert_eq!(line("services", &[]), "fastpath --only rounds --scenario services");
        assert_eq!(
            line("policy-scale", &["--policies=2,3", "--rounds", "9"]),
            "policy-scale --scenario policy-scale --policies=2,3 --rounds 9"
        );
        assert_eq!(line("policy-scale", &[]), "policy-scale --policies 100,1000 --scenario policy-scale");
        assert_eq!(list().unwrap().lines().count(), OWN.len());
    }

    #[test]
    fn a_file_of_ones_own_is_read_and_its_mistakes_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("own.toml");
        let name = file.to_str().unwrap();
        let write = |settings: &str| {
            let text = format!("description = \"x\"\nrun = \"failover\"\n[settings]\n{settings}\n");
            std::fs::write(&file, text).unwrap();
        };
        write("times = 9\ndatapath = \"ovs\"\ncheck = true");
        assert_eq!(
            line(name, &["--times", "2"]),
            format!("failover --check --datapath ovs --scenario {name} --times 2")
        );
        write("times = [[1]]");
        let error = format!("{:#}", expanded(name, &[]).unwrap_err());
        assert!(error.contains("settings.times") && error.contains("must be a number"), "{error}");
    }
}
