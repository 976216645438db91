//! What OVN makes of the controller's rows: northd compiles them, ovn-trace follows packets through them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[allow(dead_code, reason = "shared with the other tests")]
mod common;

use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{Controller, Server, command, config, lists, node, output, pod};
use test_support::ovs::Process;

/// A cluster of two nodes with a pod on each, compiled by northd.
struct Cluster {
    server: Server,
    _northd: Process,
}

async fn cluster() -> Cluster {
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
    let cluster = Cluster { server, _northd: Process(northd) };
    for number in [1, 2] {
        let chassis = format!("00000000-0000-4000-8000-00000000000{number}");
        cluster.sbctl(&["chassis-add", &chassis, "geneve", &format!("172.18.0.{}", number + 1)]);
    }
    let mut controller = Controller::start(cluster.server.client(), config()).await;
    let pods = vec![pod("x", "a", "uid-a", "n1"), pod("x", "b", "uid-b", "n2")];
    controller.feed(lists(vec![node("n1", 1), node("n2", 2)], pods)).await;
    // Northd must have processed the last row; a bound port shows that its flows are there.
    let start = Instant::now();
    loop {
        let flows = cluster.sbctl(&["lflow-list"]);
        if ["x_a", "x_b", "rtoe-GR_n2", "k8s-n1"].iter().all(|port| flows.contains(port)) {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "northd does not compile the rows");
        std::thread::sleep(Duration::from_millis(50));
    }
    for (port, number) in [("x_a", 1), ("k8s-n1", 1), ("x_b", 2), ("k8s-n2", 2)] {
        cluster.sbctl(&["lsp-bind", port, &format!("00000000-0000-4000-8000-00000000000{number}")]);
    }
    cluster
}

impl Cluster {
    fn sbctl(&self, args: &[&str]) -> String {
        let db = format!("--db=unix:{}", self.server.path("db.sock").display());
        output(command("ovn-sbctl").arg(db).args(args))
    }

    /// The result for an ICMP packet of pod x/a, in short form.
    fn trace(&self, destination: &str) -> String {
        let db = format!("--db=unix:{}", self.server.path("db.sock").display());
        let packet = format!(
            "inport == \"x_a\" && eth.src == 0a:58:0a:f4:00:03 && eth.dst == 0a:58:0a:f4:00:01 \
             && ip4.src == 10.244.0.3 && ip4.dst == {destination} && ip.ttl == 64 && icmp4.type == 8"
        );
        output(command("ovn-trace").arg(db).args(["--minimal", "--ct=new", "n1", &packet]))
    }
}

#[tokio::test]
async fn packets_go_where_they_should() {
    let cluster = cluster().await;
    let trace = cluster.trace("10.244.1.3");
    assert!(trace.contains("output(\"x_b\")"), "pod to pod on the other node:\n{trace}");
    assert!(trace.contains("eth.dst = 0a:58:0a:f4:01:03"), "{trace}");

    let trace = cluster.trace("172.18.0.2");
    assert!(
        trace.contains("output(\"k8s-n1\")"),
        "the node's own address is reached by the management port:\n{trace}"
    );
    assert!(!trace.contains("ip4.src"), "and the source stays:\n{trace}");

    // The gateway's MAC address must be known; otherwise the packet stops there.
    let datapath =
        cluster.sbctl(&["--bare", "--columns=_uuid", "find", "Datapath_Binding", "external_ids:name=GR_n1"]);
    cluster.sbctl(&[
        "create",
        "MAC_Binding",
        "logical_port=rtoe-GR_n1",
        "ip=172.18.0.1",
        "mac=\"02:42:ac:12:00:ff\"",
        &format!("datapath={}", datapath.trim()),
    ]);
    let trace = cluster.trace("192.0.2.1");
    assert!(
        trace.contains("output(\"breth0_n1\")"),
        "outside by the localnet port of the pod's node:\n{trace}"
    );
    assert!(trace.contains("ct_snat(ip4.src=172.18.0.2)"), "from the node's address:\n{trace}");
}

#[tokio::test]
async fn a_pod_cannot_send_from_another_address() {
    let cluster = cluster().await;
    let db = format!("--db=unix:{}", cluster.server.path("db.sock").display());
    let packet = "inport == \"x_a\" && eth.src == 0a:58:0a:f4:00:03 && eth.dst == 0a:58:0a:f4:00:01 \
        && ip4.src == 10.244.0.9 && ip4.dst == 10.244.1.3 && ip.ttl == 64 && icmp4.type == 8";
    let trace = output(command("ovn-trace").arg(db).args(["--minimal", "--ct=new", "n1", packet]));
    assert!(!trace.contains("output("), "{trace}");
}
