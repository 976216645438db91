//! The CNI executable: environment and standard input go to the agent's socket, the agent's answer comes back.
//!
//! Made of the standard library alone, as it is started for every pod and must start within a millisecond. It decides
//! only what must be decided without an agent: VERSION is answered here; with no agent there, STATUS says 50, DEL
//! succeeds (the agent, when it starts, removes what belongs to a sandbox that is gone), and everything else says 11.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

#[path = "cni/json.rs"]
mod json;

/// Default of the configuration's `socket`.
const SOCKET: &str = "/run/slipstream/cni.sock";
/// The agent's resource.
const PATH: &str = "/cni/v1";
/// The agent gives up an ADD after 110 s, everything else is quick.
const ADD_LIMIT: Duration = Duration::from_secs(118);
const LIMIT: Duration = Duration::from_secs(30);

/// What to print and to return.
struct Answer {
    stdout: String,
    code: u8,
}

fn main() -> ExitCode {
    let started = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let Some(command) = std::env::var_os("CNI_COMMAND").map(|c| c.to_string_lossy().into_owned()) else {
        say(
            "slipstream-cni: CNI plugin of Slipstream; CNI 0.3.1, 0.4.0, 1.0.0 and 1.1.0. Run by a container runtime.",
        );
        return ExitCode::SUCCESS;
    };
    let answer = run(&command, started);
    let mut stdout = io::stdout().lock();
    // Nobody is there to be told when the runtime does not read its answer.
    let _ = stdout.write_all(answer.stdout.as_bytes()).and_then(|()| stdout.flush());
    ExitCode::from(answer.code)
}

fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

fn run(command: &str, started: Duration) -> Answer {
    let mut config = Vec::new();
    let read = io::stdin().lock().read_to_end(&mut config);
    let config = String::from_utf8_lossy(&config);
    if command == "VERSION" {
        return version(&config);
    }
    if let Err(e) = read {
        return failure(&config, 5, &format!("standard input cannot be read: {e}"));
    }
    let socket = json::member(&config, "socket").unwrap_or_else(|| SOCKET.to_owned());
    match ask(&socket, &request(&config, started), if command == "ADD" { ADD_LIMIT } else { LIMIT }) {
        Ok(reply) => read_reply(&config, &reply),
        Err(e) => no_agent(command, &config, &format!("node agent at {socket}: {e}")),
    }
}

fn no_agent(command: &str, config: &str, problem: &str) -> Answer {
    match command {
        "DEL" => {
            say(&format!("slipstream-cni: {problem}; the agent will clear up when it starts"));
            Answer { stdout: String::new(), code: 0 }
        }
        "STATUS" => failure(config, 50, problem),
        _ => failure(config, 11, problem),
    }
}

fn version(config: &str) -> Answer {
    let version = json::member(config, "cniVersion").unwrap_or_else(|| "1.1.0".to_owned());
    let mut out = String::from("{\"cniVersion\":");
    json::string(&mut out, &version);
    out.push_str(",\"supportedVersions\":[\"0.3.1\",\"0.4.0\",\"1.0.0\",\"1.1.0\"]}");
    Answer { stdout: out, code: 0 }
}

fn failure(config: &str, code: u32, msg: &str) -> Answer {
    let version = json::member(config, "cniVersion").unwrap_or_else(|| "1.1.0".to_owned());
    let mut out = String::from("{\"cniVersion\":");
    json::string(&mut out, &version);
    out.push_str(&format!(",\"code\":{code},\"msg\":"));
    json::string(&mut out, msg);
    out.push_str(",\"details\":\"\"}");
    Answer { stdout: out, code: 1 }
}

/// The body: `{"env":{...},"config":"...","started_ns":N}`.
fn request(config: &str, started: Duration) -> String {
    let mut out = String::with_capacity(1024 + config.len());
    out.push_str("{\"env\":{");
    let mut first = true;
    for (key, value) in std::env::vars_os() {
        let key = key.to_string_lossy();
        if !key.starts_with("CNI_") {
            continue;
        }
        if !first {
            out.push(',');
        }
        first = false;
        json::string(&mut out, &key);
        out.push(':');
        json::string(&mut out, &value.to_string_lossy());
    }
    out.push_str("},\"config\":");
    json::string(&mut out, config);
    out.push_str(&format!(",\"started_ns\":{}}}", started.as_nanos()));
    out
}

/// One HTTP/1.1 exchange. Returns the body of the answer.
fn ask(socket: &str, body: &str, limit: Duration) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(LIMIT))?;
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nHost: slipstream\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all([head.as_bytes(), body.as_bytes()].concat().as_slice())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock => {
            io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {limit:?}"))
        }
        _ => e,
    })?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .ok_or_else(|| io::Error::other("the connection ended without an answer"))?;
    let status = head.split_whitespace().nth(1).unwrap_or_default();
    if status != "200" {
        return Err(io::Error::other(format!("HTTP status {status}: {body}")));
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    if length.is_some_and(|length| body.len() < length) {
        return Err(io::Error::other("the connection ended in the middle of the answer"));
    }
    Ok(body.to_owned())
}

/// The body of the answer: `{"stdout":"...","exit_code":N}`.
fn read_reply(config: &str, reply: &str) -> Answer {
    let code = json::number(reply, "exit_code").and_then(|code| u8::try_from(code).ok());
    match (json::member(reply, "stdout"), code) {
        (Some(stdout), Some(code)) => Answer { stdout, code },
        _ => failure(config, 100, &format!("the node agent's answer is not understood: {reply}")),
    }
}
