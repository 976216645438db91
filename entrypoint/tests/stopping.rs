//! How containers of a node end: each role is the first process of a process namespace, as in a container, and gets SIGTERM, as from a
//! kubelet. Needs root, `cargo xtask setup`, and /dev/net/tun.
#![allow(clippy::unwrap_used, reason = "a test")]
#![expect(clippy::disallowed_methods, reason = "starts the program that is tested")]

mod support;

use std::path::Path;
use std::process::Output;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use support::{Container, Network, Server};
use test_support::cache;
use test_support::wait::{wait_for, wait_until};

const CENTRAL: &str = "10.99.0.1";
/// Far below the grace periods of the chart, and above what a loaded machine needs.
const QUICK: Duration = Duration::from_secs(5);

/// A node's directories.
struct Node<'a> {
    network: &'a Network,
    dir: &'a Path,
}

impl Node<'_> {
    fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    fn start(&self, role: &str) -> Container {
        self.start_as(role, role)
    }

    /// One of several containers of a role.
    fn start_as(&self, role: &str, name: &str) -> Container {
        let schema = cache::file("ovs/share/vswitch.ovsschema");
        let mut command = self.network.container();
        command.arg(role);
        command.arg(format!("--ovs-etc-dir={}", self.path("etc")));
        command.arg(format!("--ovs-started-file={}", self.path(&format!("{name}.started"))));
        command.arg(format!("--ovs-run-dir={}", self.path("ovs")));
        command.arg(format!("--ovn-run-dir={}", self.path("ovn")));
        command.arg(format!("--ovs-schema={}", schema.display()));
        command.env("OVS_RUNDIR", self.path("ovs")).env("OVN_RUNDIR", self.path("ovn"));
        command.env("SLIPSTREAM_TLS", "false");
        command.env("SLIPSTREAM_NODE_NAME", "n1").env("SLIPSTREAM_OVS_DATAPATH", "netdev");
        Container::start(command, &self.dir.join(format!("{name}.log")))
    }

    fn run(&self, program: &str, args: &[&str]) -> Output {
        let mut command = self.network.command(program);
        command.args(args).env("OVS_RUNDIR", self.path("ovs")).output().unwrap()
    }

    fn vsctl(&self, args: &[&str]) -> Output {
        let db = format!("--db=unix:{}/db.sock", self.path("ovs"));
        self.run("ovs-vsctl", &[&[db.as_str(), "--timeout=5"], args].concat())
    }

    /// Whether the switch takes a change of its database.
    fn answers(&self) -> bool {
        static CHANGES: AtomicU32 = AtomicU32::new(0);
        let change = format!("external_ids:change={}", CHANGES.fetch_add(1, Ordering::Relaxed));
        self.vsctl(&["set", "Open_vSwitch", ".", &change]).status.success()
    }

    /// Flows of the integration bridge.
    fn flows(&self) -> usize {
        let out = self.run("ovs-ofctl", &["-OOpenFlow15", "dump-flows", "br-int", "--no-stats"]);
        out.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count()
    }

    /// The switch's control socket. Its process id is known in its own container only.
    fn control(&self) -> String {
        let names = std::fs::read_dir(self.dir.join("ovs")).unwrap().map(|entry| entry.unwrap().path());
        let mut sockets = names.map(|path| path.display().to_string());
        sockets.find(|path| path.contains("/ovs-vswitchd.") && path.ends_with(".ctl")).unwrap()
    }

    /// Whether the Open vSwitch of this container is the node's.
    fn is_started(&self, name: &str) -> bool {
        self.dir.join(format!("{name}.started")).exists()
    }

    fn chassis(&self, server: &Server<'_>) -> String {
        let db = format!("--db=unix:{}", server.directory.join("run/ovnsb_db.sock").display());
        let out = self.run("ovn-sbctl", &[&db, "--timeout=5", "--bare", "--columns=name", "list", "Chassis"]);
        String::from_utf8_lossy(&out.stdout).trim().to_owned()
    }
}

/// Ends a container; its exit code.
fn end(container: &mut Container) -> Option<i32> {
    let begin = Instant::now();
    let code = container.end();
    assert!(begin.elapsed() < QUICK, "it took {:?}", begin.elapsed());
    code
}

