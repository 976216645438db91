//! One CNI call: forwards environment and standard input to the node agent's socket and returns its response.
//!
//! Handled without the agent: VERSION always; if the agent is not reachable, STATUS fails with code 50, DEL succeeds (the agent
//! removes leftovers of deleted sandboxes when it starts), and all other commands fail with code 11 (CNI specification 1.1).

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use api::cni::{self, Reply, Request, code};
use serde_json::{Value, json};

/// Timeout for an ADD; the agent itself gives up after 110 s.
const ADD_LIMIT: Duration = Duration::from_secs(118);
/// Timeout for all other commands.
const LIMIT: Duration = Duration::from_secs(30);

/// Output and exit code of the plugin.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) stdout: String,
    pub(crate) code: u8,
}

/// Writes a line to standard error.
pub(crate) fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Executes one call. `command` is `CNI_COMMAND`, `started` the start of the process as time since the Unix epoch.
pub(crate) fn run(command: &str, started: Duration) -> Answer {
    let mut config = Vec::new();
    let read = io::stdin().lock().read_to_end(&mut config);
    let config = String::from_utf8_lossy(&config);
    if command == "VERSION" {
        return version(&config);
    }
    if let Err(e) = read {
        return failure(&config, code::IO_FAILURE, &format!("cannot read standard input: {e}"));
    }
    let socket = member(&config, "socket").unwrap_or_else(|| cni::DEFAULT_SOCKET.to_owned());
    match ask(&socket, &request(&config, started), if command == "ADD" { ADD_LIMIT } else { LIMIT }) {
        Ok(reply) => read_reply(&config, &reply),
        Err(e) => no_agent(command, &config, &format!("node agent at {socket}: {e}")),
    }
}

fn no_agent(command: &str, config: &str, problem: &str) -> Answer {
    match command {
        "DEL" => {
            say(&format!(
                "slipstream-cni: {problem}; the agent removes the container's resources when it starts"
            ));
            Answer { stdout: String::new(), code: 0 }
        }
        "STATUS" => failure(config, code::NOT_AVAILABLE, problem),
        _ => failure(config, code::TRY_AGAIN_LATER, problem),
    }
}

/// `cniVersion` of the configuration; 1.1.0 if it is missing.
fn version_of(config: &str) -> String {
    member(config, "cniVersion").unwrap_or_else(|| "1.1.0".to_owned())
}

fn version(config: &str) -> Answer {
    let supported = ["0.3.1", "0.4.0", "1.0.0", "1.1.0"];
    let said = json!({ "cniVersion": version_of(config), "supportedVersions": supported });
    Answer { stdout: said.to_string(), code: 0 }
}

fn failure(config: &str, code: u32, msg: &str) -> Answer {
    let said = json!({ "cniVersion": version_of(config), "code": code, "msg": msg, "details": "" });
    Answer { stdout: said.to_string(), code: 1 }
}

/// String value of a member of the configuration; `None` if it is missing or not a string, or `config` is not a JSON object.
fn member(config: &str, key: &str) -> Option<String> {
    match serde_json::from_str::<Value>(config).ok()?.get_mut(key)?.take() {
        Value::String(text) => Some(text),
        _ => None,
    }
}

/// Request body: the `CNI_*` variables and the unmodified configuration.
fn request(config: &str, started: Duration) -> String {
    let env = std::env::vars_os()
        .map(|(key, value)| (key.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
        .filter(|(key, _)| key.starts_with("CNI_"))
        .collect();
    let started_ns = u64::try_from(started.as_nanos()).unwrap_or(0);
    let request = Request { env, config: config.to_owned(), started_ns };
    // Maps and strings can always be serialized.
    serde_json::to_string(&request).unwrap_or_default()
}

/// Sends one HTTP/1.1 request to the agent; returns the body of the response.
fn ask(socket: &str, body: &str, limit: Duration) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(LIMIT))?;
    let head = format!(
        "POST {} HTTP/1.1\r\nHost: slipstream\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        cni::PATH,
        body.len()
    );
    stream.write_all([head.as_bytes(), body.as_bytes()].concat().as_slice())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock => {
            io::Error::new(io::ErrorKind::TimedOut, format!("no response within {limit:?}"))
        }
        _ => e,
    })?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .ok_or_else(|| io::Error::other("connection closed without a response"))?;
    let status = head.split_whitespace().nth(1).unwrap_or_default();
    if status != "200" {
        return Err(io::Error::other(format!("HTTP status {status}: {body}")));
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    if length.is_some_and(|length| body.len() < length) {
        return Err(io::Error::other("connection closed in the middle of the response"));
    }
    Ok(body.to_owned())
}

/// Parses the agent's response into output and exit code.
fn read_reply(config: &str, text: &str) -> Answer {
    let reply = serde_json::from_str::<Reply>(text).ok();
    match reply.and_then(|reply| Some((reply.stdout, u8::try_from(reply.exit_code).ok()?))) {
        Some((stdout, code)) => Answer { stdout, code },
        None => {
            failure(config, code::AGENT_FAILURE, &format!("cannot parse the node agent's response: {text}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(answer: &Answer) -> Value {
        serde_json::from_str(&answer.stdout).unwrap()
    }

    #[test]
    fn the_answer_is_in_the_version_that_the_configuration_asks_for() {
        assert_eq!(said(&version(r#"{"cniVersion":"0.4.0"}"#))["cniVersion"], "0.4.0");
        assert_eq!(said(&version("no JSON"))["cniVersion"], "1.1.0");
        assert_eq!(said(&failure(r#"{"cniVersion":"1.0.0"}"#, 7, "x"))["cniVersion"], "1.0.0");
    }

    #[test]
    fn without_an_agent_del_succeeds_and_the_rest_may_be_tried_again() {
        assert_eq!(no_agent("DEL", "{}", "away"), Answer { stdout: String::new(), code: 0 });
        assert_eq!(said(&no_agent("ADD", "{}", "away"))["code"], code::TRY_AGAIN_LATER);
        assert_eq!(said(&no_agent("STATUS", "{}", "away"))["code"], code::NOT_AVAILABLE);
    }

    #[test]
    fn an_answer_that_is_not_understood_is_shown() {
        let good = read_reply("{}", r#"{"stdout":"out","exit_code":3,"more":1}"#);
        assert_eq!(good, Answer { stdout: "out".to_owned(), code: 3 });
        for bad in ["", "[]", r#"{"stdout":"out"}"#, r#"{"stdout":"out","exit_code":300}"#] {
            let answer = read_reply("{}", bad);
            assert_eq!((answer.code, &said(&answer)["code"]), (1, &json!(code::AGENT_FAILURE)), "{bad}");
        }
    }

    #[test]
    fn only_a_string_member_counts() {
        assert_eq!(member(r#"{"socket":"/a","socket":"/b"}"#, "socket").as_deref(), Some("/b"));
        for none in ["", "[]", r#"{"socket":1}"#, r#"{"other":{"socket":"/a"}}"#] {
            assert_eq!(member(none, "socket"), None, "{none}");
        }
    }
}
