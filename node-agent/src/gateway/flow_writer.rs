//! Writer of the gateway bridge's flow table.
//!
//! The table is replaced as one bundle by `ovs-ofctl replace-flows`, which applies only differences. It runs when the desired flows
//! change or when the bridge may have lost them, never periodically.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, bail};

use super::flows::{self, FlowSet};
use crate::kernel::child_input;
use crate::ovs::openflow::management_socket;

/// Writer of one bridge's flows.
#[derive(Debug)]
pub struct FlowWriter {
    ofctl: PathBuf,
    target: String,
    last: Option<FlowSet>,
    /// Flows were added since the last write.
    widened: bool,
    /// [`FlowWriter::ensure_connected`] has nothing left to do.
    connected: bool,
}

impl FlowWriter {
    /// Creates a writer for `bridge`, whose management socket is in the directory of the database socket.
    pub fn new(ofctl: &Path, ovs_db: &str, bridge: &str) -> Self {
        let target = management_socket(ovs_db, bridge)
            .map_or_else(|| bridge.to_owned(), |path| format!("unix:{}", path.display()));
        Self { ofctl: ofctl.to_owned(), target, last: None, widened: false, connected: false }
    }

    /// Adds those of `flows` that the bridge does not have, and leaves the others, until the next [`FlowWriter::write`]. While it is not known
    /// what the bridge has, writes `flows` at once: OVS reports every flow that is added as a new one, also one that it has, and the flow
    /// cache would forget what concerns it. Returns true when flows were added.
    ///
    /// # Errors
    /// ovs-ofctl cannot be run, or rejects the flows.
    pub async fn widen(&mut self, flows: &FlowSet) -> anyhow::Result<bool> {
        let Some(last) = self.last.take() else {
            self.widened = self.write(flows).await?;
            return Ok(self.widened);
        };
        let new = flows.beyond(&last);
        if new.is_empty() {
            self.last = Some(last);
            return Ok(false);
        }
        self.run("add-flows", &new).await?;
        self.widened = true;
        self.last = Some(new.over(last));
        Ok(true)
    }

    /// Whether it is not known what the bridge has: nothing was written yet, or OVS was started again.
    pub fn is_new(&self) -> bool {
        self.last.is_none()
    }

    /// Writes `flows` if they differ from what the bridge has. Returns true when they were written, now or by [`FlowWriter::widen`].
    ///
    /// # Errors
    /// ovs-ofctl cannot be run, or rejects the flows.
    pub async fn write(&mut self, flows: &FlowSet) -> anyhow::Result<bool> {
        let widened = std::mem::take(&mut self.widened);
        if self.last.as_ref() == Some(flows) {
            return Ok(widened);
        }
        self.last = None;
        self.run("replace-flows", flows).await?;
        self.last = Some(flows.clone());
        self.connected = true;
        Ok(true)
    }

    /// Adds the flow by which the bridge forwards like a learning switch, and which is in every table that [`FlowWriter::write`]
    /// writes; the other flows stay. To be called while the desired flows are not known: without any flow the node is cut off,
    /// also from the API server that has to say what the flows are. Does nothing once it, or a write, has succeeded.
    ///
    /// # Errors
    /// ovs-ofctl cannot be run, or rejects the flow.
    pub async fn ensure_connected(&mut self) -> anyhow::Result<()> {
        if !self.connected {
            self.run("add-flows", &flows::switching()).await?;
            self.connected = true;
        }
        Ok(())
    }

    /// Call when the bridge may have lost its flows; the next write compares with the bridge.
    pub fn forget(&mut self) {
        self.last = None;
        self.connected = false;
    }

