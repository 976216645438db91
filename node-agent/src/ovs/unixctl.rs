//! Client of ovs-vswitchd's control socket, as used by `ovs-appctl`: one JSON-RPC 1.0 call per connection (ovs-appctl(8); OVS,
//! lib/unixctl.c).

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// Maximum size of a reply in bytes.
const LONGEST: usize = 64 << 20;

/// Error of a call to ovs-vswitchd.
#[derive(Debug, thiserror::Error)]
pub enum UnixctlError {
    /// No control socket found.
    #[error("no control socket of ovs-vswitchd in {directory}: {detail}; is ovs-vswitchd running?")]
    NoSocket {
        /// Directory searched.
        directory: PathBuf,
        /// What is missing.
        detail: String,
    },
    /// I/O error on the socket.
    #[error("{method} on {socket}: {source}")]
    Io {
        /// Method called.
        method: String,
        /// Path of the socket.
        socket: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// ovs-vswitchd returned an error.
    #[error("{method}: {message}")]
    Refused {
        /// Method called.
        method: String,
        /// Error message of ovs-vswitchd.
        message: String,
    },
    /// No reply within the timeout.
    #[error("{method} on {socket}: no reply within {after:?}")]
    Timeout {
        /// Method called.
        method: String,
        /// Path of the socket.
        socket: PathBuf,
        /// Timeout.
        after: Duration,
    },
}

/// Client of ovs-vswitchd's control socket. Each call opens a new connection, as the socket's name contains the process id.
#[derive(Debug, Clone)]
pub struct Unixctl {
    directory: PathBuf,
}

#[derive(Deserialize)]
struct Reply {
    result: Option<serde_json::Value>,
    error: Option<serde_json::Value>,
}

impl Unixctl {
    /// Client of the daemon with run directory `directory`, such as `/run/openvswitch`.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// Client of the daemon whose database is `ovs_db`, such as `unix:/run/openvswitch/db.sock`; `None` when it is not a unix socket.
    pub fn beside(ovs_db: &str) -> Option<Self> {
        let path = ovs_db.split(',').find_map(|e| e.trim().strip_prefix("unix:"))?;
        Some(Self::new(Path::new(path).parent()?))
    }

    /// Calls `method` and returns its output.
    ///
    /// # Errors
    /// ovs-vswitchd is not running, returns an error, or does not reply within `timeout`.
    pub async fn call(
        &self,
        method: &str,
        params: &[&str],
        timeout: Duration,
    ) -> Result<String, UnixctlError> {
        let socket = self.socket().await?;
        let exchange = tokio::time::timeout(timeout, exchange(&socket, method, params)).await;
        let reply = match exchange {
            Ok(Ok(reply)) => reply,
            Ok(Err(source)) => return Err(UnixctlError::Io { method: method.to_owned(), socket, source }),
            Err(_elapsed) => {
                return Err(UnixctlError::Timeout { method: method.to_owned(), socket, after: timeout });
            }
        };
        match (reply.error.as_ref().and_then(text), reply.result.as_ref().and_then(text)) {
            (Some(message), _) => {
                let message = message.trim().to_owned();
                Err(UnixctlError::Refused { method: method.to_owned(), message })
            }
            (None, result) => Ok(result.unwrap_or_default()),
        }
    }

    /// Path of the socket, whose name contains the process id from the pid file.
    async fn socket(&self) -> Result<PathBuf, UnixctlError> {
        let file = self.directory.join("ovs-vswitchd.pid");
        let missing = |detail: String| UnixctlError::NoSocket { directory: self.directory.clone(), detail };
        let pid = tokio::fs::read_to_string(&file).await;
        let pid = pid.map_err(|e| missing(format!("{}: {e}", file.display())))?;
        Ok(self.directory.join(format!("ovs-vswitchd.{}.ctl", pid.trim())))
    }
}

fn text(value: &serde_json::Value) -> Option<String> {
    match value {
        serde_json::Value::Null => None,
        serde_json::Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

async fn exchange(socket: &Path, method: &str, params: &[&str]) -> std::io::Result<Reply> {
    let mut stream = UnixStream::connect(socket).await?;
    let request = serde_json::json!({ "id": 0, "method": method, "params": params });
    stream.write_all(request.to_string().as_bytes()).await?;
    let mut answer = Vec::new();
    loop {
        if stream.read_buf(&mut answer).await? == 0 {
            return Err(std::io::Error::other("connection closed before the reply was complete"));
        }
        if answer.len() > LONGEST {
            return Err(std::io::Error::other(format!("reply is longer than {LONGEST} bytes")));
        }
        // The reply is an object and ovs-vswitchd keeps the connection open: the reply is complete when it parses.
        if answer.trim_ascii_end().ends_with(b"}") {
            match serde_json::from_slice(&answer) {
                Ok(reply) => return Ok(reply),
                Err(error) if error.is_eof() => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::UnixListener;

    const SOON: Duration = Duration::from_secs(10);

    /// Answers one call, in the given pieces. Returns the request.
    fn daemon(directory: &Path, pieces: &'static [&'static str]) -> tokio::task::JoinHandle<String> {
        std::fs::write(directory.join("ovs-vswitchd.pid"), "7\n").unwrap();
        let listener = UnixListener::bind(directory.join("ovs-vswitchd.7.ctl")).unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = vec![0; 1024];
            let n = stream.read(&mut asked).await.unwrap();
            for piece in pieces {
                stream.write_all(piece.as_bytes()).await.unwrap();
                tokio::task::yield_now().await;
            }
            // Kept open until the client closes the connection.
            let _ = stream.read(&mut [0; 1]).await;
            String::from_utf8(asked[..n].to_vec()).unwrap()
        })
    }

    #[tokio::test]
    async fn an_answer_in_pieces_is_read_whole() {
        let directory = tempfile::tempdir().unwrap();
        let daemon = daemon(directory.path(), &[r#"{"id":0,"result":"a {b}"#, r#" c\n","error":null}"#]);
        let text = Unixctl::new(directory.path()).call("x/y", &["1", "two"], SOON).await.unwrap();
        assert_eq!(text, "a {b} c\n");
        assert_eq!(daemon.await.unwrap(), r#"{"id":0,"method":"x/y","params":["1","two"]}"#);
    }

    #[tokio::test]
    async fn a_refusal_and_a_missing_daemon_are_errors_that_say_so() {
        let directory = tempfile::tempdir().unwrap();
        let unixctl = Unixctl::new(directory.path());
        let error = unixctl.call("x", &[], SOON).await.unwrap_err().to_string();
        assert!(error.contains("ovs-vswitchd.pid") && error.contains("is ovs-vswitchd running?"), "{error}");
        let _daemon = daemon(directory.path(), &[r#"{"id":0,"result":null,"error":"no such bridge\n"}"#]);
        let error = unixctl.call("x", &[], SOON).await.unwrap_err().to_string();
        assert_eq!(error, "x: no such bridge");
    }

    #[test]
    fn the_run_directory_is_that_of_the_database() {
        let of = |db: &str| Unixctl::beside(db).map(|u| u.directory);
        assert_eq!(of("tcp:1.2.3.4:6640,unix:/run/ovs/db.sock"), Some("/run/ovs".into()));
        assert_eq!(of("tcp:1.2.3.4:6640"), None);
    }
}
