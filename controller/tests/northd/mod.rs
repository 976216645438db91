//! Both databases of OVN with a northd between them, and two chassis, `n1` and `n2`.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::process::Stdio;
use std::time::{Duration, Instant};

use test_support::ovs::Process;

use crate::common::{Server, command, output};

/// The processes end when it is dropped.
pub(crate) struct Northd {
    pub(crate) server: Server,
    _process: Process,
}

/// Name of a node's chassis.
pub(crate) fn chassis(number: u8) -> String {
    format!("00000000-0000-4000-8000-00000000000{number}")
}

impl Northd {
    pub(crate) fn start() -> Self {
        let server = Server::start(&[("nb.db", "ovn-nb.ovsschema"), ("sb.db", "ovn-sb.ovsschema")]);
        let db = format!("unix:{}", server.path("db.sock").display());
        let northd = command("ovn-northd")
            .args([format!("--ovnnb-db={db}"), format!("--ovnsb-db={db}")])
            .arg(format!("--unixctl={}", server.path("northd.ctl").display()))
            .args(["--no-chdir", "--dummy-numa="])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let northd = Self { server, _process: Process(northd) };
        for number in [1, 2] {
            northd.sbctl(&["chassis-add", &chassis(number), "geneve", &format!("172.18.0.{}", number + 1)]);
        }
        northd
    }

    /// What `ovn-sbctl` prints.
    pub(crate) fn sbctl(&self, args: &[&str]) -> String {
        output(command("ovn-sbctl").arg(self.db()).args(args))
    }

    /// What `ovn-trace` prints of a packet that is new to connection tracking, in short form.
    pub(crate) fn trace(&self, switch: &str, packet: &str) -> String {
        output(command("ovn-trace").arg(self.db()).args(["--minimal", "--ct=new", switch, packet]))
    }

    /// Waits until the flows name all of these. Northd must have processed the last row; a bound port shows that its flows are there.
    pub(crate) fn wait_for<'a>(&self, names: impl Iterator<Item = &'a str> + Clone) {
        self.wait_until(|| {
            let flows = self.sbctl(&["lflow-list"]);
            names.clone().all(|name| flows.contains(name))
        });
    }

    /// Waits until northd has done something.
    pub(crate) fn wait_until(&self, is_done: impl Fn() -> bool) {
        let start = Instant::now();
        while !is_done() {
            assert!(start.elapsed() < Duration::from_secs(60), "northd does not compile the rows");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Binds a port to a node's chassis.
    pub(crate) fn bind(&self, port: &str, number: u8) {
        self.sbctl(&["lsp-bind", port, &chassis(number)]);
    }

    /// Makes the MAC address of the outside's gateway known to a gateway router; otherwise packets stop there.
    pub(crate) fn know_the_gateway(&self, router: &str) {
        self.know(router, &format!("rtoe-{router}"), "172.18.0.1");
    }

    /// Makes the MAC address of a neighbour known to a gateway router.
    pub(crate) fn know(&self, router: &str, port: &str, ip: &str) {
        let known = format!("external_ids:name={router}");
        let datapath = self.sbctl(&["--bare", "--columns=_uuid", "find", "Datapath_Binding", &known]);
        self.sbctl(&[
            "create",
            "MAC_Binding",
            &format!("logical_port={port}"),
            &format!("ip={ip}"),
            "mac=\"02:42:ac:12:00:ff\"",
            &format!("datapath={}", datapath.trim()),
        ]);
    }

    fn db(&self) -> String {
        format!("--db=unix:{}", self.server.path("db.sock").display())
    }
}
