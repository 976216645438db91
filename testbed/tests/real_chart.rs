//! The chart on real nodes: kubelets start OVN's databases, Open vSwitch, controller and agents as pods of the image, the nodes become
//! Ready by that alone, and pods reach services. Needs root, `cargo xtask setup` and `cargo xtask image --dev`.
#![expect(clippy::print_stdout, reason = "measured times are told")]

mod cli;

use std::time::Instant;

use cli::{eventually, run, succeed};

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
    an_uninstallation_gives_everything_back(name);
    succeed(name, &["down"]);
    assert_eq!(succeed(name, &["leftovers"]), "");
}

/// Removes the release: its hook ends when every node is as it was before the installation.
fn an_uninstallation_gives_everything_back(name: &str) {
    let begin = Instant::now();
    succeed(name, &["helm", "uninstall", "slipstream"]);
    println!("uninstalled after {:?}", begin.elapsed());
    for node in ["n1", "n2"] {
        assert_eq!(succeed(name, &["changes", node]), "", "{node}");
    }
    let objects = "daemonsets,deployments,statefulsets,jobs,secrets,configmaps,leases,serviceaccounts,roles,rolebindings";
    let left = succeed(name, &["kubectl", "-n", "kube-system", "get", objects, "-o", "name"]);
    let cluster = "clusterroles,clusterrolebindings,validatingadmissionpolicies,csr";
    let left = left + &succeed(name, &["kubectl", "get", cluster, "-o", "name"]);
    assert!(!left.contains("slipstream"), "{left}");
    let said = succeed(name, &["kubectl", "get", "nodes,pods", "-A", "-o", "json"]);
    assert!(!said.contains("k8s.ovn.org/") && !said.contains("slipstream.dev/cluster"), "{said}");
}

#[test]
fn nodes_become_ready_by_the_chart_alone_with_ebpf() {
    the_chart_makes_a_network("real-chart-ebpf", "ebpf");
}

#[test]
fn nodes_become_ready_by_the_chart_alone_with_ovs() {
    the_chart_makes_a_network("real-chart-ovs", "ovs");
}
