//! What OVN makes of virtual networks: northd compiles their rows, ovn-trace follows packets through them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[allow(dead_code, reason = "shared with the other tests")]
mod common;
mod northd;

use api::MacAddr;
use common::{Controller, config, lists, network, networks, node, pod};
use controller::engine::Input;
use controller::state::Watched;
use northd::Northd;
use serde_json::{Value, json};

/// Two nodes with a pod on each, and networks of every reach.
struct Cluster(Northd);

fn on(namespace: &str, name: &str, node: &str, request: &Value) -> Value {
    let mut object = pod(namespace, name, &format!("uid-{name}"), node);
    object["metadata"]["annotations"] = json!({"ovnNetwork": request.to_string()});
    object
}

fn objects() -> (Vec<Value>, Vec<Value>) {
    let for_all = |reach: &str, net: &str| json!({"scope": "Cluster", "reach": reach, "subnets": [net]});
    let own = json!({"subnets": ["172.16.25.0/24"]});
    let networks = vec![
        network("infra", "out", 1, for_all("Outside", "172.16.24.0/24")),
        network("infra", "routed", 2, for_all("ClusterRouter", "172.16.26.0/24")),
        network("x", "blue", 3, own.clone()),
        network("y", "blue", 4, own),
    ];
    let interfaces = |last: u8| {
        json!([{"name": "out", "interface": "net1", "ip_address": format!("172.16.24.{last}")},
            {"name": "routed", "interface": "net2", "ip_address": format!("172.16.26.{last}")},
            {"name": "blue", "interface": "net3", "ip_address": format!("172.16.25.{last}")}])
    };
    let pods = vec![
        on("x", "a", "n1", &interfaces(11)),
        on("x", "b", "n2", &interfaces(12)),
        on("y", "c", "n2", &json!([{"name": "blue", "interface": "net1", "ip_address": "172.16.25.13"}])),
    ];
    (networks, pods)
}

async fn cluster() -> Cluster {
    let northd = Northd::start();
    let mut controller = Controller::start(northd.server.client(), config()).await;
    let (all, pods) = objects();
    let mut inputs = lists(vec![node("n1", 1), node("n2", 2)], pods);
    inputs.retain(|input| !matches!(input, Input::Networks(_)));
    inputs.push(networks(Watched::Reset(all)));
    controller.feed(inputs).await;
    let ports = ["infra.out", "infra.routed", "x.blue"]
        .iter()
        .flat_map(|key| [(format!("{key}_x_a"), 1), (format!("{key}_x_b"), 2)]);
    let ports: Vec<(String, u8)> = ports
        .chain(
            [("x_a", 1), ("x_b", 2), ("y_c", 2), ("y.blue_y_c", 2)].map(|(port, at)| (port.to_owned(), at)),
        )
        .collect();
    northd.wait_for(ports.iter().map(|(port, _)| port.as_str()).chain(["rtoe-GR_n2"]));
    for (port, number) in &ports {
        northd.bind(port, *number);
    }
    for router in ["GR_n1", "GR_n2"] {
        northd.know_the_gateway(router);
    }
    Cluster(northd)
}

impl Cluster {
    /// The result for an ICMP packet from `source` that enters by a port, in short form. `next` is the address whose MAC address
    /// it is sent to.
    fn trace(&self, switch: &str, port: &str, source: &str, next: &str, destination: &str) -> String {
        let mac = |ip: &str| MacAddr::from_ip(ip.parse().unwrap());
        let packet = format!(
            "inport == \"{port}\" && eth.src == {} && eth.dst == {} && ip4.src == {source} && ip4.dst == {destination} \
             && ip.ttl == 64 && icmp4.type == 8",
            mac(source),
            mac(next)
        );
        self.0.trace(switch, &packet)
    }

