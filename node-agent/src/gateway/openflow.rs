//! Writing the bridge's flow table, and noticing that ovs-vswitchd has lost it.
//!
//! The table is written as one bundle by `ovs-ofctl`, which reads what the bridge has and changes only what differs. It is
//! started when the wanted flows change or when the bridge may have lost them, never by the clock.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tracing::debug;

use super::flows::FlowSet;

// OpenFlow 1.3 (ONF TS-006): every message begins with version, type, length and transaction number.
const OPENFLOW_1_3: u8 = 0x04;
const HELLO: u8 = 0;
const ECHO_REQUEST: u8 = 2;
const ECHO_REPLY: u8 = 3;
const HEADER: usize = 8;

/// Writes one bridge's flows.
#[derive(Debug)]
pub struct FlowWriter {
    ofctl: PathBuf,
    target: String,
    last: Option<FlowSet>,
}

impl FlowWriter {
    /// A writer for `bridge`, whose management socket is beside the database's.
    pub fn new(ofctl: &Path, ovs_db: &str, bridge: &str) -> Self {
        let target = management_socket(ovs_db, bridge)
            .map_or_else(|| bridge.to_owned(), |path| format!("unix:{}", path.display()));
        Self { ofctl: ofctl.to_owned(), target, last: None }
    }

    /// Writes `flows` when they differ from what was written last. True when the bridge was written to.
    pub async fn write(&mut self, flows: &FlowSet) -> anyhow::Result<bool> {
        if self.last.as_ref() == Some(flows) {
            return Ok(false);
        }
        self.last = None;
        self.replace(&flows.to_string()).await?;
        self.last = Some(flows.clone());
        Ok(true)
    }

    /// The bridge may have lost its flows: the next write compares with what it has.
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
            .with_context(|| format!("cannot start {}; name it with --ofctl", self.ofctl.display()))?;
        if let Some(mut stdin) = child.stdin.take() {
            // A failed write means that the program has ended; its own message says more.
            let _ = stdin.write_all(flows.as_bytes()).await;
        }
        let output = child.wait_with_output().await.context("ovs-ofctl")?;
        if !output.status.success() {
            bail!("{}: flows refused: {}", self.target, String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }
}

/// The bridge's OpenFlow socket, in the run directory of ovs-vswitchd; `None` when the database is not on this machine.
pub fn management_socket(ovs_db: &str, bridge: &str) -> Option<PathBuf> {
    let path = ovs_db.split(',').find_map(|e| e.trim().strip_prefix("unix:"))?;
    Some(Path::new(path).parent()?.join(format!("{bridge}.mgmt")))
}

/// Holds an OpenFlow connection to the bridge for as long as the future is polled, and counts how often one was made: a new
/// one means that ovs-vswitchd, or the bridge, has started anew and its flow table is empty.
pub async fn watch_sessions(socket: PathBuf, sessions: watch::Sender<u64>) {
    loop {
        match UnixStream::connect(&socket).await {
            Ok(stream) => {
                sessions.send_modify(|n| *n += 1);
                if let Err(error) = serve(stream).await {
                    debug!(socket = %socket.display(), %error, "OpenFlow session ended");
                }
            }
            Err(error) => debug!(socket = %socket.display(), %error, "no OpenFlow socket"),
        }
        // A socket file gives no sign when somebody listens on it again.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Keeps one session alive until the other side ends it.
async fn serve(mut stream: UnixStream) -> std::io::Result<()> {
    stream.write_all(&message(HELLO, 1, &[])).await?;
    let mut header = [0; HEADER];
    loop {
        stream.read_exact(&mut header).await?;
        let [_, kind, high, low, xid @ ..] = header;
        let length = usize::from(u16::from_be_bytes([high, low]));
        let mut body = vec![0; length.saturating_sub(HEADER)];
        stream.read_exact(&mut body).await?;
        if kind == ECHO_REQUEST {
            stream.write_all(&message(ECHO_REPLY, u32::from_be_bytes(xid), &body)).await?;
        }
    }
}

fn message(kind: u8, xid: u32, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(HEADER + body.len()).unwrap_or(u16::MAX);
    let mut out = vec![OPENFLOW_1_3, kind];
    out.extend(length.to_be_bytes());
    out.extend(xid.to_be_bytes());
    out.extend(body);
    out
}
