//! Writer of the gateway bridge's flow table.
//!
//! The table is replaced as one bundle by `ovs-ofctl replace-flows`, which applies only differences. It runs when the desired flows
//! change or when the bridge may have lost them, never periodically.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, bail};
use tokio::io::AsyncWriteExt;

use super::flows::FlowSet;
use crate::ovs::openflow::management_socket;

/// Writer of one bridge's flows.
#[derive(Debug)]
pub struct FlowWriter {
    ofctl: PathBuf,
    target: String,
    last: Option<FlowSet>,
}

impl FlowWriter {
    /// Creates a writer for `bridge`, whose management socket is in the directory of the database socket.
    pub fn new(ofctl: &Path, ovs_db: &str, bridge: &str) -> Self {
        let target = management_socket(ovs_db, bridge)
            .map_or_else(|| bridge.to_owned(), |path| format!("unix:{}", path.display()));
        Self { ofctl: ofctl.to_owned(), target, last: None }
    }

    /// Writes `flows` if they differ from the last written ones. Returns true when they were written.
    ///
    /// # Errors
    /// ovs-ofctl cannot be run, or rejects the flows.
    pub async fn write(&mut self, flows: &FlowSet) -> anyhow::Result<bool> {
        if self.last.as_ref() == Some(flows) {
            return Ok(false);
        }
        self.last = None;
        self.replace(&flows.to_string()).await?;
        self.last = Some(flows.clone());
        Ok(true)
    }

    /// Call when the bridge may have lost its flows; the next write compares with the bridge.
    pub fn forget(&mut self) {
        self.last = None;
    }

    async fn replace(&self, flows: &str) -> anyhow::Result<()> {
        #[expect(
            clippy::disallowed_methods,
            reason = "the only place that starts ovs-ofctl, and only when flows change"
        )]
        let mut child = tokio::process::Command::new(&self.ofctl)
            .args(["--bundle", "replace-flows", &self.target, "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot run {}; set its path with --ofctl", self.ofctl.display()))?;
        if let Some(mut stdin) = child.stdin.take() {
            // A failed write means that ovs-ofctl has exited; its error message is reported below.
            let _ = stdin.write_all(flows.as_bytes()).await;
        }
        let output = child.wait_with_output().await.context("ovs-ofctl")?;
        if !output.status.success() {
            bail!("{}: flows rejected: {}", self.target, String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }
}
