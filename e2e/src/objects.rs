//! The objects of a suite in a namespace of their own, and how they and the cluster are looked at.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use testbed::cluster::Bed;
use testbed::exec;

use crate::snapshot::Snapshot;

/// A cluster with a namespace for the pods of a suite.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Objects<'a> {
    pub(crate) bed: &'a Bed,
    pub(crate) namespace: &'static str,
    /// How long the cluster may take to recover.
    pub(crate) heal: Duration,
    /// How long an error may take to be logged.
    pub(crate) soon: Duration,
}

impl Objects<'_> {
    /// Makes the namespace.
    pub(crate) fn make_namespace(&self) -> Result<()> {
        self.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}))
    }

    /// Creates or changes an object.
    pub(crate) fn apply(&self, object: impl fmt::Display) -> Result<()> {
        self.bed.apply(&object.to_string()).map(drop)
    }

    /// Deletes pods and waits until they are gone from the API.
    pub(crate) fn delete(&self, names: &[&str]) -> Result<()> {
        self.bed.delete_all::<Pod>(self.namespace, names, self.heal)
    }

    /// A field of an object in the namespace, or of a node, by JSON path.
    pub(crate) fn field(&self, object: &str, path: &str) -> Result<String> {
        self.bed.field(object, self.namespace, path)
    }

    /// The log of a process from here on.
    pub(crate) fn log(&self, host: &str, process: &str) -> Log {
        let path = self.bed.config().log(host, process);
        let from = fs::read(&path).map_or(0, |text| text.len());
        Log { path, from, soon: self.soon }
    }

    /// The state of everything that pods leave marks in.
    pub(crate) fn snapshot(&self) -> Result<Snapshot> {
        Snapshot::take(self.bed)
    }

    /// The state once it does not change any more.
    pub(crate) fn quiet(&self) -> Result<Snapshot> {
        exec::retry(self.heal, "the cluster comes to rest", || {
            let first = self.snapshot()?;
            thread::sleep(Duration::from_secs(1));
            let second = self.snapshot()?;
            first.equals(&second)?;
            Ok(second)
        })
    }

    /// Tries until it holds; says how long that took.
    pub(crate) fn within(
        &self,
        limit: Duration,
        what: &str,
        mut check: impl FnMut() -> Result<()>,
    ) -> Result<String> {
        let begin = Instant::now();
        let pause = Duration::from_millis(150);
        exec::retry(limit, what, || check().inspect_err(|_| thread::sleep(pause)))?;
        Ok(format!("after {:.1} s", begin.elapsed().as_secs_f64()))
    }
}

/// A log from some moment on.
#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
    from: usize,
    soon: Duration,
}

impl Log {
    /// A log in which something may be said this late.
    pub(crate) fn within(self, soon: Duration) -> Self {
        Self { soon, ..self }
    }

    /// Waits for a line with all of these; returns it shortened and without colours.
    pub(crate) fn tells(&self, words: &[&dyn fmt::Display]) -> Result<String> {
        let words: Vec<String> = words.iter().map(ToString::to_string).collect();
        exec::retry(self.soon, &format!("{} says it", self.path.display()), || {
            let text = fs::read(&self.path)?;
            let text = plain(&String::from_utf8_lossy(text.get(self.from..).unwrap_or_default()));
            let line = text.lines().rev().find(|line| words.iter().all(|word| line.contains(word)));
            line.map(short).with_context(|| {
                format!("no line with all of {words:?}; the last is {:?}", text.lines().next_back())
            })
        })
    }
}

/// Fails unless the text has all of the words; returns it shortened.
pub(crate) fn has(text: &str, words: &[&str]) -> Result<String> {
    let text = plain(text);
    let missing: Vec<_> = words.iter().filter(|word| !text.contains(**word)).collect();
    ensure!(missing.is_empty(), "{missing:?} is not in: {}", text.trim());
    Ok(short(text.trim()))
}

/// Without the escape sequences that colour a terminal (ECMA-48: `ESC [`, parameters, `m`).
fn plain(text: &str) -> String {
    let mut parts = text.split("\x1b[");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out.push_str(part.split_once('m').map_or(part, |(_, rest)| rest));
    }
    out
}

fn short(line: &str) -> String {
    let line: String = line.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(260) {
        Some((at, _)) => format!("{}..", &line[..at]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_do_not_hide_words() {
        let text = "\x1b[2m12:00\x1b[0m \x1b[33m WARN\x1b[0m a\x1b[3m=\x1b[0mb";
        assert_eq!(plain(text), "12:00  WARN a=b");
        assert_eq!(has(text, &["a=b"]).unwrap(), "12:00 WARN a=b");
        assert!(has(text, &["c"]).unwrap_err().to_string().contains("[\"c\"]"));
    }
}
