//! The chart on real nodes, of which the first one has etcd and API server: kubelets start OVN's databases, Open vSwitch, controller and agents
//! as pods of the image, the nodes become Ready by that alone, and pods reach services. Needs root, `cargo xtask setup` and `cargo xtask image --dev`.
#![expect(clippy::print_stdout, reason = "measured times are told")]

mod cli;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use cli::{Up, eventually, run, succeed};

/// Brings a cluster up by the chart, has a pod of one node reach a service of the other, and takes it down.
fn the_chart_makes_a_network(name: &str, datapath: &str) {
    succeed(name, &["down"]);
    let _up = Up(name);
    // It returns when all nodes are Ready and cluster DNS, a service, answers on each.
    let up = ["up", "--runtime", "containerd", "--install", "chart", "--control-plane", "node", "--datapath"];
    succeed(name, &[&up[..], &[datapath]].concat());
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
    for part in ["deployment/slipstream-controller", "statefulset/slipstream-ovn-central"] {
        succeed(name, &["kubectl", "-n", "kube-system", "rollout", "status", part, "--timeout=60s"]);
    }
    the_api_server_is_reached(name);
    // Of a DaemonSet that replaces nothing by itself there is no such status.
    for part in ["node", "ovs"] {
        let label = format!("app.kubernetes.io/component={part}");
        let ready = ["wait", "pod", "-l", &label, "--for=condition=Ready"];
        succeed(name, &[&["kubectl", "-n", "kube-system", "--request-timeout=60s"], &ready[..]].concat());
    }
    if datapath == "ovs" {
        another_setting_is_not_noticed(name, &url);
    } else {
        switch_and_agent_die_under_the_api_server(name, &url);
    }
    an_uninstallation_gives_everything_back(name);
    succeed(name, &["down"]);
    assert_eq!(succeed(name, &["leftovers"]), "");
}

/// Pods reach the API server by its service, on the node that it runs on and on the other: it was there before its node had a network, and
/// answers by an address that has moved from the interface to a bridge since.
fn the_api_server_is_reached(name: &str) {
    let ip = "jsonpath={.subsets[0].addresses[0].ip}";
    assert_eq!(succeed(name, &["kubectl", "get", "endpoints", "kubernetes", "-o", ip]), "172.18.0.2");
    succeed(name, &["pod", "add", "c", "--node", "n2"]);
    let url = "https://kubernetes.default.svc.cluster.local/version";
    for pod in ["a", "c"] {
        eventually(name, "an answer of the API server", || {
            let out = run(name, &["kubectl", "exec", pod, "--", "curl", "-sk", "-m", "5", url]);
            out.status.success() && String::from_utf8_lossy(&out.stdout).contains("gitVersion")
        });
    }
}

/// Kills Open vSwitch and the agent of the node with the API server. The kubelet that is to start them anew asks an API server whose address is
/// on a bridge that is Open vSwitch's.
fn switch_and_agent_die_under_the_api_server(name: &str, url: &str) {
    let programs = "^ovsdb-server /etc/openvswitch/conf.db|^ovs-vswitchd |^slipstream-node-agent run";
    let found = succeed(name, &["exec", "n1", "--", "pgrep", "-f", programs]);
    let pids: Vec<&str> = found.split_whitespace().collect();
    assert_eq!(pids.len(), 3, "{found}");
    succeed(name, &[&["exec", "n1", "--", "kill", "-9"][..], &pids].concat());
    let begin = Instant::now();
    eventually(name, "the API server's answer to another host", || {
        run(name, &["kubectl", "--request-timeout=2s", "get", "--raw", "/readyz"]).status.success()
    });
    println!(
        "the API server answers {:?} after Open vSwitch and the agent of its node were killed",
        begin.elapsed()
    );
    eventually(name, "an answer of the service", || {
        let out = run(name, &["kubectl", "exec", "a", "--", "curl", "-s", "-m", "2", url]);
        out.status.success() && out.stdout == b"b"
    });
    succeed(name, &["pod", "add", "after", "--node", "n1"]);
}

/// Has Helm replace databases, controllers, agents and ovn-controllers, by another log level, while new connections to a service are made.
/// Open vSwitch has nothing to do with that setting, and is left alone.
fn another_setting_is_not_noticed(name: &str, url: &str) {
    let before = succeed(name, &["kubectl", "-n", "kube-system", "get", "pods", "-o", "name"]);
    let done = AtomicBool::new(false);
    let answers = thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut answers = 0;
            while !done.load(Ordering::Relaxed) {
                // On a busy machine a SYN may have to be sent three times.
                succeed(name, &["pod", "exec", "a", "--", "curl", "-s", "-m", "8", "-o", "/dev/null", url]);
                answers += 1;
            }
            answers
        });
        let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/chart");
        let flags = ["helm", "upgrade", "slipstream", chart, "--reuse-values", "--set", "logLevel=debug"];
        succeed(name, &flags);
        let parts = [
            "deployment/slipstream-controller",
            "statefulset/slipstream-ovn-central",
            "daemonset/slipstream-node",
        ];
        for part in parts {
            let flags = ["kubectl", "-n", "kube-system", "rollout", "status", part, "--timeout=120s"];
            succeed(name, &flags);
        }
        done.store(true, Ordering::Relaxed);
        asking.join().expect("every connection is answered")
    });
    assert!(answers > 10, "{answers} answers");
    let after = succeed(name, &["kubectl", "-n", "kube-system", "get", "pods", "-o", "name"]);
    let kept = |list: &str, part: &str| {
        list.lines().filter(|pod| pod.contains(part)).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(kept(&after, "slipstream-ovs").len(), 2);
    assert_eq!(kept(&after, "slipstream-ovs"), kept(&before, "slipstream-ovs"));
    for pod in kept(&before, "slipstream-node") {
        assert!(!after.contains(&pod), "{pod} was not replaced: {after}");
    }
    assert_ne!(kept(&after, "slipstream-controller"), kept(&before, "slipstream-controller"));
    // What is made now has its network by the new ones.
    succeed(name, &["pod", "add", "after", "--node", "n2"]);
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
