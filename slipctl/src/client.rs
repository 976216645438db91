//! HTTP/1.1 client for the admin socket of the node agent; one connection per request.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use api::admin::Failure;
use serde::Serialize;
use serde_json::Value;

/// Timeout of a request; an audit of many flows takes longest.
const LIMIT: Duration = Duration::from_secs(120);

/// Client of one agent.
#[derive(Debug)]
pub(crate) struct Client {
    socket: PathBuf,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Connecting to the socket failed.
    #[error("cannot connect to the node agent at {}: {source}; {}", .socket.display(), remedy(.source))]
    NoAgent { socket: PathBuf, source: io::Error },
    /// The connection failed, or the response is not valid HTTP.
    #[error("node agent at {}: {detail}", .socket.display())]
    Exchange { socket: PathBuf, detail: String },
    /// The agent returned an error.
    #[error("{message}")]
    Refused { status: u16, message: String },
    /// Wrong command line.
    #[error("{0}")]
    Usage(String),
    /// A program that slipctl runs failed.
    #[error("{0}")]
    Program(String),
    /// A signal ended a measurement.
    #[error("interrupted; {0}")]
    Interrupted(String),
    /// Standard output cannot be written.
    #[error("cannot write to standard output: {0}")]
    Output(io::Error),
}

fn remedy(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => "the socket is accessible to root only: run slipctl as root",
        io::ErrorKind::ConnectionRefused => {
            "the socket is a leftover of an agent that has exited: is slipstream-node-agent running on this node?"
        }
        _ => {
            "is slipstream-node-agent running on this node with this --admin-socket? set another one with --socket"
        }
    }
}

impl Error {
    /// The response cannot be deserialized.
    #[expect(clippy::needless_pass_by_value, reason = "for map_err")]
    pub(crate) fn not_understood(error: serde_json::Error) -> Self {
        Self::Refused {
            status: 500,
            message: format!(
                "cannot parse the agent's response ({error}); are slipctl and the agent of the same version? `-o json` prints the response as received"
            ),
        }
    }

    /// Exit code: 1 error of the agent or of standard output, or interrupted, 2 wrong input, 3 agent not reachable.
    pub(crate) fn code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Refused { status: 400, .. } | Self::Usage(_) => 2,
            Self::Refused { .. } | Self::Output(_) | Self::Program(_) | Self::Interrupted(_) => 1,
            Self::NoAgent { .. } | Self::Exchange { .. } => 3,
        })
    }
}

impl Client {
    /// Client of the agent that listens on `socket`.
    pub(crate) fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned() }
    }

    /// Sends `GET resource`; returns the JSON body.
    pub(crate) fn get(&self, resource: &str) -> Result<Value, Error> {
        self.ask("GET", resource, "")
    }

    /// Sends `POST resource` with a JSON body; returns the JSON body of the response.
    pub(crate) fn post(&self, resource: &str, request: &impl Serialize) -> Result<Value, Error> {
        let body = serde_json::to_string(request)
            .map_err(|e| self.failed(format!("cannot serialize the request: {e}")))?;
        self.ask("POST", resource, &body)
    }

    fn ask(&self, method: &str, resource: &str, body: &str) -> Result<Value, Error> {
        let stream = UnixStream::connect(&self.socket)
            .map_err(|source| Error::NoAgent { socket: self.socket.clone(), source })?;
        let answer = exchange(stream, method, resource, body).map_err(|e| self.failed(e.to_string()))?;
        let (status, body) = parse(&answer).map_err(|detail| self.failed(detail))?;
        if status == 200 {
            return serde_json::from_str(body)
                .map_err(|e| self.failed(format!("the response is not JSON: {e}")));
        }
        let failure: Result<Failure, _> = serde_json::from_str(body);
        let message = failure.map_or_else(|_| format!("HTTP status {status}: {body}"), |f| f.error);
        Err(Error::Refused { status, message })
    }

    fn failed(&self, detail: String) -> Error {
        Error::Exchange { socket: self.socket.clone(), detail }
    }
}

fn exchange(mut stream: UnixStream, method: &str, resource: &str, body: &str) -> io::Result<String> {
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    let length = body.len();
    let request = format!(
        "{method} {resource} HTTP/1.1\r\nHost: slipstream\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock => {
            io::Error::new(io::ErrorKind::TimedOut, format!("no response within {LIMIT:?}"))
        }
        _ => e,
    })?;
    Ok(answer)
}

/// Splits a response into status code and body.
fn parse(answer: &str) -> Result<(u16, &str), String> {
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("connection closed without a response")?;
    let status = head.split_whitespace().nth(1).and_then(|code| code.parse().ok());
    let status = status
        .ok_or_else(|| format!("`{}` is not an HTTP response", head.lines().next().unwrap_or_default()))?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    if length.is_some_and(|length| body.len() < length) {
        return Err("connection closed in the middle of the response".to_owned());
    }
    Ok((status, body))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// Accepts one connection and sends `answer`.
    fn agent(socket: &Path, answer: &'static str) -> std::thread::JoinHandle<()> {
        let listener = UnixListener::bind(socket).unwrap();
        std::thread::Builder::new()
            .spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.read(&mut [0; 4096]).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            })
            .unwrap()
    }

    #[test]
    fn without_an_agent_the_error_names_the_socket_and_what_to_check() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("admin.sock");
        let error = Client::new(&socket).get("/x").unwrap_err();
        let text = error.to_string();
        assert!(text.contains(socket.to_str().unwrap()) && text.contains("--admin-socket"), "{text}");
        assert_eq!(error.code(), ExitCode::from(3));

        drop(UnixListener::bind(&socket).unwrap());
        let text = Client::new(&socket).get("/x").unwrap_err().to_string();
        assert!(text.contains("an agent that has exited"), "{text}");
    }

    #[test]
    fn refusals_and_broken_answers_have_their_own_exit_codes() {
        for (answer, code, part) in [
            ("HTTP/1.1 400 Bad Request\r\n\r\n{\"error\":\"limit `0`\"}", 2, "limit `0`"),
            ("HTTP/1.1 409 Conflict\r\n\r\n{\"error\":\"no cache\"}", 1, "no cache"),
            ("HTTP/1.1 502 x\r\n\r\noops", 1, "HTTP status 502: oops"),
            ("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{\"a\"", 3, "in the middle"),
            ("HTTP/1.1 200 OK\r\n\r\nhello", 3, "not JSON"),
            ("SSH-2.0-x\r\n\r\n", 3, "`SSH-2.0-x` is not an HTTP response"),
            ("", 3, "without a response"),
        ] {
            let directory = tempfile::tempdir().unwrap();
            let socket = directory.path().join("admin.sock");
            let agent = agent(&socket, answer);
            let error = Client::new(&socket).post("/x", &1).unwrap_err();
            agent.join().unwrap();
            assert_eq!(error.code(), ExitCode::from(code), "{answer}");
            assert!(error.to_string().contains(part), "{answer}: {error}");
        }
    }
}
