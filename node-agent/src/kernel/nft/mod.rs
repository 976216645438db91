//! Applies nftables rulesets through nft(8), only when the text differs from the last applied one. The only place that runs `nft`.

use std::process::Stdio;

use anyhow::{Context, bail};

use super::child_input;

pub mod monitor;

/// Applies `ruleset` atomically. Returns the id of the `nft` process.
///
/// # Errors
/// `nft` cannot be started, or rejects the ruleset; the tables are as they were.
pub async fn apply(ruleset: &str) -> anyhow::Result<u32> {
    let input = child_input::complete(ruleset).context("ruleset for nft")?;
    #[expect(
        clippy::disallowed_methods,
        reason = "nft has the only complete compiler of rulesets; started on change only"
    )]
    let child = tokio::process::Command::new("nft")
        .args(["-f", "-"])
        .stdin(input)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("cannot run `nft`; install the nftables package")?;
    let process = child.id().unwrap_or(0);
    let output = child.wait_with_output().await.context("nft")?;
    if !output.status.success() {
        bail!("nft rejected the ruleset: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(process)
}

/// Applies rulesets on change; keeps the last ruleset and the ids of recent `nft` processes.
#[derive(Debug, Default)]
pub struct Writer {
    last: Option<String>,
    processes: [u32; 4],
    /// Transactions so far.
    applied: u32,
}

impl Writer {
    /// Applies `ruleset` unless it equals the last applied one. Returns true when it was applied.
    ///
    /// # Errors
    /// Fails as [`apply`]. The next call applies its ruleset in any case.
    pub async fn write(&mut self, ruleset: String) -> anyhow::Result<bool> {
        if self.last.as_ref() == Some(&ruleset) {
            return Ok(false);
        }
        self.last = None;
        let process = apply(&ruleset).await?;
        self.processes.rotate_right(1);
        self.processes[0] = process;
        self.applied = self.applied.wrapping_add(1);
        self.last = Some(ruleset);
        Ok(true)
    }

    /// Forgets the last ruleset, as the tables may have been removed.
    pub fn forget(&mut self) {
        self.last = None;
    }

    /// Transactions so far.
    pub fn applied(&self) -> u32 {
        self.applied
    }

    /// True when `pid` is the id of a recent `nft` process.
    pub fn was_process(&self, number: u32) -> bool {
        number != 0 && self.processes.contains(&number)
    }
}
