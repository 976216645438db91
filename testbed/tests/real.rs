//! Real nodes: they become Ready by our plugin alone, run containers, live through restarts and a reboot, and leave
//! nothing behind. Needs root and `cargo xtask setup`.

use std::fs;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use testbed::exec;

/// What a kubelet would change.
const SETTINGS: &[&str] = &[
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
];

fn testbed(name: &str, args: &[&str]) -> Command {
    let mut command = exec::command(env!("CARGO_BIN_EXE_testbed"));
    command.args(["--name", name]).args(args);
    command
}

fn run(name: &str, args: &[&str]) -> Output {
    testbed(name, args).output().expect("testbed starts")
}

fn succeed(name: &str, args: &[&str]) -> String {
    let out = run(name, args);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "testbed {args:?}: {text}{}", String::from_utf8_lossy(&out.stderr));
    text
}

fn eventually(name: &str, what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(90);
    while !holds() {
        assert!(Instant::now() < end, "{what} did not come: {}", succeed(name, &["status"]));
        thread::sleep(Duration::from_millis(500));
    }
}

fn settings() -> Vec<String> {
    let read = |key: &&str| fs::read_to_string(format!("/proc/sys/{key}")).expect("a setting");
    SETTINGS.iter().map(read).collect()
}

fn up(name: &str) -> Command {
    testbed(name, &["up", "--runtime", "containerd", "--datapath", "ovs"])
}

/// Processes, mounts, control groups, changed settings and files.
fn nothing_is_left(name: &str) {
    assert_eq!(succeed(name, &["leftovers"]), "");
}

#[test]
fn real_nodes_run_containers_live_through_a_reboot_and_leave_nothing() {
    let name = "real";
    let before = settings();
    let out = up(name).output().expect("testbed starts");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
    assert_eq!(settings(), before);
    // Its own view is what a kubelet asks for.
    assert_eq!(succeed(name, &["exec", "n1", "--", "cat", "/proc/sys/vm/overcommit_memory"]).trim(), "1");

    succeed(name, &["pod", "add", "a", "--node", "n1"]);
    succeed(name, &["pod", "add", "b", "--node", "n2"]);
    let jsonpath = |pod: &str, path: &str| {
        succeed(name, &["kubectl", "get", "pod", pod, "-o", &format!("jsonpath={path}")])
    };
    let ip = jsonpath("b", "{.status.podIP}");
    let answers = |answer: &Output| String::from_utf8_lossy(&answer.stdout).contains("b 10.244.");
    // From inside a container, from the pod's network, and from the API server, which is no node.
    let url = format!("http://{ip}:8080/hostname");
    eventually(name, "an answer to a container", || {
        let out = run(name, &["kubectl", "exec", "a", "--", "curl", "-s", "-m", "2", &url]);
        out.status.success() && out.stdout == b"b"
    });
    assert!(answers(&run(name, &["pod", "exec", "a", "--", "probe", "dial", "--netexec", &ip, "8080"])));
    let proxy = "/api/v1/namespaces/default/pods/b:8080/proxy/hostname";
    assert_eq!(succeed(name, &["kubectl", "get", "--raw", proxy]), "b");

    // A container outlives its runtime and its kubelet.
    let started = jsonpath("b", "{.status.containerStatuses[0].state.running.startedAt}");
    succeed(name, &["restart", "n2", "containerd"]);
    succeed(name, &["restart", "n2", "kubelet"]);
    assert!(answers(&run(name, &["pod", "exec", "a", "--", "probe", "dial", "--netexec", &ip, "8080"])));
    assert_eq!(jsonpath("b", "{.status.containerStatuses[0].state.running.startedAt}"), started);

    // What ends by itself is started again, as by a service manager.
    let runtime = || {
        let status = succeed(
            name,
            &["exec", "n2", "--", "sh", "-c", "for p in /proc/[0-9]*; do cat $p/comm; echo $p; done"],
        );
        let mut lines = status.lines();
        lines.find(|l| *l == "containerd").and_then(|_| lines.next()).map(|p| p.replace("/proc/", ""))
    };
    let killed = runtime().expect("containerd runs");
    succeed(name, &["exec", "n2", "--", "kill", "-9", &killed]);
    eventually(name, "another containerd", || runtime().is_some_and(|pid| pid != killed));

    // A node that is rebooted has the containers of its pods started again by what is on its disk.
    succeed(name, &["reboot", "n2"]);
    eventually(name, "the pod after the reboot", || {
        jsonpath("b", "{.status.containerStatuses[0].restartCount}") == "1"
            && jsonpath("b", "{.status.containerStatuses[0].ready}") == "true"
    });
    eventually(name, "its answer", || {
        let ip = jsonpath("b", "{.status.podIP}");
        answers(&run(name, &["pod", "exec", "a", "--", "probe", "dial", "--netexec", &ip, "8080"]))
    });

    succeed(name, &["down"]);
    nothing_is_left(name);
    assert_eq!(settings(), before);
}

#[test]
fn nothing_is_left_of_real_nodes_when_up_is_killed() {
    let before = settings();
    // While hosts are made, while the runtimes start, and with the first containers.
    for after in [100, 1500, 9000] {
        let name = format!("real-killed-{after}");
        let mut up = up(&name).stdout(Stdio::null()).spawn().expect("testbed starts");
        thread::sleep(Duration::from_millis(after));
        up.kill().expect("it is killed");
        up.wait().expect("it has ended");
        succeed(&name, &["down"]);
        nothing_is_left(&name);
    }
    assert_eq!(settings(), before);
}