    async fn run(&self, command: &str, flows: &FlowSet) -> anyhow::Result<()> {
        let input = child_input::complete(&flows.to_string()).context("flows for ovs-ofctl")?;
        #[expect(
            clippy::disallowed_methods,
            reason = "the only place that starts ovs-ofctl, and only when flows change"
        )]
        let child = tokio::process::Command::new(&self.ofctl)
            .args(["--bundle", command, &self.target, "-"])
            .stdin(input)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot run {}; set its path with --ofctl", self.ofctl.display()))?;
        let output = child.wait_with_output().await.context("ovs-ofctl")?;
        if !output.status.success() {
            bail!("{}: flows rejected: {}", self.target, String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A stand-in for ovs-ofctl that writes down how it was called, and what it reads once its caller may be dead.
    fn ofctl(dir: &Path) -> PathBuf {
        let program = dir.join("ofctl");
        let out = dir.join("out");
        let script =
            format!("#!/bin/sh\n[ -p /dev/stdin ] && exit 3\n{{ echo \"$2\"; cat; }} >> {}\n", out.display());
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        program
    }

    #[tokio::test]
    async fn flows_are_complete_before_ovs_ofctl_starts_and_a_node_is_never_cut_off_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = FlowWriter::new(&ofctl(dir.path()), "unix:/nowhere/db.sock", "breth0");
        let said = || std::fs::read_to_string(dir.path().join("out")).unwrap();
        let one = flows::switching();
        writer.ensure_connected().await.unwrap();
        let added = format!("add-flows\n{one}");
        assert_eq!(said(), added);
        writer.ensure_connected().await.unwrap();
        assert_eq!(said(), added, "once is enough");
        assert!(writer.write(&one).await.unwrap());
        let replaced = format!("{added}replace-flows\n{one}");
        assert_eq!(said(), replaced);
        writer.forget();
        writer.ensure_connected().await.unwrap();
        assert_eq!(said(), format!("{replaced}{added}"), "OVS may be new");
    }

    #[tokio::test]
    async fn new_flows_are_added_before_old_ones_go() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = FlowWriter::new(&ofctl(dir.path()), "unix:/nowhere/db.sock", "breth0");
        let said = || {
            let out = dir.path().join("out");
            let text = std::fs::read_to_string(&out).unwrap_or_default();
            std::fs::write(out, "").unwrap();
            text
        };
        let set = |ports: &[u16]| {
            let mut set = FlowSet::default();
            ports.iter().for_each(|port| set.add(0, 0, 10, format!("tp_dst={port}"), "NORMAL"));
            set
        };
        // Nothing is known of the bridge: what it has must not be added again.
        assert!(writer.widen(&set(&[1, 2])).await.unwrap());
        assert_eq!(said(), format!("replace-flows\n{}", set(&[1, 2])));
        assert!(writer.write(&set(&[1, 2])).await.unwrap());
        assert_eq!(said(), "");
        // One comes and one goes.
        assert!(writer.widen(&set(&[2, 3])).await.unwrap());
        assert_eq!(said(), format!("add-flows\n{}", set(&[3])));
        assert!(writer.write(&set(&[2, 3])).await.unwrap());
        assert_eq!(said(), format!("replace-flows\n{}", set(&[2, 3])));
        // One only comes, one only goes, one is another.
        assert!(writer.widen(&set(&[2, 3, 4])).await.unwrap());
        assert!(writer.write(&set(&[2, 3, 4])).await.unwrap());
        assert_eq!(said(), format!("add-flows\n{}", set(&[4])));
        assert!(!writer.widen(&set(&[4])).await.unwrap());
        assert_eq!(said(), "");
        assert!(writer.write(&set(&[4])).await.unwrap());
        assert_eq!(said(), format!("replace-flows\n{}", set(&[4])));
        let mut other = FlowSet::default();
        other.add(0, 0, 10, "tp_dst=4", "drop");
        assert!(writer.widen(&other).await.unwrap());
        assert!(writer.write(&other).await.unwrap());
        assert_eq!(said(), format!("add-flows\n{other}"));
        assert!(!writer.widen(&other).await.unwrap() && !writer.write(&other).await.unwrap());
    }
}
