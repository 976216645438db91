//! An OpenFlow session that detects restarts of ovs-vswitchd.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tracing::debug;

use super::{HEADER, frame};

/// Wire version of OpenFlow 1.3 (ONF TS-006), which every bridge supports.
const OPENFLOW_1_3: u8 = 0x04;
const HELLO: u8 = 0;
const ECHO_REQUEST: u8 = 2;
const ECHO_REPLY: u8 = 3;

/// OpenFlow management socket of `bridge`, in ovs-vswitchd's run directory; `None` when `ovs_db` has no unix socket.
pub fn management_socket(ovs_db: &str, bridge: &str) -> Option<PathBuf> {
    let path = ovs_db.split(',').find_map(|e| e.trim().strip_prefix("unix:"))?;
    Some(Path::new(path).parent()?.join(format!("{bridge}.mgmt")))
}

/// Keeps an OpenFlow connection to the bridge open and counts connections in `sessions`: a new connection means that
/// ovs-vswitchd restarted, or the bridge was recreated, and the flow table is empty. Never returns.
pub async fn watch_sessions(socket: PathBuf, sessions: watch::Sender<u64>) {
    loop {
        match UnixStream::connect(&socket).await {
            Ok(stream) => {
                sessions.send_modify(|n| *n += 1);
                if let Err(error) = serve(stream).await {
                    debug!(socket = %socket.display(), %error, "OpenFlow session ended");
                }
            }
            Err(error) => debug!(socket = %socket.display(), %error, "cannot connect to the OpenFlow socket"),
        }
        // There is no notification when a process listens on a socket file again.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Answers echo requests until the peer closes the connection.
async fn serve(mut stream: UnixStream) -> std::io::Result<()> {
    stream.write_all(&frame(OPENFLOW_1_3, HELLO, 1, &[])).await?;
    let mut header = [0; HEADER];
    loop {
        stream.read_exact(&mut header).await?;
        let [_, kind, high, low, xid @ ..] = header;
        let length = usize::from(u16::from_be_bytes([high, low]));
        let mut body = vec![0; length.saturating_sub(HEADER)];
        stream.read_exact(&mut body).await?;
        if kind == ECHO_REQUEST {
            stream.write_all(&frame(OPENFLOW_1_3, ECHO_REPLY, u32::from_be_bytes(xid), &body)).await?;
        }
    }
}
