//! From one release to another and back on real nodes, under TCP and UDP load between pods of two nodes, and Open vSwitch restarted in its
//! pod. Needs root, `cargo xtask setup` and `cargo xtask image --dev`; what goes from release 0.1.0, `cargo xtask release 0.1.0` as well.
#![expect(clippy::print_stdout, reason = "what was measured is told")]

mod cli;
mod load;

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use cli::{Up, eventually, run, succeed};
use load::{Load, pod};
use testbed::cluster::{Bed, config};
use testbed::traffic::Place;

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/chart");
/// Tag of the image that was built here, beside that of the release.
const NEXT: &str = "next";
/// It names the commit of release 0.1.0.
const CHANGELOG: &str = include_str!("../../CHANGELOG.md");
const NODES: [&str; 2] = ["n1", "n2"];
/// While agents, ovn-controllers, controllers and databases are replaced, a connection is never silent for longer.
/// Nor are more datagrams lost, of 100 a second.
const QUIET: (Duration, u32) = (Duration::from_secs(1), 50);
/// Connections of the flow cache go on while Open vSwitch is started again; by its command `exit`, the only one in release 0.1.0, they end,
/// and TCP tries again after up to twice the time that it was away.
const RESTART: (Duration, u32) = (Duration::from_secs(5), 300);
/// The kubelet may wait before it starts a container again that has ended several times.
const BACK: (Duration, u32) = (Duration::from_secs(30), 3000);

/// A cluster with a release, and load between pods `a` on n1 and `b` on n2.
struct World {
    name: &'static str,
    load: Load,
    /// Datagrams from the API server's host to n1 itself.
    node: Load,
    service: String,
}

/// A pod of the release.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pod {
    name: String,
    node: String,
    /// Of each of its containers.
    restarts: String,
}

impl World {
    fn new(name: &'static str, release: &Path) -> Self {
        succeed(name, &["down"]);
        let release = release.display().to_string();
        let up = ["up", "--runtime", "containerd", "--install", "chart", "--datapath", "ebpf", "--release"];
        succeed(name, &[&up[..], &[&release]].concat());
        let bed = Bed::open(name).expect("the cluster");
        bed.add_built_image(NEXT).expect("a second image");
        for (pod, node) in [("a", "n1"), ("b", "n2")] {
            succeed(name, &["pod", "add", pod, "--node", node]);
        }
        succeed(name, &["kubectl", "expose", "pod", "b", "--name=b", "--port=80", "--target-port=8080"]);
        let service = succeed(name, &["kubectl", "get", "service", "b", "-o", "jsonpath={.spec.clusterIP}"]);
        let address = succeed(name, &["kubectl", "get", "pod", "b", "-o", "jsonpath={.status.podIP}"]);
        let load = Load::start(&bed, &pod("a", "n1"), &pod("b", "n2"), &address);
        let [central, n1] = ["central", "n1"].map(|host| Place::Host(host.into()));
        let node = Load::datagrams(&bed, &central, &n1, &config::node_ip(1).to_string());
        Self { name, load, node, service }
    }

    fn kubectl(&self, args: &[&str]) -> String {
        succeed(self.name, &[&["kubectl", "-n", "kube-system"], args].concat())
    }

    fn helm(&self, args: &[&str]) -> String {
        succeed(self.name, &[&["helm"], args].concat())
    }

    /// Pods of a part, by node.
    fn pods(&self, part: &str) -> Vec<Pod> {
        let show = "jsonpath={range .items[*]}{.spec.nodeName} {.metadata.name} \
                    {.status.containerStatuses[*].restartCount}{\"\\n\"}{end}";
        let label = format!("app.kubernetes.io/component={part}");
        let said = self.kubectl(&["get", "pods", "-l", &label, "-o", show]);
        let pod = |line: &str| {
            let mut words = line.splitn(3, ' ').map(str::to_owned);
            Some(Pod { node: words.next()?, name: words.next()?, restarts: words.next()? })
        };
        let mut pods: Vec<_> = said.lines().filter_map(pod).collect();
        pods.sort_by(|a, b| a.node.cmp(&b.node));
        pods
    }

    fn pod(&self, part: &str, node: &str) -> Option<Pod> {
        self.pods(part).into_iter().find(|pod| pod.node == node)
    }

