//! A part of the tests in a process of its own, beside other parts.

use std::fs::File;
use std::process::{Child, Stdio};

use anyhow::{Context, Result};

use super::tally::Tally;
use crate::{exec, paths};

/// Before the counts of such a process.
pub(super) const CLOSING: &str = "in all:";

/// A part under way.
pub(super) struct Beside {
    child: Child,
    key: &'static str,
}

impl Beside {
    /// Starts a part. What it says is kept for later.
    pub(super) fn start(key: &'static str) -> Result<Self> {
        let me = std::env::current_exe().context("own executable")?;
        let log = File::create(log(key)).with_context(|| format!("{}", log(key).display()))?;
        let child = exec::command(me)
            .args(["test", "--built", "--only", key])
            .stdin(Stdio::null())
            .stderr(log.try_clone().context("log of a part")?)
            .stdout(log)
            .spawn()
            .context("cannot start xtask again")?;
        exec::say(format_args!("{key} runs beside what follows; what it says comes after it"));
        Ok(Self { child, key })
    }

    /// Waits for it, and tells and counts what it said.
    pub(super) fn finish(mut self, title: &str, tally: &mut Tally) {
        let status = self.child.wait();
        let output = std::fs::read(log(self.key)).unwrap_or_default();
        let output = String::from_utf8_lossy(&output);
        // Its own counts of all it ran are the ones that count.
        let (before, closing) = output.rsplit_once(CLOSING).unwrap_or((&output, ""));
        exec::say(before.trim());
        let failures = tally.failures();
        if !tally.read(title, &format!("{CLOSING}{closing}")) {
            tally.fail(format!("{title}: ended without a count"));
        } else if !status.is_ok_and(|status| status.success()) && tally.failures() == failures {
            tally.fail(format!("{title}: ended badly"));
        }
    }
}

fn log(key: &str) -> std::path::PathBuf {
    paths::target().join(format!("test-{key}.log"))
}
