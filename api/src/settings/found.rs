//! Completes the command line from the other sources.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, Command};

use super::conversion::{self, Converted};
use super::words::{self, ENVIRONMENT, EXTERNAL_IDS, FILE, Meaning, Program};
use super::{Sources, file, read_external_ids, shown};

/// Flags whose values are not shown.
const SECRET: [&str; 1] = ["api-token"];

/// What the sources gave so far.
pub(super) struct Found {
    pub(super) program: Program,
    /// By flag: where its value comes from, if not from flag or environment of its own.
    pub(super) from: BTreeMap<&'static str, String>,
    /// What the operator should know.
    pub(super) warnings: Vec<String>,
    /// The command line, completed.
    pub(super) argv: Vec<OsString>,
}

impl Found {
    /// The subcommand.
    pub(super) fn subcommand(&self) -> &str {
        self.argv.get(1).and_then(|word| word.to_str()).unwrap_or_default()
    }

    /// The value of a flag on the command line.
    fn given(&self, flag: &str) -> Option<Option<&str>> {
        let mut words = self.argv.iter().filter_map(|word| word.to_str()).skip_while(|word| {
            word.strip_prefix("--")
                .is_none_or(|w| w != flag && w.split_once('=').is_none_or(|(n, _)| n != flag))
        });
        let word = words.next()?;
        Some(word.split_once('=').map(|(_, value)| value).or_else(|| words.next()))
    }

    /// The value of a setting of the program, from flag or environment.
    fn own(&self, arg: &Arg) -> Option<String> {
        let flag = arg.get_long()?;
        match self.given(flag) {
            Some(value) => Some(value.unwrap_or_default().to_owned()),
            None => std::env::var(arg.get_env()?).ok(),
        }
    }

    /// Adds what flags and environment do not give.
    pub(super) fn complete(&mut self, run: &Command, sources: &Sources) -> Result<(), String> {
        let arg = |flag: &str| run.get_arguments().find(|arg| arg.get_long() == Some(flag));
        for (names, meaning) in ENVIRONMENT {
            let set = |name: &&&str| sources.environment.get(**name).filter(|value| !value.trim().is_empty());
            if let Some(name) = names.iter().find(|name| set(name).is_some()) {
                let value = sources.environment.get(*name).map(|value| value.trim()).unwrap_or_default();
                self.add(&arg, meaning.of(self.program), value, format!("environment {name}"), false)?;
            }
        }
        let named = arg("config-file").and_then(|arg| self.own(arg));
        let file = named.as_deref().map_or(sources.file.as_path(), Path::new);
        for (section, key, value) in file::read(file, named.is_some())? {
            let place = format!("{} [{section}] {key}", file.display());
            match FILE.iter().find(|(s, k, _)| *s == section && *k == key) {
                Some((.., meaning)) => self.add(&arg, meaning.of(self.program), &value, place, true)?,
                None => self.warnings.push(format!("{place}: this key has no meaning here, and is ignored")),
            }
        }
        self.complete_from_ovs(run, sources)
    }

    fn complete_from_ovs(&mut self, run: &Command, sources: &Sources) -> Result<(), String> {
        let arg = |flag: &str| run.get_arguments().find(|arg| arg.get_long() == Some(flag));
        let open = |meaning: &words::Meanings| match meaning.of(self.program) {
            Meaning::Flag(flag) | Meaning::Converted(flag, _) => {
                arg(flag).is_some_and(|arg| self.own(arg).is_none() && !self.from.contains_key(flag))
            }
            _ => false,
        };
        if !EXTERNAL_IDS.iter().any(|(_, meaning)| open(meaning)) {
            return Ok(());
        }
        let named = arg("ovs-db").and_then(|arg| self.own(arg));
        let socket = match named.as_deref().map(|name| name.strip_prefix("unix:")) {
            Some(Some(path)) => PathBuf::from(path),
            Some(None) => return Ok(()),
            None => sources.ovs.clone(),
        };
        if !socket.exists() {
            return Ok(());
        }
        let ids = match read_external_ids(&socket) {
            Ok(ids) => ids,
            Err(error) => {
                self.warnings.push(format!("external_ids of Open_vSwitch ({}): {error}", socket.display()));
                return Ok(());
            }
        };
        for (key, meaning) in EXTERNAL_IDS {
            if let Some(value) = ids.get(*key).filter(|value| !value.is_empty()) {
                let place = format!("Open_vSwitch external_ids:{key}");
                self.add(&arg, meaning.of(self.program), value, place, false)?;
            }
        }
        Ok(())
    }

    /// Adds a value unless the setting has one already.
    fn add<'a>(
        &mut self,
        arg: &impl Fn(&str) -> Option<&'a Arg>,
        meaning: Meaning,
        value: &str,
        place: String,
        tell: bool,
    ) -> Result<(), String> {
        let (flag, converted) = match meaning {
            Meaning::Flag(flag) => (flag, Converted::Value(value.to_owned())),
            Meaning::Converted(flag, convert) => (flag, convert(value)),
            Meaning::Nothing(why) => {
                if tell {
                    self.warnings.push(format!("{place}: ignored: {why}"));
                }
                return Ok(());
            }
            Meaning::Refused(_) if conversion::is_off(value) => return Ok(()),
            Meaning::Refused(why) => return Err(format!("{place} = `{value}`: {why}")),
        };
        let Some(arg) = arg(flag) else { return Ok(()) };
        if self.from.contains_key(flag) || self.own(arg).is_some() {
            return Ok(());
        }
        match converted {
            Converted::Value(value) => {
                self.argv.push(format!("--{flag}={value}").into());
                self.from.insert(flag, place);
            }
            Converted::Skip(why) => self.warnings.push(format!("{place}: ignored: {why}")),
            Converted::Wrong(why) => return Err(format!("{place} = `{value}`: {why}")),
        }
        Ok(())
    }

    /// An error of clap, with the sources of the values that it names.
    pub(super) fn explain(&self, error: clap::Error) -> clap::Error {
        let text = error.to_string();
        let named =
            |flag: &str| text.contains(&format!("'--{flag} ")) || text.contains(&format!("'--{flag}'"));
        let places: Vec<String> = self
            .from
            .iter()
            .filter(|(flag, _)| named(flag))
            .map(|(flag, place)| format!("\n  --{flag} is from {place}"))
            .collect();
        if places.is_empty() {
            return error;
        }
        let text = text.strip_prefix("error: ").unwrap_or(&text);
        clap::Error::raw(error.kind(), format!("{text}{}\n", places.concat()))
    }

    /// The text of `--print-config`.
    pub(super) fn show(&self, command: &Command, matches: &ArgMatches) -> String {
        shown::text(command, matches, &self.from, &SECRET)
    }
}
