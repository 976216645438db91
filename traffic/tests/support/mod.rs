//! Starts both ends, on loopback or in network namespaces.
#![allow(dead_code, reason = "each test file uses a part")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

/// The program.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_slipstream-traffic");

/// A command, in a network namespace if one is given.
#[expect(clippy::disallowed_methods, reason = "the tests start both ends as their users do")]
pub(crate) fn command(namespace: Option<&str>, program: &str) -> Command {
    match namespace {
        None => Command::new(program),
        Some(name) => {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", name, program]);
            command
        }
    }
}

/// A server; it ends with this.
pub(crate) struct Server(Child);

impl Server {
    /// Starts one and waits until it serves.
    pub(crate) fn start(namespace: Option<&str>, args: &[&str]) -> Self {
        let mut command = command(namespace, PROGRAM);
        let mut child = command.arg("serve").args(args).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("serving"), "{line:?}");
        Self(child)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A run, of 0.3 s, and what it printed.
pub(crate) fn run(namespace: Option<&str>, args: &[&str]) -> Output {
    let mut command = command(namespace, PROGRAM);
    command.args(["run", "--quiet", "--json", "-", "--time", "0.3", "--warm-up", "0.1"]).args(args);
    command.output().unwrap()
}

/// A run that must succeed, as JSON.
pub(crate) fn result(namespace: Option<&str>, args: &[&str]) -> Value {
    let out = run(namespace, args);
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

/// A run that must fail, and its error.
pub(crate) fn failure(namespace: Option<&str>, args: &[&str]) -> String {
    let out = run(namespace, args);
    assert!(!out.status.success(), "{args:?} succeeded");
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// A number of the first row.
pub(crate) fn number(document: &Value, path: &str) -> u64 {
    let at = document.pointer(&format!("/rows/0/{path}"));
    at.and_then(Value::as_u64).unwrap_or_else(|| panic!("no {path} in {document:#}"))
}

/// Two namespaces with a veth pair between them; they go with this.
pub(crate) struct Pair {
    pub(crate) client: String,
    pub(crate) server: String,
}

/// The server's addresses.
pub(crate) const SERVER: &str = "10.99.0.2";
pub(crate) const SERVER6: &str = "fd99::2";

impl Pair {
    /// Makes them; `name` is one that no other test of this process has.
    pub(crate) fn new(name: &str) -> Self {
        let of = |end: &str| format!("traffic-{}-{name}-{end}", std::process::id());
        let pair = Self { client: of("c"), server: of("s") };
        ip(&format!("netns add {}", pair.client));
        ip(&format!("netns add {}", pair.server));
        ip(&format!("-n {} link add eth0 type veth peer name eth0 netns {}", pair.client, pair.server));
        for (end, number) in [(&pair.client, 1), (&pair.server, 2)] {
            ip(&format!("-n {end} addr add 10.99.0.{number}/24 dev eth0"));
            ip(&format!("-n {end} addr add fd99::{number}/64 dev eth0 nodad"));
            ip(&format!("-n {end} link set lo up"));
            ip(&format!("-n {end} link set eth0 up"));
        }
        pair
    }

    /// Drops packets that come to the server: `rule` says which.
    pub(crate) fn drop_at_server(&self, rule: &str) {
        let nft = |line: &str| {
            let out = command(Some(&self.server), "nft").args(line.split(' ')).output().unwrap();
            assert!(out.status.success(), "nft {line}: {}", String::from_utf8_lossy(&out.stderr));
        };
        nft("add table inet t");
        nft("add chain inet t in { type filter hook prerouting priority 0 ; }");
        nft(&format!("add rule inet t in {rule} drop"));
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for name in [&self.client, &self.server] {
            let _ = command(None, "ip").args(["netns", "del", name]).status();
        }
    }
}

fn ip(line: &str) {
    let out = command(None, "ip").args(line.split(' ')).output().unwrap();
    assert!(out.status.success(), "ip {line}: {} (root is needed)", String::from_utf8_lossy(&out.stderr));
}
