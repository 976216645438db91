//! The chart on real nodes: kubelets start OVN's databases, Open vSwitch, controller and agents as pods of the image, the nodes become
//! Ready by that alone, and pods reach services. Needs root, `cargo xtask setup` and `cargo xtask image --dev`.

use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use testbed::cluster::Bed;
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

/// Brings a cluster up by the chart, and has a pod of one node reach a service of the other.
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
}

/// Uninstalls the chart: every node is given back its uplink, and nothing of the plugin is left on it.
fn the_chart_goes(name: &str) {
    let bed = Bed::open(name).expect("the cluster");
    exec::output(bed.helm_command().expect("helm").args(["uninstall", "slipstream"]))
        .expect("it is uninstalled");
    succeed(
        name,
        &[
            "kubectl",
            "-n",
            "kube-system",
            "rollout",
            "status",
            "daemonset/slipstream-cleanup",
            "--timeout=90s",
        ],
    );
    for (node, address) in [("n1", "172.18.0.2/16"), ("n2", "172.18.0.3/16")] {
        let on = |command: &[&str]| succeed(name, &[&["exec", node, "--"], command].concat());
        assert!(on(&["ip", "-br", "addr", "show", "eth0"]).contains(address), "the uplink of {node}");
        assert!(on(&["ip", "route"]).contains("default via 172.18.0.1 dev eth0"), "the route of {node}");
        assert_eq!(on(&["nft", "list", "tables"]), "");
        assert_eq!(on(&["ls", "/etc/cni/net.d", "/opt/cni/bin"]).matches("slipstream").count(), 0);
    }
}

fn down(name: &str) {
    succeed(name, &["down"]);
    assert_eq!(succeed(name, &["leftovers"]), "");
}

#[test]
fn nodes_become_ready_by_the_chart_alone_with_ebpf_and_are_given_back() {
    let name = "real-chart-ebpf";
    the_chart_makes_a_network(name, "ebpf");
    the_chart_goes(name);
    down(name);
}

#[test]
fn nodes_become_ready_by_the_chart_alone_with_ovs() {
    let name = "real-chart-ovs";
    the_chart_makes_a_network(name, "ovs");
    down(name);
}
