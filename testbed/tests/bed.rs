//! A bed leaves nothing behind, whatever happens to the command that brings it up. Needs root and `cargo xtask setup`.

use std::fs;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use testbed::cluster::leftovers;
use testbed::exec;

fn testbed(name: &str, args: &[&str]) -> Command {
    let mut command = exec::command(env!("CARGO_BIN_EXE_testbed"));
    command.args(["--name", name]).args(args);
    command
}

fn run(name: &str, args: &[&str]) -> Output {
    testbed(name, args).output().expect("testbed starts")
}

/// Fails with what the command printed.
fn succeed(name: &str, args: &[&str]) -> String {
    let out = run(name, args);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "testbed {args:?}: {text}{}", String::from_utf8_lossy(&out.stderr));
    text
}

fn nothing_is_left(name: &str) {
    let left = succeed(name, &["leftovers"]);
    assert_eq!(left, "");
}

#[test]
fn nothing_is_left_when_up_is_killed_at_any_moment() {
    let interfaces = leftovers::interfaces().unwrap();
    for after in [5, 20, 60, 150, 400, 1200] {
        let name = format!("killed-{after}");
        let mut up = testbed(&name, &["up", "--no-plugin"]).stdout(Stdio::null()).spawn().unwrap();
        thread::sleep(Duration::from_millis(after));
        up.kill().unwrap();
        up.wait().unwrap();
        succeed(&name, &["down"]);
        nothing_is_left(&name);
    }
    assert_eq!(leftovers::interfaces().unwrap(), interfaces);
}

#[test]
fn two_beds_do_not_meet_and_down_ends_only_its_own() {
    let (one, other) = ("pair-1", "pair-2");
    succeed(one, &["up", "--no-plugin"]);
    succeed(other, &["up", "--no-plugin"]);
    // The same addresses in both; each sees its own nodes only.
    succeed(one, &["kubectl", "label", "node", "n1", "bed=one"]);
    let labels = succeed(other, &["kubectl", "get", "node", "n1", "-o", "jsonpath={.metadata.labels.bed}"]);
    assert_eq!(labels, "");
    succeed(one, &["down"]);
    nothing_is_left(one);
    succeed(other, &["exec", "n1", "--", "ping", "-c1", "-W2", "172.18.0.3"]);
    succeed(other, &["down"]);
    nothing_is_left(other);
}

#[test]
fn a_bed_that_is_up_cannot_be_brought_up_again() {
    let name = "twice";
    succeed(name, &["up", "--no-plugin"]);
    let again = run(name, &["up", "--no-plugin"]);
    assert!(!again.status.success());
    assert!(String::from_utf8_lossy(&again.stdout).contains("exists"));
    succeed(name, &["exec", "n1", "--", "true"]);
    succeed(name, &["down"]);
    nothing_is_left(name);
    // A second `down` has nothing to do, and says so.
    assert!(succeed(name, &["down"]).contains("no cluster"));
}

#[test]
fn a_process_of_a_host_can_be_killed_and_restarted() {
    let name = "restart";
    succeed(name, &["up", "--no-plugin", "--nodes", "1"]);
    let pid = || {
        let status = succeed(name, &["status"]);
        let line = status.lines().find(|l| l.contains("ovs-vswitchd")).unwrap().to_owned();
        assert!(line.contains("runs"), "{line}");
        line
    };
    let before = pid();
    succeed(name, &["restart", "n1", "ovs-vswitchd"]);
    assert_ne!(pid(), before);
    assert!(!run(name, &["restart", "n1", "no-such-process"]).status.success());
    succeed(name, &["down"]);
    nothing_is_left(name);
    assert!(!fs::exists(testbed_dir(name)).unwrap());
}

/// A pod on each node, and a service of the second one's.
const IPV6_ONLY: &str = r#"
{"apiVersion": "v1", "kind": "List", "items": [
  {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"},
    "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "x", "ports": [{"containerPort": 8080}]}]}},
  {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "b", "labels": {"app": "b"}},
    "spec": {"nodeName": "n2", "containers": [{"name": "c", "image": "x", "ports": [{"containerPort": 8080}]}]}},
  {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "b"},
    "spec": {"type": "NodePort", "selector": {"app": "b"}, "ports": [{"port": 80, "targetPort": 8080, "nodePort": 30080}]}}
]}"#;

#[test]
fn a_cluster_of_ipv6_alone_has_no_ipv4_address_and_serves() {
    for datapath in ["ebpf", "ovs"] {
        let name = format!("six-{datapath}");
        succeed(&name, &["up", "--ipv6-only", "--datapath", datapath]);
        let objects = testbed_dir(&name).join("objects.json");
        fs::write(&objects, IPV6_ONLY).unwrap();
        succeed(&name, &["kubectl", "apply", "-f", objects.to_str().unwrap()]);
        succeed(&name, &["kubectl", "wait", "--for=condition=Ready", "--timeout=60s", "pod/a", "pod/b"]);
        let field = |object: &str, path: &str| {
            succeed(&name, &["kubectl", "get", object, "-o", &format!("jsonpath={{{path}}}")])
        };
        let (pod, service) = (field("pod/b", ".status.podIP"), field("service/b", ".spec.clusterIP"));
        let nodes = ["n1", "n2"].map(|node| field(&format!("node/{node}"), ".status.addresses[0].address"));
        let program = env!("CARGO_BIN_EXE_testbed");
        let dial = |from: &[&str], to: &str, port: &str| {
            let asked = ["--", program, "probe", "dial", "--timeout", "1", to, port];
            String::from_utf8_lossy(&run(&name, &[from, &asked].concat()).stdout).into_owned()
        };
        let (in_pod, on_node, outside) = (["pod", "exec", "a"], ["exec", "n1"], ["exec", "ext"]);
        let mut ways = vec![(&in_pod[..], pod.as_str(), "8080"), (&in_pod, &service, "80")];
        ways.extend([(&on_node[..], pod.as_str(), "8080"), (&on_node, &service, "80")]);
        ways.extend(nodes.iter().map(|node| (&outside[..], node.as_str(), "30080")));
        for (from, to, port) in ways {
            // The answer is the name of the pod and the address that it saw.
            let answers = |_| dial(from, to, port).starts_with("b fd");
            assert!((0..10).any(answers), "{datapath}: {from:?} to {to}: {}", dial(from, to, port));
        }
        let four = succeed(&name, &["exec", "n1", "--", "ip", "-4", "-oneline", "address"]);
        assert!(four.lines().all(|line| line.contains(" 127.0.0.1/8 ")), "{four}");
        succeed(&name, &["verify"]);
        succeed(&name, &["down"]);
        nothing_is_left(&name);
    }
}

fn testbed_dir(name: &str) -> std::path::PathBuf {
    testbed::cluster::config::Config::new(name, 1).expect("a good name").dir
}
