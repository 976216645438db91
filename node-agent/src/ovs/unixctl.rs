//! Client of ovs-vswitchd's control socket, as used by `ovs-appctl`: one JSON-RPC 1.0 call per connection (ovs-appctl(8); OVS,
//! lib/unixctl.c).

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use reply::{Lines, Reply};

mod reply;

/// Size of a read, bytes.
const PIECE: usize = 64 << 10;
/// Maximum size in bytes of a result that is kept as one text.
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
        let mut text = Vec::new();
        self.ask(method, params, timeout, |piece| {
            text.extend_from_slice(piece);
            text.len() <= LONGEST
        })
        .await?;
        Ok(String::from_utf8(text)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }

    /// Waits until no flow of the datapath is older than OVS's tables are now: `revalidator/wait` replies at the end of a round over all of
    /// them, which may have started before, so a second one has to end too. OVS starts a round when its tables change, and otherwise every
    /// 500 ms (`max-revalidator`, ovs-vswitchd.conf.db(5)).
    ///
    /// # Errors
    /// ovs-vswitchd is not running, or a round takes longer than `timeout`.
    pub async fn datapath_follows(&self, timeout: Duration) -> Result<(), UnixctlError> {
        for _ in 0..2 {
            self.call("revalidator/wait", &[], timeout).await?;
        }
        Ok(())
    }

    /// Calls `method` and gives each line of its output to `each`, without keeping them: for lists of connections and flows, which may
    /// be hundreds of megabytes. Empty lines are left out.
    ///
    /// # Errors
    /// As of [`Self::call`]; lines may have been given before.
    pub async fn lines(
        &self,
        method: &str,
        params: &[&str],
        timeout: Duration,
        mut each: impl FnMut(&str),
    ) -> Result<(), UnixctlError> {
        let mut lines = Lines::default();
        self.ask(method, params, timeout, |piece| {
            lines.take(piece, &mut each);
            true
        })
        .await?;
        lines.end(&mut each);
        Ok(())
    }

    /// Calls `method`; `take` gets the result piece by piece, and returns false when it is too long.
    async fn ask(
        &self,
        method: &str,
        params: &[&str],
        timeout: Duration,
        take: impl FnMut(&[u8]) -> bool,
    ) -> Result<(), UnixctlError> {
        let socket = self.socket().await?;
        match tokio::time::timeout(timeout, exchange(&socket, method, params, take)).await {
            Ok(Ok(None)) => Ok(()),
            Ok(Ok(Some(message))) => Err(UnixctlError::Refused { method: method.to_owned(), message }),
            Ok(Err(source)) => Err(UnixctlError::Io { method: method.to_owned(), socket, source }),
            Err(_elapsed) => Err(UnixctlError::Timeout { method: method.to_owned(), socket, after: timeout }),
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

/// One call; returns the error message of ovs-vswitchd, if there is one.
async fn exchange(
    socket: &Path,
    method: &str,
    params: &[&str],
    mut take: impl FnMut(&[u8]) -> bool,
) -> std::io::Result<Option<String>> {
    let mut stream = UnixStream::connect(socket).await?;
    let request = serde_json::json!({ "id": 0, "method": method, "params": params });
    stream.write_all(request.to_string().as_bytes()).await?;
    let (mut reply, mut buffer) = (Reply::new(), vec![0; PIECE]);
    loop {
        let read = stream.read(&mut buffer).await?;
        if read == 0 {
            return Err(std::io::Error::other("connection closed before the reply was complete"));
        }
        let mut fits = true;
        // ovs-vswitchd keeps the connection open after the reply.
        let complete = reply
            .take(&buffer[..read], |piece| fits = fits && take(piece))
            .map_err(|error| std::io::Error::new(std::io::ErrorKind::InvalidData, error))?;
        if !fits {
            return Err(std::io::Error::other(format!("reply is longer than {LONGEST} bytes")));
        }
        if complete {
            return Ok(reply.error());
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
    async fn lines_of_any_number_are_read_without_being_kept() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("ovs-vswitchd.pid"), "7\n").unwrap();
        let listener = UnixListener::bind(directory.path().join("ovs-vswitchd.7.ctl")).unwrap();
        // Twice what is kept as one text.
        let (line, count) = (format!("{}\\n", "x".repeat(1022)), 2 * (LONGEST >> 10));
        let daemon = tokio::spawn(async move {
            for _ in 0..2 {
                let (mut stream, _) = listener.accept().await.unwrap();
                stream.write_all(br#"{"id":0,"result":""#).await.unwrap();
                for _ in 0..count {
                    if stream.write_all(line.as_bytes()).await.is_err() {
                        break;
                    }
                }
                let _ = stream.write_all(br#"","error":null}"#).await;
            }
        });
        let unixctl = Unixctl::new(directory.path());
        let mut seen = 0;
        unixctl
            .lines("x", &[], SOON, |line| {
                assert_eq!(line.len(), 1022);
                seen += 1;
            })
            .await
            .unwrap();
        assert_eq!(seen, count);
        let error = unixctl.call("x", &[], SOON).await.unwrap_err().to_string();
        assert!(error.contains("reply is longer than"), "{error}");
        daemon.await.unwrap();
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
