//! The test bed, through its own command line: the benchmark starts it, runs parts of itself inside its hosts, and ends it.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::record::Series;

/// A running test bed.
pub(crate) struct Bed {
    program: PathBuf,
    myself: PathBuf,
    name: String,
    ours: bool,
}

impl Bed {
    /// Takes the running test bed `name`, or starts one of our own.
    pub(crate) fn open(name: Option<&str>, datapath: &str) -> Result<Self> {
        let myself = std::env::current_exe()?;
        let program = myself.with_file_name("testbed");
        let bed = Self { program, myself, name: name.unwrap_or("bench").to_owned(), ours: name.is_none() };
        if bed.ours {
            // As in a cluster outside tests.
            bed.run(&["up", "--nodes", "2", "--datapath", datapath, "--verify-interval", "180"])?;
        }
        Ok(bed)
    }

    /// Ends the test bed if it is ours.
    pub(crate) fn close(mut self) -> Result<()> {
        if std::mem::take(&mut self.ours) {
            self.run(&["down"])?;
        }
        Ok(())
    }

    /// Runs one scenario of this program inside `host`.
    pub(crate) fn inside(&self, host: &str, what: &str, count: usize, burst: usize) -> Result<Vec<Series>> {
        let kubeconfig = self.run(&["kubeconfig"])?;
        let mut command = self.command();
        command.args(["exec", host, "--"]).arg(&self.myself);
        command.args(["in-host", what, "--kubeconfig", kubeconfig.trim(), "--node", "n1"]);
        command.args(["--count", &count.to_string(), "--burst", &burst.to_string()]);
        let output = command.output()?;
        if !output.status.success() {
            bail!("{what} on {host}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
        }
        serde_json::from_slice(&output.stdout).with_context(|| format!("{what} on {host}: no series"))
    }

    fn command(&self) -> Command {
        #[expect(clippy::disallowed_methods, reason = "the test bed is a program")]
        let mut command = Command::new(&self.program);
        command.args(["--name", &self.name]);
        command
    }

    fn run(&self, args: &[&str]) -> Result<String> {
        let output =
            self.command().args(args).output().with_context(|| self.program.display().to_string())?;
        if !output.status.success() {
            bail!(
                "testbed {}: {}\n{}{}",
                args.join(" "),
                output.status,
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        // Reached with `ours` still set only when a scenario failed; its error is what the user must see.
        if self.ours {
            let _ = self.run(&["down"]);
        }
    }
}
