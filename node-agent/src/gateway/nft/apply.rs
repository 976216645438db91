//! Handing rulesets to the kernel: the only place that starts `nft`, and only when the text differs from what was written
//! last.

use std::process::Stdio;

use anyhow::{Context, bail};
use tokio::io::AsyncWriteExt;

/// Applies `ruleset` in one transaction: all of it or nothing.
pub async fn apply(ruleset: &str) -> anyhow::Result<()> {
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
    if let Some(mut stdin) = child.stdin.take() {
        // A failed write means that nft has ended; its own message says more.
        let _ = stdin.write_all(ruleset.as_bytes()).await;
    }
    let output = child.wait_with_output().await.context("nft")?;
    if !output.status.success() {
        bail!("nft refused the ruleset: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Remembers what was written last.
#[derive(Debug, Default)]
pub struct Writer {
    last: Option<String>,
}

impl Writer {
    /// Applies `ruleset` when it is not what was applied last. True when `nft` was started.
    pub async fn write(&mut self, ruleset: String) -> anyhow::Result<bool> {
        if self.last.as_ref() == Some(&ruleset) {
            return Ok(false);
        }
        self.last = None;
        apply(&ruleset).await?;
        self.last = Some(ruleset);
        Ok(true)
    }
}
