//! The chart on real nodes: kubelets start OVN's databases, Open vSwitch, controller and agents as pods of the image, the nodes become
//! Ready by that alone, and pods reach services. Needs root, `cargo xtask setup` and `cargo xtask image --dev`.

use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use testbed::exec;

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
        let pods = ["kubectl", "get", "pods", "-A", "-o", "wide"];
        assert!(Instant::now() < end, "{what} did not come: {}", succeed(name, &pods));
        thread::sleep(Duration::from_millis(500));
    }
}

/// Brings a cluster up by the chart, has a pod of one node reach a service of the other, and takes it down.
fn the_chart_makes_a_network(name: &str, datapath: &str) {
    succeed(name, &["down"]);
    // It returns when all nodes are Ready and cluster DNS, a service, answers on each.
    succeed(name, &["up", "--runtime", "containerd", "--install", "chart", "--datapath", datapath]);
    let ready = "jsonpath={.items[*].status.conditions[?(@.type==\"Ready\")].status}";
    assert_eq!(succeed(name, &["kubectl", "get", "nodes", "-o", ready]), "True True");
    // Nothing of Slipstream, OVN or OVS is a process of the bed.
    let status = succeed(name, &["status"]);
    for process in ["ovs-vswitchd", "ovn-controller", "node-agent", "controller runs"] {
        assert!(!status.lines().any(|line| line.trim_start().starts_with(process)), "{process}: {status}");
    }

    succeed(name, &["pod", "add", "a", "--node", "n1"]);
    succeed(name, &["pod", "add", "b", "--node", "n2"]);
    succeed(name, &["kubectl", "expose", "pod", "b", "--name=b", "--port=80", "--target-port=8080"]);
    let address = succeed(name, &["kubectl", "get", "service", "b", "-o", "jsonpath={.spec.clusterIP}"]);
    let url = format!("http://{address}/hostname");
    eventually(name, "an answer of the service", || {
        let out = run(name, &["kubectl", "exec", "a", "--", "curl", "-s", "-m", "2", &url]);
        out.status.success() && out.stdout == b"b"
    });
    for part in [
        "deployment/slipstream-controller",
        "statefulset/slipstream-ovn-central",
        "daemonset/slipstream-node",
    ] {
        succeed(name, &["kubectl", "-n", "kube-system", "rollout", "status", part, "--timeout=60s"]);
    }
    succeed(name, &["down"]);
    assert_eq!(succeed(name, &["leftovers"]), "");
}

#[test]
fn nodes_become_ready_by_the_chart_alone_with_ebpf() {
    the_chart_makes_a_network("real-chart-ebpf", "ebpf");
}

#[test]
fn nodes_become_ready_by_the_chart_alone_with_ovs() {
    the_chart_makes_a_network("real-chart-ovs", "ovs");
}
