//! Virtual networks that list each other, on a real northbound database, and what OVN makes of them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[allow(dead_code, reason = "shared with the other tests")]
mod common;
mod northd;

use api::MacAddr;
use common::{Controller, Server, config, lists_with_networks, network, networks, node, pod};
use controller::engine::Input;
use controller::state::Watched;
use northd::Northd;
use serde_json::{Value, json};

fn listing(namespace: &str, name: &str, third: u8, reach: &str, peers: &[&str]) -> Value {
    let spec = json!({"reach": reach, "subnets": [format!("172.16.{third}.0/24")], "peers": peers});
    network(namespace, name, third, spec)
}

fn asking(namespace: &str, name: &str, node: &str, network: &str, address: &str) -> Value {
    let mut object = pod(namespace, name, &format!("uid-{name}"), node);
    let request = json!([{"name": network, "interface": "net1", "ip_address": address}]);
    object["metadata"]["annotations"] = json!({"ovnNetwork": request.to_string()});
    object
}

/// Three in a row, of which the last is routed: `blue` and `red` list each other, and `red` and `out`; `hostile` lists them all.
fn four() -> Vec<Value> {
    vec![
        listing("x", "blue", 1, "Isolated", &["y/red"]),
        listing("y", "red", 2, "Isolated", &["x/blue", "z/out"]),
        listing("z", "out", 3, "Outside", &["y/red"]),
        listing("h", "hostile", 4, "Isolated", &["x/blue", "y/red", "z/out"]),
    ]
}

fn all_lists(network_list: Vec<Value>, pod_list: Vec<Value>) -> Vec<Input> {
    lists_with_networks(network_list, vec![node("n1", 1), node("n2", 2)], pod_list)
}

fn dump(server: &Server) -> Vec<String> {
    server.rows(&[
        ("Logical_Switch", "name,other_config,external_ids"),
        ("Logical_Switch_Port", "name,type,addresses,options,external_ids"),
        ("Logical_Router", "name,external_ids"),
        ("Logical_Router_Port", "name,mac,networks,peer,options,external_ids"),
        ("Logical_Router_Static_Route", "ip_prefix,nexthop,output_port,route_table,external_ids"),
    ])
}

#[tokio::test]
async fn ways_between_peers_come_and_go_and_leave_nothing() {
    let server = Server::northbound();
    let mut controller = Controller::started(&server, all_lists(vec![], vec![])).await;
    let before = dump(&server);
    let all = four();
    controller
        .feed([networks(Watched::Apply(all[0].clone())), networks(Watched::Apply(all[3].clone()))])
        .await;
    assert!(!server.nbctl(&["lr-list"]).contains("_peers"), "one that lists it is missing");
    controller
        .feed([networks(Watched::Apply(all[1].clone())), networks(Watched::Apply(all[2].clone()))])
        .await;
    let routers = server.nbctl(&["lr-list"]);
    assert!(routers.contains("(x.blue_peers)") && routers.contains("(y.red_peers)"), "{routers}");
    assert!(!routers.contains("z.out") && !routers.contains("hostile"), "{routers}");
    for (router, port) in [
        ("x.blue_peers", "rtos-x.blue"),
        ("x.blue_peers", "rtop-x.blue_y.red"),
        ("y.red_peers", "rtop-y.red_x.blue"),
        ("y.red_peers", "rtop-y.red_z.out"),
        ("ovn_cluster_router", "rtop-z.out_y.red"),
    ] {
        let ports = server.nbctl(&["lrp-list", router]);
        assert!(ports.contains(&format!("({port})")), "{router} has no {port}: {ports}");
    }
    assert!(!dump(&server).join("\n").contains("rtop-h.hostile"), "nobody lists it");
    let whole = dump(&server);

    // No longer listed on one side: the way goes at once, the others stay.
    let mut alone = all[2].clone();
    alone["spec"]["peers"] = json!([]);
    controller.feed([networks(Watched::Apply(alone))]).await;
    assert!(!server.nbctl(&["lrp-list", "ovn_cluster_router"]).contains("rtop-"));
    assert!(!server.nbctl(&["lrp-list", "y.red_peers"]).contains("z.out"));
    assert!(server.nbctl(&["lrp-list", "y.red_peers"]).contains("rtop-y.red_x.blue"));
    controller.feed([networks(Watched::Apply(all[2].clone()))]).await;
    assert_eq!(dump(&server), whole);

    controller.feed([networks(Watched::Delete(("y", "red")))]).await;
    assert!(!server.nbctl(&["lr-list"]).contains("_peers"));
    for (space, name) in [("x", "blue"), ("z", "out"), ("h", "hostile")] {
        controller.feed([networks(Watched::Delete((space, name)))]).await;
    }
    assert_eq!(dump(&server), before);
}