    /// Waits until a node's pod of a part is another one than before, and Ready.
    fn replaced(&self, part: &str, before: &Pod) {
        eventually(self.name, &format!("another pod than {}", before.name), || {
            self.pod(part, &before.node).is_some_and(|pod| pod.name != before.name && self.is_ready(&pod))
        });
    }

    fn is_ready(&self, pod: &Pod) -> bool {
        let query = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
        let said = run(self.name, &["kubectl", "-n", "kube-system", "get", "pod", &pod.name, "-o", query]);
        said.stdout == b"True"
    }

    fn rolled_out(&self, parts: &[&str]) {
        for part in parts {
            self.kubectl(&["rollout", "status", part, "--timeout=180s"]);
        }
    }

    /// Layouts of the maps that the agents have pinned.
    fn layouts(&self) -> Vec<String> {
        let layout = |pod: Pod| {
            let status = ["exec", &pod.name, "-c", "node-agent", "--", "slipctl", "status", "--output=json"];
            let status: serde_json::Value = serde_json::from_str(&self.kubectl(&status)).expect("a status");
            status["versions"]["mapLayout"].to_string()
        };
        self.pods("node").into_iter().map(layout).collect()
    }

    /// What was seen so far is of no interest.
    fn begin(&self, what: &str) {
        self.load.goes_on(what);
        self.node.goes_on(what);
    }

    /// What the load has seen during a step, and that pods which are made now have their network, services included.
    fn judge(&self, step: &str, (silence, lost): (Duration, u32)) {
        self.new_pods_work(step);
        let report = self.load.goes_on(step);
        let node = self.node.goes_on(step);
        println!(
            "{step}: {report}; to n1 itself {} of {}, for {:.2} s",
            node.lost,
            node.sent,
            node.gap.as_secs_f64()
        );
        assert!(report.silence <= silence, "{step}: {report}");
        assert!(report.lost <= lost, "{step}: {report}");
    }

    fn new_pods_work(&self, step: &str) {
        let step = step.replace([' ', '.', ','], "-").to_lowercase();
        let url = format!("http://{}/hostname", self.service);
        for node in NODES {
            let pod = format!("{step}-{node}");
            succeed(self.name, &["pod", "add", &pod, "--node", node]);
            eventually(self.name, "an answer of the service", || {
                let out = run(self.name, &["pod", "exec", &pod, "--", "curl", "-s", "-m", "3", &url]);
                out.status.success() && out.stdout == b"b"
            });
        }
    }

    /// Waits until a container of Open vSwitch runs again, its pod is Ready, and so is every node.
    fn ovs_is_back(&self, pod: &Pod) {
        eventually(self.name, &format!("{} is started again", pod.name), || {
            let now = self.pod("ovs", &pod.node);
            now.is_some_and(|now| now.name == pod.name && now.restarts != pod.restarts && self.is_ready(&now))
        });
        let times = "jsonpath={range .status.containerStatuses[*]}ended {.lastState.terminated.finishedAt} \
                     started {.state.running.startedAt}{end}";
        println!("{} {}", pod.name, self.kubectl(&["get", "pod", &pod.name, "-o", times]));
        self.nodes_are_ready();
    }

    /// Has Open vSwitch started anew in its container, and waits until it answers.
    fn restart_ovs(&self, pod: &Pod) {
        let ask = |args: &[&str]| {
            let out =
                run(self.name, &[&["kubectl", "-n", "kube-system", "--request-timeout=5s"], args].concat());
            out.status.success().then(|| String::from_utf8_lossy(&out.stdout).into_owned())
        };
        let starts = || Some(ask(&["logs", &pod.name])?.matches("starting ovs-vswitchd").count());
        let ready = || ask(&["exec", &pod.name, "--", "slipstream-entrypoint", "ready", "ovs"]).is_some();
        let before = starts().expect("a log");
        let begin = Instant::now();
        self.kubectl(&["exec", &pod.name, "--", "slipstream-entrypoint", "restart"]);
        eventually(self.name, "Open vSwitch is started again", || {
            starts().is_some_and(|now| now > before) && ready()
        });
        println!("Open vSwitch of {} is started again after {:.1?}", pod.node, begin.elapsed());
        self.nodes_are_ready();
    }

    fn nodes_are_ready(&self) {
        succeed(self.name, &["kubectl", "wait", "node", "--all", "--for=condition=Ready", "--timeout=90s"]);
    }

