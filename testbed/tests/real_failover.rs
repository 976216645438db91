//! Losses of the chart's central part, on three real nodes with a Raft cluster of databases and two controllers: pods that are made
//! meanwhile have their network within 20 s, pods that were there keep theirs. Needs root, `cargo xtask setup` and
//! `cargo xtask image --dev`.
#![expect(clippy::print_stdout, reason = "measured times are told")]

mod cli;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cli::{Up, eventually, run, succeed};

const NAME: &str = "real-failover";
/// Longest time from a pod's object until it runs with its network, whatever was lost.
const LIMIT: Duration = Duration::from_secs(20);
/// Where the churn's pods are, which is not where the databases' leaders are looked for first.
const NODE: &str = "n3";
const CENTRAL: [&str; 3] =
    ["slipstream-ovn-central-0", "slipstream-ovn-central-1", "slipstream-ovn-central-2"];

fn kubectl(args: &[&str]) -> String {
    succeed(NAME, &[&["kubectl"], args].concat())
}

/// Runs a command in a container of the databases, if it runs.
fn in_central(pod: &str, command: &[&str]) -> Option<String> {
    let out = run(NAME, &[&["kubectl", "-n", "kube-system", "exec", pod, "--"], command].concat());
    out.status.success().then(|| String::from_utf8_lossy(&out.stdout).into_owned())
}

/// The pod whose server leads the cluster of a database.
fn leader(database: &str) -> &'static str {
    let control = format!("/run/ovn/ovn{}_db.ctl", if database == "OVN_Northbound" { "nb" } else { "sb" });
    let leads = |pod: &&str| {
        let status = in_central(pod, &["ovs-appctl", "-t", &control, "cluster/status", database]);
        status.is_some_and(|said| said.lines().any(|line| line == "Role: leader"))
    };
    CENTRAL.into_iter().find(leads).expect("a leader")
}

/// Adds a pod, which is Ready when OVN has its flows, and deletes it; the time until it was Ready.
fn pod_comes_and_goes(pod: &str) -> Duration {
    let begin = Instant::now();
    succeed(NAME, &["pod", "add", pod, "--node", NODE]);
    let took = begin.elapsed();
    kubectl(&["delete", "pod", pod, "--wait=false"]);
    took
}

/// Has pods come and go while something is lost, and some more afterwards; the longest time until one was Ready.
fn under_churn(what: &str, lose: impl FnOnce()) -> Duration {
    let (begun, lost) = (AtomicBool::new(false), AtomicBool::new(false));
    let longest = thread::scope(|scope| {
        let churn = scope.spawn(|| {
            let mut longest = Duration::ZERO;
            let mut after = 0;
            for count in 0.. {
                longest = longest.max(pod_comes_and_goes(&format!("{what}-{count}")));
                begun.store(true, Ordering::Relaxed);
                after += u32::from(lost.load(Ordering::Relaxed));
                if after == 3 {
                    break;
                }
            }
            longest
        });
        while !begun.load(Ordering::Relaxed) && !churn.is_finished() {
            thread::sleep(Duration::from_millis(50));
        }
        lose();
        lost.store(true, Ordering::Relaxed);
        churn.join().expect("the churn goes on")
    });
    println!("{what}: the longest time until a pod was ready: {longest:.1?}");
    assert!(longest < LIMIT, "{what}: {longest:?}");
    longest
}

/// Whether pods that were there reach each other.
fn others_go_on() {
    assert_eq!(answer(), "b");
}

/// What one of two pods that were there says to the other.
fn answer() -> String {
    let address = kubectl(&["get", "pod", "b", "-o", "jsonpath={.status.podIP}"]);
    let url = format!("http://{address}:8080/hostname");
    let out = run(NAME, &["kubectl", "exec", "a", "--", "curl", "-s", "-m", "2", &url]);
    String::from_utf8_lossy(&out.stdout).into_owned()
}

fn all_are_ready() {
    for part in ["statefulset/slipstream-ovn-central", "deployment/slipstream-controller"] {
        kubectl(&["-n", "kube-system", "rollout", "status", part, "--timeout=90s"]);
    }
}

/// Kills the databases' servers of a pod, which then starts again, as after a crash.
fn kill_servers(pod: &str) {
    in_central(pod, &["busybox", "killall", "-9", "ovsdb-server"]).expect("servers to kill");
}

#[test]
fn losses_of_the_central_part_are_survived() {
    succeed(NAME, &["down"]);
    let _up = Up(NAME);
    succeed(NAME, &["up", "--runtime", "containerd", "--install", "chart", "--nodes", "3"]);
    succeed(NAME, &["pod", "add", "a", "--node", "n1"]);
    succeed(NAME, &["pod", "add", "b", "--node", "n2"]);
    all_are_ready();

    under_churn("nb-leader", || kill_servers(leader("OVN_Northbound")));
    others_go_on();
    all_are_ready();
    under_churn("sb-leader", || kill_servers(leader("OVN_Southbound")));
    others_go_on();

    let holder = || {
        kubectl(&[
            "-n",
            "kube-system",
            "get",
            "lease",
            "slipstream-controller",
            "-o",
            "jsonpath={.spec.holderIdentity}",
        ])
    };
    let first = holder();
    let node = first.split('_').next().expect("a host name").to_owned();
    under_churn("controller", || {
        succeed(NAME, &["exec", &node, "--", "killall", "-9", "slipstream-controller"]);
    });
    assert_ne!(holder(), first, "another one leads");
    others_go_on();
    all_are_ready();

    // Every file of every database: Kubernetes' objects are what they are made from.
    for pod in CENTRAL {
        in_central(pod, &["sh", "-c", "rm /var/lib/ovn/*.db"]).expect("files to remove");
    }
    let begin = Instant::now();
    CENTRAL.into_iter().for_each(kill_servers);
    eventually(NAME, "a pod's port in the new database", || {
        let list = in_central(CENTRAL[0], &["ovn-nbctl", "--timeout=5", "--no-leader-only", "show"]);
        list.is_some_and(|list| list.contains("default_a") && list.contains("default_b"))
    });
    println!("databases lost: rebuilt after {:.1?}", begin.elapsed());
    assert!(pod_comes_and_goes("after") < LIMIT);
    // An ovn-controller that meets the new database before it is full takes its flows away for so long.
    eventually(NAME, "an answer of a pod that was there", || answer() == "b");
    println!("pods that were there reach each other after {:.1?}", begin.elapsed());
    all_are_ready();
    succeed(NAME, &["down"]);
    assert_eq!(succeed(NAME, &["leftovers"]), "");
}