#[test]
fn a_nodes_containers_end_at_once_and_leave_flows_and_chassis() {
    let network = Network::new(CENTRAL);
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&network, dir.path(), CENTRAL, 0);
    let node = Node { network: &network, dir: dir.path() };

    // It waits for OVS, which is not there yet.
    let mut waiting = node.start("ovn-controller");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(end(&mut waiting), Some(0), "{}", waiting.log());

    let mut ovs = node.start("ovs");
    wait_until(Duration::from_secs(30), "the switch answers", || node.answers());
    let remote = format!("external_ids:ovn-remote=tcp:{CENTRAL}:6642");
    let encap = format!("external_ids:ovn-encap-ip={CENTRAL}");
    let set = ["set", "Open_vSwitch", ".", &remote, &encap, "external_ids:ovn-encap-type=geneve"];
    assert!(node.vsctl(&set).status.success());
    server.wait_ready();
    let mut controller = node.start("ovn-controller");
    let there = || Some(node.chassis(&server)).filter(|chassis| !chassis.is_empty());
    let chassis = wait_for(Duration::from_secs(30), "the chassis is in SB", there);
    wait_until(Duration::from_secs(10), "br-int has flows", || node.flows() > 10);
    let flows = node.flows();

    assert_eq!(end(&mut controller), Some(0), "{}", controller.log());
    assert_eq!(node.flows(), flows, "{}", controller.log());
    assert_eq!(node.chassis(&server), chassis);
    assert_eq!(end(&mut ovs), Some(0), "{}", ovs.log());
    // What OVS has to know of the node outlives it.
    let mut again = node.start("ovs");
    wait_until(Duration::from_secs(30), "the switch answers", || node.answers());
    let out = node.vsctl(&["get", "Open_vSwitch", ".", "external_ids:system-id"]);
    assert_eq!(String::from_utf8_lossy(&out.stdout).trim().trim_matches('"'), chassis);
    assert_eq!(end(&mut again), Some(0));
}

#[test]
fn a_second_open_vswitch_waits_for_the_first_and_follows_it() {
    let network = Network::new(CENTRAL);
    let dir = tempfile::tempdir().unwrap();
    let node = Node { network: &network, dir: dir.path() };
    let mut first = node.start_as("ovs", "first");
    wait_until(Duration::from_secs(30), "the first answers", || node.is_started("first"));
    assert!(node.vsctl(&["add-br", "br-test"]).status.success());
    let mut second = node.start_as("ovs", "second");
    let told = || second.log().contains("waiting for the end of another Open vSwitch");
    wait_until(Duration::from_secs(5), "the second says that it waits", told);
    std::thread::sleep(Duration::from_secs(1));
    assert!(node.answers() && node.is_started("first") && !node.is_started("second"), "{}", second.log());
    assert!(!second.log().contains("starting ovs"), "{}", second.log());

    // A third one that is told to end while it waits does, and disturbs nobody.
    let mut third = node.start_as("ovs", "third");
    wait_until(Duration::from_secs(5), "the third waits", || third.log().contains("waiting for the end"));
    assert_eq!(end(&mut third), Some(0), "{}", third.log());

    // As it ends by `ovs-appctl exit`: the container ends with its switch.
    assert!(node.run("ovs-appctl", &["-t", &node.control(), "exit"]).status.success());
    let begin = Instant::now();
    wait_until(Duration::from_secs(10), "the second is started", || node.is_started("second"));
    assert!(begin.elapsed() < QUICK, "it took {:?}", begin.elapsed());
    assert_ne!(first.wait(), Some(0), "{}", first.log());
    let out = node.vsctl(&["list-br"]);
    assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), "br-test", "{}", second.log());

    // Asked to start its programs anew, the container goes on, and is still the only one.
    let starts = || second.log().matches("starting ovs-vswitchd").count();
    second.signal(Signal::SIGUSR1);
    wait_until(QUICK, "the switch is started anew", || starts() == 2);
    wait_until(QUICK, "the switch answers", || node.answers());
    assert_eq!(end(&mut second), Some(0), "{}", second.log());
}