    fn down(self) {
        let Self { name, load, node, .. } = self;
        drop((load, node));
        succeed(name, &["down"]);
        assert_eq!(succeed(name, &["leftovers"]), "");
    }
}

const PARTS: [&str; 3] =
    ["deployment/slipstream-controller", "statefulset/slipstream-ovn-central", "daemonset/slipstream-node"];

/// Copies a directory, with what links in it point to.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory") {
        let path = entry.expect("an entry").path();
        let target = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).expect("a copy");
        }
    }
}

/// A release that differs from what was built here in the layout of its maps, which the next agent cannot take over.
fn release_with_another_map_layout(dir: &Path) {
    let chart = dir.join("source/deploy/chart");
    copy(Path::new(CHART), &chart);
    let file = chart.join("templates/configmap.yaml");
    let text = fs::read_to_string(&file).expect("the ConfigMap");
    fs::write(&file, text + "  SLIPSTREAM_TEST_MAP_LAYOUT: \"1\"\n").expect("the ConfigMap");
    let image =
        config::programs().expect("a directory").parent().expect("a parent").join("image/slipstream.tar");
    assert!(image.exists(), "{} is missing; run `cargo xtask image --dev`", image.display());
    std::os::unix::fs::symlink(image, dir.join("slipstream.tar")).expect("a link");
}

#[test]
fn a_release_follows_another_and_goes_back_and_open_vswitch_is_restarted_in_its_pod() {
    let name = "up-split";
    let dir = tempfile::tempdir().expect("a directory");
    release_with_another_map_layout(dir.path());
    let _up = Up(name);
    let world = World::new(name, dir.path());
    assert_eq!(world.layouts(), ["1", "1"]);
    let (agents, switches) = (world.pods("node"), world.pods("ovs"));
    assert_eq!(switches.len(), 2);

    world.begin("before the upgrade");
    let tag = format!("image.tag={NEXT}");
    world.helm(&["upgrade", "slipstream", CHART, "--reset-then-reuse-values", "--set", &tag]);
    world.rolled_out(&PARTS);
    world.judge("upgraded", QUIET);
    let now = world.pods("node");
    assert!(agents.iter().all(|old| now.iter().all(|new| new.name != old.name)), "{agents:?} {now:?}");
    assert!(world.layouts().iter().all(|layout| layout != "1"), "{:?}", world.layouts());
    assert_eq!(world.pods("ovs"), switches, "Open vSwitch is left alone");

    // Open vSwitch of the new image, in the pod that is there: the kubelet needs nobody for it.
    let image = format!("ovs=localhost/slipstream:{NEXT}");
    for pod in &switches {
        let begin = Instant::now();
        world.kubectl(&["set", "image", &format!("pod/{}", pod.name), &image]);
        world.ovs_is_back(pod);
        println!("Open vSwitch of {} has its new image after {:.1?}", pod.node, begin.elapsed());
        world.judge(&format!("new image {}", pod.node), RESTART);
    }
    // And of the same image, twice: the container goes on, and the kubelet does not wait longer from time to time.
    let switches = world.pods("ovs");
    for count in 1..=2 {
        world.restart_ovs(&switches[0]);
        world.judge(&format!("restarted {count}"), RESTART);
    }
    assert_eq!(world.pods("ovs"), switches);
    let agents = world.pods("node");
    assert!(agents.iter().all(|pod| pod.restarts == "0 0"), "nothing else was restarted: {agents:?}");

    let switches = world.pods("ovs");
    world.begin("before the rollback");
    world.helm(&["rollback", "slipstream", "1"]);
    world.rolled_out(&PARTS);
    world.judge("rolled back", QUIET);
    assert_eq!(world.layouts(), ["1", "1"]);
    assert_eq!(world.pods("ovs"), switches, "Open vSwitch is left alone");
    succeed(name, &["helm", "uninstall", "slipstream"]);
    world.down();
}

/// Where `cargo xtask release 0.1.0` puts it.
fn release_0_1_0() -> PathBuf {
    let of_line = |line: &'static str| line.strip_prefix("0.1.0 is commit ")?.split(':').next();
    let commit = CHANGELOG.lines().find_map(of_line).expect("CHANGELOG.md names the commit");
    let dir = config::cache().expect("a cache").join("releases").join(commit);
    assert!(
        dir.join("slipstream.tar").exists(),
        "{} is missing; run `cargo xtask release 0.1.0`",
        dir.display()
    );
    dir
}