    fn arrives(&self, from: [&str; 4], destination: &str, port: &str) -> String {
        let [switch, inport, source, next] = from;
        let trace = self.trace(switch, inport, source, next, destination);
        assert!(trace.contains(&format!("output(\"{port}\")")), "{inport} to {destination}:\n{trace}");
        trace
    }

    fn is_lost(&self, from: [&str; 4], destination: &str) {
        let [switch, inport, source, next] = from;
        let trace = self.trace(switch, inport, source, next, destination);
        assert!(!trace.contains("output("), "{inport} to {destination}:\n{trace}");
    }
}

const OUT: [&str; 4] = ["out", "infra.out_x_a", "172.16.24.11", "172.16.24.1"];
const ROUTED: [&str; 4] = ["routed", "infra.routed_x_a", "172.16.26.11", "172.16.26.1"];
const CLUSTER: [&str; 4] = ["n1", "x_a", "10.244.0.3", "10.244.0.1"];

#[tokio::test]
async fn packets_get_as_far_as_their_network_reaches() {
    let cluster = cluster().await;
    // On the network itself, on another node.
    let [switch, port, source, _] = OUT;
    cluster.arrives([switch, port, source, "172.16.24.12"], "172.16.24.12", "infra.out_x_b");
    cluster.arrives(["x.blue", "x.blue_x_a", "172.16.25.11", "172.16.25.12"], "172.16.25.12", "x.blue_x_b");
    // By the cluster router: to pods of the cluster and back, and from one routed network to the other. The source stays.
    for (from, destination, port) in [
        (OUT, "10.244.1.3", "x_b"),
        (ROUTED, "10.244.1.3", "x_b"),
        (CLUSTER, "172.16.24.12", "infra.out_x_b"),
        (CLUSTER, "172.16.26.12", "infra.routed_x_b"),
        (OUT, "172.16.26.12", "infra.routed_x_b"),
        (ROUTED, "172.16.24.12", "infra.out_x_b"),
    ] {
        let trace = cluster.arrives(from, destination, port);
        assert!(!trace.contains("ip4.src"), "{trace}");
    }
    // To the outside, from the address of the node whose gateway router is taken. Traces are of no chassis, and every port is where they are:
    // any node's policy may take the packet.
    let [switch, port, source, next] = OUT;
    let trace = cluster.trace(switch, port, source, next, "192.0.2.1");
    let by = |node: &str, address: &str| {
        trace.contains(&format!("output(\"breth0_{node}\")"))
            && trace.contains(&format!("ct_snat(ip4.src={address})"))
    };
    assert!(by("n1", "172.18.0.2") || by("n2", "172.18.0.3"), "{trace}");
    // Nothing chooses among several gateway routers.
    assert!(!cluster.0.sbctl(&["lflow-list"]).contains("select("), "there is a group");
    // The cluster's own pods leave by their node, as without the networks.
    let trace = cluster.arrives(CLUSTER, "192.0.2.1", "breth0_n1");
    assert!(trace.contains("ct_snat(ip4.src=172.18.0.2)"), "{trace}");
}

#[tokio::test]
async fn packets_get_no_further_than_their_network_reaches() {
    let cluster = cluster().await;
    cluster.is_lost(ROUTED, "192.0.2.1");
    cluster.is_lost(ROUTED, "172.18.0.2");
    // Isolated networks of one range: also to the MAC address of a pod on the other.
    let blue = |next: &'static str| ["x.blue", "x.blue_x_a", "172.16.25.11", next];
    cluster.is_lost(blue("172.16.25.13"), "172.16.25.13");
    for destination in ["10.244.1.3", "172.16.24.12", "192.0.2.1"] {
        cluster.is_lost(blue("172.16.25.1"), destination);
    }
    // For the cluster router it is an address of the outside.
    cluster.arrives(CLUSTER, "172.16.25.12", "breth0_n1");
    // Nor from an address that is not the pod's.
    cluster.is_lost(["out", "infra.out_x_a", "172.16.24.99", "172.16.24.1"], "10.244.1.3");
}
