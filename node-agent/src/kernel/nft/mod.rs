//! Handing rulesets to the kernel: the only place that starts `nft`, and only when the text differs from what was written
//! last.

use std::process::Stdio;

use anyhow::{Context, bail};
use tokio::io::AsyncWriteExt;

pub mod monitor;

/// Applies `ruleset` in one transaction: all of it or nothing. Returns the number of the process that did it.
pub async fn apply(ruleset: &str) -> anyhow::Result<u32> {
    #[expect(
        clippy::disallowed_methods,
        reason = "nft has the only complete compiler of rulesets; started on change only"
    )]
    let mut child = tokio::process::Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("cannot start `nft`; the nftables package is needed")?;
    let process = child.id().unwrap_or(0);
    if let Some(mut stdin) = child.stdin.take() {
        // A failed write means that nft has ended; its own message says more.
        let _ = stdin.write_all(ruleset.as_bytes()).await;
    }
    let output = child.wait_with_output().await.context("nft")?;
    if !output.status.success() {
        bail!("nft refused the ruleset: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(process)
}

/// Remembers what was written last, and by which processes of late.
#[derive(Debug, Default)]
pub struct Writer {
    last: Option<String>,
    processes: [u32; 4],
}

impl Writer {
    /// Applies `ruleset` when it is not what was applied last. True when `nft` was started.
    pub async fn write(&mut self, ruleset: String) -> anyhow::Result<bool> {
        if self.last.as_ref() == Some(&ruleset) {
            return Ok(false);
        }
        self.last = None;
        let process = apply(&ruleset).await?;
        self.processes.rotate_right(1);
        self.processes[0] = process;
        self.last = Some(ruleset);
        Ok(true)
    }

    /// What was written may not be there any more.
    pub fn forget(&mut self) {
        self.last = None;
    }

    /// True when a process of this number wrote of late.
    pub fn was_process(&self, number: u32) -> bool {
        number != 0 && self.processes.contains(&number)
    }
}
