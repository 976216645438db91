//! The test bed's command line, for tests of real nodes.

use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use testbed::exec;

fn testbed(name: &str, args: &[&str]) -> Command {
    let mut command = exec::command(env!("CARGO_BIN_EXE_testbed"));
    command.args(["--name", name]).args(args);
    command
}

pub(crate) fn run(name: &str, args: &[&str]) -> Output {
    testbed(name, args).output().expect("testbed starts")
}

pub(crate) fn succeed(name: &str, args: &[&str]) -> String {
    let out = run(name, args);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "testbed {args:?}: {text}{}", String::from_utf8_lossy(&out.stderr));
    text
}

pub(crate) fn eventually(name: &str, what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(90);
    while !holds() {
        if Instant::now() >= end {
            let pods = run(name, &["kubectl", "--request-timeout=10s", "get", "pods", "-A", "-o", "wide"]);
            panic!("{what} did not come: {pods:?}");
        }
        thread::sleep(Duration::from_millis(500));
    }
}

/// Takes a cluster down when a test that fails drops it: what goes on running would disturb other tests.
pub(crate) struct Up<'a>(pub(crate) &'a str);

impl Drop for Up<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let _ = testbed(self.0, &["down"]).status();
        }
    }
}