#[tokio::test]
async fn a_restart_sends_nothing_and_removes_what_went_meanwhile() {
    let server = Server::northbound();
    drop(Controller::started(&server, all_lists(vec![], vec![])).await);
    let before = dump(&server);
    drop(Controller::started(&server, all_lists(four(), vec![])).await);
    let done = server.transactions();
    let mut reversed = four();
    reversed.reverse();
    let second = Controller::started(&server, all_lists(reversed, vec![])).await;
    assert_eq!((second.metrics.transactions.get(), server.transactions()), (0, done));
    drop(second);
    // A way of ours that nobody wants any more.
    server.nbctl(&["lrp-add", "ovn_cluster_router", "rtop-old", "0a:00:00:00:00:01", "169.254.9.9/32"]);
    server.nbctl(&[
        "set",
        "Logical_Router_Port",
        "rtop-old",
        "external_ids:slipstream.dev/virtual-network=x/blue",
    ]);
    drop(Controller::started(&server, all_lists(vec![], vec![])).await);
    assert_eq!(dump(&server), before);
}

#[tokio::test]
async fn what_somebody_else_changes_is_put_right() {
    let server = Server::northbound();
    let mut controller = Controller::started(&server, all_lists(four(), vec![])).await;
    let before = dump(&server);
    for args in [
        &["lr-del", "x.blue_peers"][..],
        &["lrp-del", "rtop-y.red_x.blue"],
        &["set", "Logical_Router_Port", "rtop-z.out_y.red", "peer=other"],
        &["--route-table=y.red", "lr-route-del", "y.red_peers", "172.16.1.0/24"],
        &["lsp-del", "stor-x.blue"],
    ] {
        server.nbctl(args);
        assert_ne!(dump(&server), before, "{args:?} does nothing");
        controller.settle_until(|| dump(&server) == before).await;
        assert_eq!(dump(&server), before, "after {args:?}");
    }
}

#[tokio::test]
async fn five_hundred_networks_in_a_ring_are_connected_and_one_change_sends_little() {
    let count = 500_u32;
    let one = |at: u32| {
        let peers = [(at + 1) % count, (at + count - 1) % count].map(|other| format!("n{other}"));
        let net = format!("172.{}.{}.0/24", 16 + at / 256, at % 256);
        network("x", &format!("n{at}"), 1, json!({"subnets": [net], "peers": peers}))
    };
    let server = Server::northbound();
    let all: Vec<Value> = (0..count).map(one).collect();
    let mut controller = Controller::started(&server, all_lists(all.clone(), vec![])).await;
    let ports = || server.nbctl(&["--bare", "--columns=name", "list", "Logical_Router_Port"]);
    assert_eq!(ports().lines().filter(|line| line.starts_with("rtop-")).count(), 1000);
    let whole = dump(&server);
    let done = server.transactions();
    let mut alone = one(7);
    alone["spec"]["peers"] = json!([]);
    controller.feed([networks(Watched::Apply(alone))]).await;
    assert_eq!(server.transactions() - done, 1, "one transaction");
    assert_eq!(ports().lines().filter(|line| line.starts_with("rtop-")).count(), 996);
    controller.feed([networks(Watched::Apply(one(7)))]).await;
    assert_eq!(dump(&server), whole);
    drop(controller);
    let second = Controller::started(&server, all_lists(all, vec![])).await;
    assert_eq!(second.metrics.transactions.get(), 0, "a restart at that size");
}

