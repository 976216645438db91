//! What OVN makes of the controller's rows: northd compiles them, ovn-trace follows packets through them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[allow(dead_code, reason = "shared with the other tests")]
mod common;

mod northd;

use common::{Controller, config, lists, node, pod};
use northd::Northd;

/// A cluster of two nodes with a pod on each, compiled by northd.
struct Cluster(Northd);

async fn cluster() -> Cluster {
    let northd = Northd::start();
    let mut controller = Controller::start(northd.server.client(), config()).await;
    let pods = vec![pod("x", "a", "uid-a", "n1"), pod("x", "b", "uid-b", "n2")];
    controller.feed(lists(vec![node("n1", 1), node("n2", 2)], pods)).await;
    northd.wait_for(["x_a", "x_b", "rtoe-GR_n2", "k8s-n1"].into_iter());
    for (port, number) in [("x_a", 1), ("k8s-n1", 1), ("x_b", 2), ("k8s-n2", 2)] {
        northd.bind(port, number);
    }
    Cluster(northd)
}

impl Cluster {
    /// The result for an ICMP packet of pod x/a, in short form.
    fn trace(&self, destination: &str) -> String {
        let packet = format!(
            "inport == \"x_a\" && eth.src == 0a:58:0a:f4:00:03 && eth.dst == 0a:58:0a:f4:00:01 \
             && ip4.src == 10.244.0.3 && ip4.dst == {destination} && ip.ttl == 64 && icmp4.type == 8"
        );
        self.0.trace("n1", &packet)
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

    cluster.0.know_the_gateway("GR_n1");
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
    let packet = "inport == \"x_a\" && eth.src == 0a:58:0a:f4:00:03 && eth.dst == 0a:58:0a:f4:00:01 \
        && ip4.src == 10.244.0.9 && ip4.dst == 10.244.1.3 && ip.ttl == 64 && icmp4.type == 8";
    let trace = cluster.0.trace("n1", packet);
    assert!(!trace.contains("output("), "{trace}");
}
