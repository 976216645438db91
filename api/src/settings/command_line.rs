//! Old flags on the command line become new ones.

use std::ffi::OsString;

use clap::Command;

use super::RUN;
use super::conversion::{self, Converted};
use super::words::{COMMANDS, Form, Meaning, Program, WORDS, Word};

/// The command line with our own words. Old ones are told in `warnings`.
///
/// # Errors
/// A word has no counterpart here, or a value cannot be converted.
pub(super) fn rewritten(
    program: Program,
    command: &Command,
    argv: Vec<OsString>,
    warnings: &mut Vec<String>,
) -> Result<Vec<OsString>, String> {
    let mut words = argv.into_iter();
    let mut out: Vec<OsString> = words.by_ref().take(1).collect();
    let mut words = words.peekable();
    subcommand(program, command, &mut words, &mut out, warnings)?;
    let own = out.get(1).and_then(|name| name.to_str()).and_then(|name| command.find_subcommand(name));
    let is_own =
        |name: &str| own.is_some_and(|own| own.get_arguments().any(|arg| arg.get_long() == Some(name)));
    while let Some(word) = words.next() {
        let Some(text) = word.to_str().filter(|text| text.starts_with('-') && text.len() > 2) else {
            out.push(word);
            continue;
        };
        let bare = text.trim_start_matches('-');
        let (name, value) = match bare.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (bare, None),
        };
        if is_own(name) {
            if !text.starts_with("--") {
                warnings.push(format!("-{name}: write --{name}"));
            }
            out.push(format!("--{bare}").into());
            continue;
        }
        if text.starts_with("-v") && bare.contains(':') {
            warnings.push(format!("{text}: ignored: levels of logs are --log-level"));
            continue;
        }
        let Some(old) = WORDS.iter().find(|word| word.name == name) else {
            out.push(word);
            continue;
        };
        let value = match old.form {
            Form::Value => Some(value.or_else(|| words.next()?.into_string().ok()).unwrap_or_default()),
            Form::Switch => Some(value.unwrap_or_else(|| "true".to_owned())),
            Form::Optional => value,
        };
        out.extend(translated(program, old, value, warnings)?);
    }
    Ok(out)
}

/// The flag in place of an old one.
fn translated(
    program: Program,
    old: &Word,
    value: Option<String>,
    warnings: &mut Vec<String>,
) -> Result<Option<OsString>, String> {
    let name = old.name;
    let (flag, converted) = match (old.meanings.of(program), value) {
        (Meaning::Nothing(why), _) => {
            warnings.push(format!("--{name}: ignored: {why}"));
            return Ok(None);
        }
        (Meaning::Refused(why), value) => {
            return match value.is_some_and(|value| conversion::is_off(&value)) {
                true => Ok(None),
                false => Err(format!("--{name}: {why}")),
            };
        }
        (_, None) => return Ok(None),
        (Meaning::Flag(flag), Some(value)) => (flag, Converted::Value(value)),
        (Meaning::Converted(flag, convert), Some(value)) => (flag, convert(&value)),
    };
    match converted {
        Converted::Value(value) => {
            warnings.push(format!("--{name} is an old flag: write --{flag}"));
            Ok(Some(format!("--{flag}={value}").into()))
        }
        Converted::Skip(why) => {
            warnings.push(format!("--{name}: ignored: {why}"));
            Ok(None)
        }
        Converted::Wrong(why) => Err(format!("--{name}: {why}")),
    }
}

/// The subcommand: that of the command line, `run` for an old one, or `run` where old flags stand without one.
fn subcommand(
    program: Program,
    command: &Command,
    words: &mut std::iter::Peekable<impl Iterator<Item = OsString> + Clone>,
    out: &mut Vec<OsString>,
    warnings: &mut Vec<String>,
) -> Result<(), String> {
    let first = words.peek().and_then(|word| word.to_str()).unwrap_or_default().to_owned();
    if command.find_subcommand(&first).is_some() {
        out.extend(words.next());
        return Ok(());
    }
    if let Some((_, of)) = COMMANDS.iter().find(|(name, _)| *name == first) {
        if *of != program {
            return Err(format!("{first}: this is done by `{} run`", executable(*of)));
        }
        words.next();
        warnings.push(format!("{first} is an old command: write {RUN}"));
        out.push(RUN.into());
        return Ok(());
    }
    let flags: Vec<String> = words
        .clone()
        .filter_map(|word| word.into_string().ok())
        .filter_map(|word| {
            Some(word.strip_prefix('-')?.trim_start_matches('-').split('=').next()?.to_owned())
        })
        .collect();
    let has = |name: &str| flags.iter().any(|flag| flag == name);
    let (here, there, other) = match program {
        Program::Controller => ("init-master", "init-node", Program::Agent),
        Program::Agent => ("init-node", "init-master", Program::Controller),
    };
    if has(there) && !has(here) {
        return Err(format!("--{there}: this is done by `{} run`", executable(other)));
    }
    if first.starts_with('-') && WORDS.iter().any(|word| has(word.name)) {
        warnings.push(format!("no command is given: write {RUN}"));
        out.push(RUN.into());
    }
    Ok(())
}

fn executable(program: Program) -> &'static str {
    match program {
        Program::Controller => "slipstream-controller",
        Program::Agent => "slipstream-node-agent",
    }
}