#[tokio::test]
async fn packets_reach_the_peers_of_their_network_and_nothing_behind_them() {
    let northd = Northd::start();
    let mut controller = Controller::start(northd.server.client(), config()).await;
    let pods = vec![
        asking("x", "a", "n1", "blue", "172.16.1.11"),
        asking("y", "b", "n2", "red", "172.16.2.12"),
        asking("z", "c", "n1", "out", "172.16.3.13"),
        asking("h", "d", "n1", "hostile", "172.16.4.14"),
        pod("x", "plain", "uid-p", "n2"),
    ];
    controller.feed(all_lists(four(), pods)).await;
    let ports = [("x.blue_x_a", 1), ("y.red_y_b", 2), ("z.out_z_c", 1), ("h.hostile_h_d", 1), ("x_plain", 2)];
    northd.wait_for(ports.iter().map(|(port, _)| *port).chain(["rtoe-GR_n2", "rtop-z.out_y.red"]));
    for (port, number) in ports {
        northd.bind(port, number);
    }
    let trace = |switch: &str, port: &str, source: &str, gateway: &str, to: &str| {
        let mac = |ip: &str| MacAddr::from_ip(ip.parse().unwrap());
        let packet = format!(
            "inport == \"{port}\" && eth.src == {} && eth.dst == {} && ip4.src == {source} && ip4.dst == {to} && \
             ip.ttl == 64 && icmp4.type == 8",
            mac(source),
            mac(gateway)
        );
        northd.trace(switch, &packet)
    };
    let blue = |to: &str| trace("x.blue", "x.blue_x_a", "172.16.1.11", "172.16.1.1", to);
    let red = |to: &str| trace("y.red", "y.red_y_b", "172.16.2.12", "172.16.2.1", to);
    let out = |to: &str| trace("z.out", "z.out_z_c", "172.16.3.13", "172.16.3.1", to);
    let hostile = |to: &str| trace("h.hostile", "h.hostile_h_d", "172.16.4.14", "172.16.4.1", to);
    for (trace, port) in [
        (blue("172.16.2.12"), "y.red_y_b"),
        (red("172.16.1.11"), "x.blue_x_a"),
        (red("172.16.3.13"), "z.out_z_c"),
        (out("172.16.2.12"), "y.red_y_b"),
    ] {
        assert!(trace.contains(&format!("output(\"{port}\")")), "{port}:\n{trace}");
    }
    let plain = northd.server.nbctl(&["lsp-get-addresses", "x_plain"]);
    let plain = plain.split_whitespace().nth(1).unwrap().to_owned();
    for (what, trace) in [
        ("not by a peer to its peer", blue("172.16.3.13")),
        ("not to the cluster's pods by a routed peer", red(&plain)),
        ("not to the outside by a peer", red("192.0.2.1")),
        ("not to who does not list it", hostile("172.16.1.11")),
        ("not to the routed one", hostile("172.16.3.13")),
        ("nobody to the hostile one", blue("172.16.4.14")),
    ] {
        assert!(!trace.contains("output("), "{what}:\n{trace}");
    }
    // Nor back: a network that reaches the outside sends it there, as what is nobody's.
    let back = out("172.16.1.11");
    let of_cluster = trace("n2", "x_plain", &plain, "10.244.1.1", "172.16.2.12");
    assert!(!of_cluster.contains("y.red_y_b"), "the cluster's pods to an isolated network:\n{of_cluster}");
    // ovn-trace is of no chassis, so the policies to the gateway routers of all nodes match: any may take the packet.
    let by = |node: &str, address: &str| {
        back.contains(&format!("output(\"breth0_{node}\")"))
            && back.contains(&format!("ct_snat(ip4.src={address})"))
    };
    assert!(!back.contains("x.blue_x_a"), "{back}");
    assert!(by("n1", "172.18.0.2") || by("n2", "172.18.0.3"), "{back}");
}

#[tokio::test]
async fn the_second_family_reaches_peers_too() {
    let northd = Northd::start();
    let mut controller = Controller::start(northd.server.client(), config()).await;
    let six =
        |name: &str, net: &str, peer: &str| network("x", name, 1, json!({"subnets": [net], "peers": [peer]}));
    let all = vec![six("blue", "fd00:1::/64", "red"), six("red", "fd00:2::/64", "blue")];
    let pods =
        vec![asking("x", "a", "n1", "blue", "fd00:1::11"), asking("x", "b", "n2", "red", "fd00:2::12")];
    controller.feed(all_lists(all, pods)).await;
    northd.wait_for(["x.blue_x_a", "x.red_x_b", "rtop-x.red_x.blue"].into_iter());
    northd.bind("x.blue_x_a", 1);
    northd.bind("x.red_x_b", 2);
    let mac = |ip: &str| MacAddr::from_ip(ip.parse().unwrap());
    let packet = format!(
        "inport == \"x.blue_x_a\" && eth.src == {} && eth.dst == {} && ip6.src == fd00:1::11 && ip6.dst == fd00:2::12 && \
         ip.ttl == 64 && icmp6.type == 128",
        mac("fd00:1::11"),
        mac("fd00:1::1")
    );
    let trace = northd.trace("x.blue", &packet);
    assert!(trace.contains("output(\"x.red_x_b\")"), "{trace}");
}
