//! `--print-config`: each setting, its value and where it comes from.

use std::collections::BTreeMap;
use std::fmt::Write;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

/// The settings of a command, one a line. Values of flags in `secret` are not shown; `from` has the sources that clap does not know.
pub(super) fn text(
    command: &Command,
    matches: &ArgMatches,
    from: &BTreeMap<&'static str, String>,
    secret: &[&str],
) -> String {
    let lines: Vec<[String; 3]> = command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set())
        .filter_map(|arg| line(arg, matches, from, secret))
        .collect();
    let width =
        |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default();
    let (names, values) = (width(0), width(1).min(60));
    let mut out = String::new();
    for [name, value, source] in &lines {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{name:names$}  {value:values$}  {source}");
    }
    out
}

fn line(
    arg: &Arg,
    matches: &ArgMatches,
    from: &BTreeMap<&'static str, String>,
    secret: &[&str],
) -> Option<[String; 3]> {
    let flag = arg.get_long().filter(|flag| !matches!(*flag, "help" | "version" | "print-config"))?;
    let id = arg.get_id().as_str();
    let raw = matches.try_get_raw(id).ok().flatten();
    let value = raw
        .map(|values| values.map(|value| value.to_string_lossy().into_owned()).collect::<Vec<_>>().join(","));
    let variable = || arg.get_env().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let source = match (from.get(flag), matches.value_source(id)) {
        (Some(place), _) => place.clone(),
        (None, Some(ValueSource::CommandLine)) => "command line".to_owned(),
        (None, Some(ValueSource::EnvVariable)) => format!("environment {}", variable()),
        (None, Some(_)) => "default".to_owned(),
        (None, None) => "not set".to_owned(),
    };
    let value = match value {
        Some(_) if secret.contains(&flag) => "(not shown)".to_owned(),
        Some(value) => value,
        None => "-".to_owned(),
    };
    Some([flag.to_owned(), value, source])
}
