//! `slipctl compare` against an agent of the test's own: whatever ends a measurement, the last that the agent hears is to take the
//! path back.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "runs slipctl")]

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(20);

/// An agent: where it listens, and what it was asked, with the body.
struct Agent {
    socket: PathBuf,
    asked: Receiver<(String, Value)>,
    _directory: tempfile::TempDir,
}

/// Status and body of the answer to a request.
type Answer = fn(&str, &Value) -> (u16, Value);

impl Agent {
    fn start(answer: Answer) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("admin.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let (tell, asked) = channel();
        thread::Builder::new()
            .spawn(move || {
                for stream in listener.incoming() {
                    let (resource, body) = request(stream.unwrap(), answer);
                    if tell.send((resource, body)).is_err() {
                        return;
                    }
                }
            })
            .unwrap();
        Self { socket, asked, _directory: directory }
    }

    fn compare(&self, words: &[&str]) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_slipctl"));
        command.arg("--socket").arg(&self.socket).arg("compare").args(words);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// The next request for a path: path and time.
    fn path(&self) -> (Value, Value) {
        loop {
            let (resource, body) = self.asked.recv_timeout(SOON).unwrap();
            if resource == "/v1/path/service" {
                return (body["path"].clone(), body["forMs"].clone());
            }
        }
    }

    /// What was asked until now and not looked at.
    fn rest(&self) -> Vec<(String, Value)> {
        self.asked.try_iter().collect()
    }
}

/// Answers one request, and returns it.
fn request(mut stream: UnixStream, answer: Answer) -> (String, Value) {
    let mut text = String::new();
    let mut part = [0; 4096];
    let (head, body) = loop {
        let length = stream.read(&mut part).unwrap();
        text.push_str(std::str::from_utf8(&part[..length]).unwrap());
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length: usize =
            head.lines().find_map(|l| l.strip_prefix("Content-Length: ")).unwrap().parse().unwrap();
        if body.len() >= length {
            break (head, body);
        }
    };
    let resource = head.split(' ').nth(1).unwrap().to_owned();
    let body: Value = serde_json::from_str(body).unwrap();
    let (status, reply) = answer(&resource, &body);
    write!(stream, "HTTP/1.1 {status} x\r\n\r\n{reply}").unwrap();
    (resource, body)
}

fn shown() -> Value {
    json!({"service": "shop/web", "wanted": "ebpf", "temporary": false, "path": "ebpf", "reason": "", "addresses": []})
}

/// Answers of an agent whose service has no traffic.
fn quiet(resource: &str, _: &Value) -> (u16, Value) {
    let mut reply = shown();
    if resource == "/v1/services/totals" {
        reply["atMs"] = 1.into();
        reply["backends"] = json!([]);
    }
    (200, reply)
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn a_signal_ends_the_measurement_and_the_path_is_given_back() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let agent = Agent::start(quiet);
        let child = agent.compare(&["shop/web", "--seconds", "300"]);
        assert_eq!(agent.path(), (Value::Null, Value::Null), "asked for the path before");
        let (path, time) = agent.path();
        assert!(path == "ovs" && time.as_u64().is_some_and(|ms| ms > 100_000), "{path} {time}");
        kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{signal}: {}", text(&output));
        assert!(
            text(&output).contains("interrupted; the path of shop/web is ebpf as before"),
            "{}",
            text(&output)
        );
        assert_eq!(agent.path(), (Value::Null, 0.into()));
        assert_eq!(agent.rest(), []);
    }
}

#[test]
fn an_error_of_the_agent_ends_it_too_and_is_told() {
    let agent = Agent::start(|resource, body| match resource {
        "/v1/services/totals" => (500, json!({"error": "cannot read map FLOWS"})),
        _ => quiet(resource, body),
    });
    let output = agent.compare(&["shop/web"]).wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("cannot read map FLOWS"), "{}", text(&output));
    assert_eq!((agent.path().1, agent.path().0), (Value::Null, "ovs".into()));
    assert_eq!(agent.path(), (Value::Null, 0.into()));
}

#[test]
fn an_agent_that_was_restarted_meanwhile_has_measured_nothing() {
    static CLOCK: AtomicU64 = AtomicU64::new(1_000);
    let agent = Agent::start(|resource, body| {
        let (status, mut reply) = quiet(resource, body);
        if resource == "/v1/services/totals" {
            reply["atMs"] = CLOCK.fetch_sub(1, Ordering::Relaxed).into();
        }
        (status, reply)
    });
    let output = agent.compare(&["shop/web", "--seconds", "3"]).wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("the agent was restarted"), "{}", text(&output));
    assert_eq!(agent.rest().last().unwrap().1["forMs"], 0);
}

#[test]
fn a_service_that_does_not_exist_is_never_touched() {
    let agent = Agent::start(|_, body| (404, json!({"error": format!("no service `{}`", body["service"])})));
    let output = agent.compare(&["shop/no"]).wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("shop/no"), "{}", text(&output));
    assert_eq!(agent.path(), (Value::Null, Value::Null));
    assert_eq!(agent.rest(), []);
}

#[test]
fn without_traffic_both_paths_were_tried_in_turn_and_it_says_so() {
    let agent = Agent::start(quiet);
    let output = agent.compare(&["shop/web", "--seconds", "3"]).wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert!(text(&output).contains("no traffic") && text(&output).contains("shop/web"), "{}", text(&output));
    let paths: Vec<Value> = (0..8).map(|_| agent.path().0).collect();
    let words: Vec<Option<&str>> = paths.iter().map(Value::as_str).collect();
    let [ovs, ebpf] = ["ovs", "ebpf"].map(Some);
    assert_eq!(words, [None, ovs, ebpf, ebpf, ovs, ovs, ebpf, None]);
}

#[test]
fn a_socket_that_nobody_listens_at_is_named() {
    let output = Command::new(env!("CARGO_BIN_EXE_slipctl"))
        .args(["--socket", "/nonexistent/admin.sock", "compare", "shop/web"])
        .output()
        .unwrap();
    assert!(
        output.status.code() == Some(3)
            && text(&output).contains(Path::new("/nonexistent").to_str().unwrap())
    );
}
