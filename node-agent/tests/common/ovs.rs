//! A node's OVS for tests: ovsdb-server and ovs-vswitchd of the project's cache, userspace datapath, and a stand-in for
//! ovn-controller that marks ports as installed.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use node_agent::kernel::link::Netlink;
use node_agent::ovs::Ovs;
use ovsdb_client::vswitch::Interface;
use ovsdb_client::{Condition, Datum, Mutator, Transaction};

pub(crate) struct OvsNode {
    dir: tempfile::TempDir,
    processes: Vec<Child>,
    /// Interfaces that were not up when their row appeared; filled while the stand-in for ovn-controller runs.
    early: Arc<Mutex<Vec<String>>>,
}

fn tools() -> PathBuf {
    test_support::cache::file("ovs")
}

#[expect(clippy::disallowed_methods, reason = "the test starts the node's OVS")]
fn command(program: &str) -> Command {
    let mut command = Command::new(tools().join("bin").join(program));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

impl OvsNode {
    /// Starts both, with an empty br-int.
    pub(crate) fn start() -> Self {
        let mut node =
            Self { dir: tempfile::tempdir().unwrap(), processes: Vec::new(), early: Arc::default() };
        let schema = tools().join("share/vswitch.ovsschema");
        let db = node.path("conf.db");
        assert!(command("ovsdb-tool").arg("create").args([&db, &schema]).status().unwrap().success());
        node.start_database();
        node.vsctl(&["--no-wait", "init"]);
        node.start_switch();
        node.vsctl(&["set", "Open_vSwitch", ".", "external_ids:ovn-bridge-datapath-type=netdev"]);
        node.vsctl(&[
            "add-br",
            "br-int",
            "--",
            "set",
            "bridge",
            "br-int",
            "datapath_type=netdev",
            "fail_mode=secure",
        ]);
        node
    }

    /// Starts the database server, the first time or again.
    pub(crate) fn start_database(&mut self) {
        let mut server = self.daemon("ovsdb-server");
        server.arg(self.path("conf.db")).arg(format!("--remote=punix:{}", self.path("db.sock").display()));
        let _ = std::fs::remove_file(self.path("db.sock"));
        self.processes.insert(0, server.spawn().unwrap());
        for _ in 0..1000 {
            if self.path("db.sock").exists() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("ovsdb-server does not listen");
    }

    /// Starts ovs-vswitchd, the first time or again. Its control socket has the usual name.
    pub(crate) fn start_switch(&mut self) {
        let mut switch = self.daemon("ovs-vswitchd");
        let pid = self.path("ovs-vswitchd.pid");
        let _ = std::fs::remove_file(&pid);
        switch.arg(self.db()).arg(format!("--pidfile={}", pid.display()));
        self.processes.push(switch.spawn().unwrap());
    }

    /// Kills ovs-vswitchd.
    pub(crate) fn kill_switch(&mut self) {
        let mut switch = self.processes.pop().unwrap();
        switch.kill().unwrap();
        switch.wait().unwrap();
    }

    /// Calls ovs-vswitchd.
    pub(crate) fn appctl(&self, args: &[&str]) -> String {
        let pid = std::fs::read_to_string(self.path("ovs-vswitchd.pid")).unwrap();
        let control = self.path(&format!("ovs-vswitchd.{}.ctl", pid.trim()));
        let out =
            command("ovs-appctl").arg("-t").arg(control).args(args).stdout(Stdio::piped()).output().unwrap();
        String::from_utf8(out.stdout).unwrap()
    }

    /// Changes br-int's flows, as in `add-flow`.
    pub(crate) fn ofctl(&self, command_name: &str, flow: &str) {
        self.ofctl_of("br-int", command_name, flow);
    }

    /// Changes the flows of `bridge`, as [`Self::ofctl`] does for br-int.
    pub(crate) fn ofctl_of(&self, bridge: &str, command_name: &str, flow: &str) {
        let socket = format!("unix:{}", self.path(&format!("{bridge}.mgmt")).display());
        let status = command("ovs-ofctl").args(["-O", "OpenFlow15", command_name, &socket, flow]).status();
        assert!(status.unwrap().success(), "ovs-ofctl {command_name} {flow}");
    }

    fn daemon(&self, program: &str) -> Command {
        let mut command = command(program);
        if program == "ovsdb-server" {
            let control = self.path(&format!("{program}.ctl"));
            command.arg(format!("--unixctl={}", control.display()));
        }
        command.args(["-vconsole:off", "-vsyslog:off"]);
        command.env("OVS_RUNDIR", self.dir.path()).env("OVS_LOGDIR", self.dir.path());
        command
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn db(&self) -> String {
        format!("unix:{}", self.path("db.sock").display())
    }

    pub(crate) fn vsctl(&self, args: &[&str]) -> String {
        let mut vsctl = command("ovs-vsctl");
        vsctl.arg(format!("--db={}", self.db())).arg("--timeout=20").args(args);
        let out = vsctl.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
        assert!(out.status.success(), "ovs-vsctl {args:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap().trim().to_owned()
    }

    /// Ports of br-int.
    pub(crate) fn ports(&self) -> Vec<String> {
        self.vsctl(&["list-ports", "br-int"]).lines().map(str::to_owned).collect()
    }

    /// Interfaces of pods that OVS saw before they were up.
    pub(crate) fn early(&self) -> Vec<String> {
        self.early.lock().unwrap().clone()
    }

    /// Kills the database server; its socket goes with it.
    pub(crate) fn kill_database(&mut self) {
        let mut server = self.processes.remove(0);
        server.kill().unwrap();
        server.wait().unwrap();
    }

    /// Runs a stand-in for ovn-controller: every port that OVS has opened is reported as installed.
    pub(crate) async fn play_ovn_controller(&self) -> tokio::task::JoinHandle<()> {
        let ovs = Ovs::connect(&self.db(), Duration::from_secs(10)).await.unwrap();
        let netlink = Netlink::open().unwrap();
        let early = Arc::clone(&self.early);
        tokio::spawn(async move {
            let mut changes = ovs.replica().changes();
            let mut seen = BTreeSet::new();
            loop {
                let new: Vec<_> = {
                    let snapshot = ovs.replica().read();
                    let pods = |row: &&Arc<Interface>| row.external_ids.contains_key("iface-id");
                    let new = |row: &Arc<Interface>| seen.insert(row.uuid).then(|| row.name.clone());
                    snapshot.table::<Interface>().iter().filter(pods).filter_map(new).collect()
                };
                for name in new {
                    if !netlink.find(&name).await.unwrap().is_some_and(|link| link.up) {
                        early.lock().unwrap().push(name);
                    }
                }
                let waiting: Vec<_> = {
                    let snapshot = ovs.replica().read();
                    let open = |row: &&Arc<Interface>| {
                        let ids = &row.external_ids;
                        ids.contains_key("iface-id")
                            && !ids.contains_key("ovn-installed")
                            && row.ofport.is_some_and(|p| p > 0)
                    };
                    snapshot.table::<Interface>().iter().filter(open).map(|row| row.uuid).collect()
                };
                for row in waiting {
                    let mut transaction = Transaction::new();
                    let installed = Datum::map([("ovn-installed", "true")]);
                    transaction.mutate(
                        "Interface",
                        vec![Condition::uuid(row)],
                        [("external_ids", Mutator::Insert, installed)],
                    );
                    let _ = ovs.transact(transaction).await;
                }
                if changes.next().await.is_none() {
                    return;
                }
            }
        })
    }
}

impl Drop for OvsNode {
    fn drop(&mut self) {
        // Mounted by some tests. While it is mounted, the directory cannot be removed.
        let _ = nix::mount::umount2(&self.path("bpf"), nix::mount::MntFlags::MNT_DETACH);
        for process in self.processes.iter_mut().rev() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
