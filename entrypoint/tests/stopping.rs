//! How containers of a node end: each role is the first process of a process namespace, as in a container, and gets SIGTERM, as from a
//! kubelet. Needs root, `cargo xtask setup`, and /dev/net/tun.
#![allow(clippy::unwrap_used, reason = "a test")]
#![expect(clippy::disallowed_methods, reason = "starts the program that is tested")]

mod support;

use std::path::Path;
use std::process::Output;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

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
        let schema = cache::file("ovs/share/vswitch.ovsschema");
        let mut command = self.network.container();
        command.arg(role);
        command.arg(format!("--ovs-etc-dir={}", self.path("etc")));
        command.arg(format!("--ovs-run-dir={}", self.path("ovs")));
        command.arg(format!("--ovn-run-dir={}", self.path("ovn")));
        command.arg(format!("--ovs-schema={}", schema.display()));
        command.env("OVS_RUNDIR", self.path("ovs")).env("OVN_RUNDIR", self.path("ovn"));
        command.env("SLIPSTREAM_TLS", "false");
        command.env("SLIPSTREAM_NODE_NAME", "n1").env("SLIPSTREAM_OVS_DATAPATH", "netdev");
        Container::start(command, &self.dir.join(format!("{role}.log")))
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