#[test]
#[ignore = "builds release 0.1.0: cargo xtask release 0.1.0, then cargo test -p testbed --test real_upgrade -- --ignored"]
fn nodes_of_release_0_1_0_are_upgraded_and_go_back_one_after_another() {
    let name = "up-release";
    let _up = Up(name);
    let world = World::new(name, &release_0_1_0());
    let old = world.pods("node");
    assert_eq!(world.layouts(), ["7", "7"]);

    world.begin("before the upgrade");
    let tag = format!("image.tag={NEXT}");
    let upgrade = ["upgrade", "slipstream", CHART, "--reset-then-reuse-values", "--set", &tag];
    world.helm(&upgrade);
    world.rolled_out(&PARTS[..2]);
    world.judge("central part", QUIET);
    // Pods with Open vSwitch in them stay until somebody replaces them, and the new ones wait for their ends.
    let strategy = ["get", "daemonset", "slipstream-node", "-o", "jsonpath={.spec.updateStrategy.type}"];
    assert_eq!(world.kubectl(&strategy), "OnDelete");
    assert_eq!(world.pods("node"), old);
    let waiting = "waiting for the end of another Open vSwitch";
    for pod in world.pods("ovs") {
        eventually(name, "a second Open vSwitch waits", || {
            world.kubectl(&["logs", &pod.name]).contains(waiting)
        });
        assert!(!world.is_ready(&pod), "{pod:?}");
    }

    for pod in &old {
        let switch = world.pod("ovs", &pod.node).expect("a pod that waits");
        // Its Open vSwitch ends, the one that waits takes over, and the agent, which goes on, gives the node its addresses back.
        let begin = Instant::now();
        world.kubectl(&["exec", &pod.name, "-c", "ovs", "--", "ovs-appctl", "exit"]);
        eventually(name, "the other Open vSwitch", || world.is_ready(&switch));
        println!("Open vSwitch of {} is another one after {:.1?}", pod.node, begin.elapsed());
        world.nodes_are_ready();
        world.judge(&format!("other switch {}", pod.node), RESTART);
        world.kubectl(&["delete", "pod", &pod.name]);
        world.replaced("node", pod);
        world.judge(&format!("other agent {}", pod.node), QUIET);
    }
    assert!(world.layouts().iter().all(|layout| layout != "7"), "{:?}", world.layouts());
    world.helm(&upgrade);
    assert_eq!(world.kubectl(&strategy), "RollingUpdate");

    back_to_0_1_0(&world);
    world.down();
}

/// The pods of Open vSwitch are kept when their DaemonSet goes, and end when the old kind of pod waits for that.
fn back_to_0_1_0(world: &World) {
    world.begin("before the rollback");
    world.kubectl(&["delete", "daemonset", "slipstream-ovs", "--cascade=orphan"]);
    world.helm(&["rollback", "slipstream", "1"]);
    world.rolled_out(&PARTS[..2]);
    world.judge("central part back", QUIET);
    let answers = |node: &str| {
        let pod = world.pod("node", node)?;
        let status = [
            "kubectl",
            "-n",
            "kube-system",
            "exec",
            &pod.name,
            "-c",
            "node-agent",
            "--",
            "slipctl",
            "status",
        ];
        run(world.name, &status).status.success().then_some(())
    };
    for node in NODES {
        let (agent, switch) =
            (world.pod("node", node).expect("a pod"), world.pod("ovs", node).expect("a pod"));
        world.kubectl(&["delete", "pod", &agent.name]);
        eventually(world.name, "the agent of 0.1.0", || answers(node).is_some());
        thread::sleep(Duration::from_secs(3));
        world.judge(&format!("agent back {node}"), QUIET);
        let begin = Instant::now();
        world.kubectl(&["delete", "pod", &switch.name, "--wait=false"]);
        eventually(world.name, "the Open vSwitch of 0.1.0", || {
            world.pod("node", node).is_some_and(|pod| pod.name != agent.name && world.is_ready(&pod))
        });
        println!("Open vSwitch of {node} is the old one after {:.1?}", begin.elapsed());
        world.nodes_are_ready();
        world.judge(&format!("switch back {node}"), BACK);
    }
    assert_eq!(world.layouts(), ["7", "7"]);
}
