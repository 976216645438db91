//! Virtual networks on a real northbound database.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[allow(dead_code, reason = "shared with the other tests")]
mod common;

use common::{Controller, Server, lists_with_networks, network, networks, node, nodes, pod, pods};
use controller::engine::Input;
use controller::state::Watched;
use serde_json::{Value, json};

fn asking(name: &str, uid: &str, node: &str, request: &Value) -> Value {
    let mut object = pod("x", name, uid, node);
    object["metadata"]["annotations"] = json!({"ovnNetwork": request.to_string()});
    object
}

fn outside() -> Value {
    let spec = json!({"scope": "Cluster", "reach": "Outside", "subnets": ["172.16.24.0/24"], "gateways": ["172.16.24.1"]});
    network("infra", "ovn-ls-24", 1, spec)
}

fn isolated() -> Value {
    network("x", "blue", 2, json!({"subnets": ["172.16.25.0/24", "fd00:25::/64"]}))
}

fn two_pods() -> Vec<Value> {
    let both = json!([{"name": "ovn-ls-24", "interface": "net0", "ip_address": "172.16.24.55"},
        {"name": "blue", "interface": "net1"}, {"name": "blue", "interface": "net2"}]);
    let one = json!([{"name": "ovn-ls-24", "interface": "net0", "defaultGateway": "true"}]);
    vec![
        asking("a", "uid-a", "n1", &both),
        asking("b", "uid-b", "n2", &one),
        pod("x", "plain", "uid-p", "n1"),
    ]
}

fn all_lists(network_list: Vec<Value>, pod_list: Vec<Value>) -> Vec<Input> {
    lists_with_networks(network_list, vec![node("n1", 1), node("n2", 2)], pod_list)
}

/// The whole database, without what differs from one run to the next.
fn dump(server: &Server) -> Vec<String> {
    server.rows(&[
        ("Logical_Switch", "name,other_config,external_ids"),
        ("Logical_Switch_Port", "name,type,addresses,port_security,options,external_ids"),
        ("Logical_Router_Port", "name,mac,networks,options,external_ids"),
        ("Logical_Router_Static_Route", "ip_prefix,nexthop,policy,route_table,external_ids"),
        ("Logical_Router_Policy", "priority,match,action,nexthops,external_ids"),
        ("NAT", "type,external_ip,logical_ip,options,external_ids"),
    ])
}

/// The gateway routers to which policies send what is for the outside, in order.
fn ways_out(server: &Server) -> Vec<String> {
    let find = ["--bare", "--columns=match,nexthops", "find", "Logical_Router_Policy", "action=reroute"];
    let text = server.nbctl(&find);
    let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    let of_network = lines.chunks(2).filter(|pair| pair[0].contains("rtos-ovn-ls-24"));
    let mut found: Vec<String> = of_network.map(|pair| pair[1].to_owned()).collect();
    found.sort_unstable();
    found
}

fn has(server: &Server, command: &[&str], parts: &[&str]) {
    let text = server.nbctl(command);
    for part in parts {
        assert!(text.contains(part), "{command:?} has no {part}:\n{text}");
    }
}

#[tokio::test]
async fn networks_and_their_pods_come_and_go_and_leave_nothing() {
    let server = Server::northbound();
    let mut controller =
        Controller::started(&server, all_lists(vec![], vec![pod("x", "plain", "uid-p", "n1")])).await;
    let before = dump(&server);

    controller.feed([networks(Watched::Apply(outside())), networks(Watched::Apply(isolated()))]).await;
    has(
        &server,
        &["--bare", "--columns=name,other_config,external_ids", "find", "Logical_Switch", "name=ovn-ls-24"],
        &["subnet=172.16.24.0/24", "gateway_ip=172.16.24.1/24", "k8s.ovn.org/network=infra/ovn-ls-24"],
    );
    has(&server, &["ls-list"], &["(ovn-ls-24)", "(x.blue)"]);
    has(&server, &["lrp-list", "ovn_cluster_router"], &["(rtos-ovn-ls-24)"]);
    has(&server, &["lsp-list", "ovn-ls-24"], &["(stor-ovn-ls-24)"]);
    for (router, external) in [("GR_n1", "172.18.0.2"), ("GR_n2", "172.18.0.3")] {
        has(&server, &["lr-route-list", router], &["172.16.24.0/24"]);
        has(&server, &["lr-nat-list", router], &["172.16.24.0/24", external]);
    }
    assert_eq!(ways_out(&server), ["100.64.0.2", "100.64.0.3"], "a policy on each node");

    let asked = two_pods();
    controller.feed(asked[..2].iter().map(|object| pods(Watched::Apply(object.clone())))).await;
    has(&server, &["lsp-list", "ovn-ls-24"], &["(infra.ovn-ls-24_x_a)", "(infra.ovn-ls-24_x_b)"]);
    has(&server, &["lsp-list", "x.blue"], &["(x.blue_x_a)", "(x.blue.net2_x_a)"]);
    has(&server, &["lsp-list", "n1"], &["(x_a)", "(x_plain)"]);
    has(&server, &["lsp-get-addresses", "infra.ovn-ls-24_x_a"], &["0a:58:ac:10:18:37 172.16.24.55"]);
    has(&server, &["lsp-get-addresses", "x.blue_x_a"], &["0a:58:ac:10:19:02 172.16.25.2 fd00:25::2"]);
    has(&server, &["lsp-get-port-security", "x.blue.net2_x_a"], &["172.16.25.3 fd00:25::3"]);
    has(
        &server,
        &[
            "--bare",
            "--columns=options,external_ids",
            "find",
            "Logical_Switch_Port",
            "name=infra.ovn-ls-24_x_b",
        ],
        &[
            "00000000-0000-4000-8000-000000000002",
            "iface-id-ver=uid-b",
            "k8s.ovn.org/nad=infra/ovn-ls-24",
            "pod=true",
        ],
    );
    let last = std::iter::from_fn(|| controller.networks.try_recv().ok()).last().unwrap();
    assert!(last.status.is("InUse") && last.status.is("Ready"), "{last:?}");
    let whole = dump(&server);

    // A pod that goes takes its ports, and its successor elsewhere gets others.
    controller.feed([pods(Watched::Delete(("x", "a")))]).await;
    assert_eq!(server.nbctl(&["lsp-list", "x.blue"]), "");
    assert!(!server.nbctl(&["lsp-list", "ovn-ls-24"]).contains("x_a"));
    let mut elsewhere = asked[0].clone();
    elsewhere["metadata"]["uid"] = "uid-a2".into();
    elsewhere["spec"]["nodeName"] = "n2".into();
    controller.feed([pods(Watched::Apply(elsewhere))]).await;
    has(&server, &["lsp-get-addresses", "infra.ovn-ls-24_x_a"], &["172.16.24.55"]);
    has(&server, &["lsp-get-addresses", "x.blue_x_a"], &["172.16.25.4"]);
    has(
        &server,
        &["--bare", "--columns=options", "find", "Logical_Switch_Port", "name=x.blue_x_a"],
        &["00000000-0000-4000-8000-000000000002", "iface-id-ver=uid-a2"],
    );
    assert_eq!(controller.engine.verify().await.unwrap(), 0);
    assert_eq!(dump(&server).len(), whole.len());

    // A node that goes takes its routes and translations.
    controller.feed([nodes(Watched::Delete("n1"))]).await;
    assert_eq!(ways_out(&server), ["100.64.0.3"]);
    controller.feed([nodes(Watched::Apply(node("n1", 1)))]).await;

    controller.feed([pods(Watched::Delete(("x", "a"))), pods(Watched::Delete(("x", "b")))]).await;
    controller
        .feed([networks(Watched::Delete(("infra", "ovn-ls-24"))), networks(Watched::Delete(("x", "blue")))])
        .await;
    assert_eq!(dump(&server), before);
}

#[tokio::test]
async fn a_restart_over_the_same_networks_sends_nothing_and_keeps_addresses() {
    let server = Server::northbound();
    let first = Controller::started(&server, all_lists(vec![outside(), isolated()], two_pods())).await;
    assert!(first.engine.foreign().is_empty(), "{}", first.engine.foreign());
    drop(first);
    let (before, done) = (dump(&server), server.transactions());
    // The annotations were not written before the end: the addresses come from the ports.
    let mut all = two_pods();
    all.reverse();
    let second = Controller::started(&server, all_lists(vec![isolated(), outside()], all)).await;
    assert_eq!((second.metrics.transactions.get(), server.transactions()), (0, done));
    assert_eq!(dump(&server), before);
}

#[tokio::test]
async fn a_restart_removes_the_networks_that_went_meanwhile_and_only_those() {
    let server = Server::northbound();
    let plain = || vec![pod("x", "plain", "uid-p", "n1")];
    drop(Controller::started(&server, all_lists(vec![], plain())).await);
    let before = dump(&server);
    drop(Controller::started(&server, all_lists(vec![outside(), isolated()], two_pods())).await);
    assert!(dump(&server).len() > before.len() + 15);
    // A network of ovn-kubernetes, and a switch of somebody's.
    server.nbctl(&["ls-add", "other_ovn_layer2_switch"]);
    server.nbctl(&[
        "set",
        "Logical_Switch",
        "other_ovn_layer2_switch",
        "external_ids:k8s.ovn.org/network=other",
    ]);
    server.nbctl(&["ls-add", "somebodys"]);
    let controller = Controller::started(&server, all_lists(vec![], plain())).await;
    has(&server, &["ls-list"], &["other_ovn_layer2_switch", "somebodys"]);
    assert!(!controller.engine.foreign().is_empty(), "ovn-kubernetes' own is still told of");
    drop(controller);
    for switch in ["other_ovn_layer2_switch", "somebodys"] {
        server.nbctl(&["ls-del", switch]);
    }
    assert_eq!(dump(&server), before);
}

/// Networks of every reach by turns, and a pod on each tenth.
fn thousand() -> (Vec<Value>, Vec<Value>) {
    let one = |at: u32| {
        let (name, range) = (format!("n{at}"), format!("172.{}.{}.0/24", 16 + at / 256, at % 256));
        let mut spec = json!({"subnets": [range], "reach": "Isolated"});
        match at % 4 {
            1 => spec["reach"] = "ClusterRouter".into(),
            2 => spec["reach"] = "Outside".into(),
            3 => {
                spec["reach"] = "Localnet".into();
                spec["localnet"] = json!({"physicalNetwork": "dc", "vlan": 1 + at});
            }
            _ => {}
        }
        network("x", &name, 1, spec)
    };
    let pod = |at: u32| {
        let request = json!([{"name": format!("n{at}"), "interface": "net1"}]);
        asking(
            &format!("p{at}"),
            &format!("uid-{at}"),
            if at.is_multiple_of(20) { "n1" } else { "n2" },
            &request,
        )
    };
    ((0..1_000).map(one).collect(), (0..1_000).step_by(10).map(pod).collect())
}

#[tokio::test]
async fn a_thousand_networks_are_there_after_a_restart_and_in_an_empty_database_and_one_costs_one() {
    let server = Server::northbound();
    let (networks_of_all, pods_of_all) = thousand();
    let all = || all_lists(networks_of_all.clone(), pods_of_all.clone());
    let first = Controller::started(&server, all()).await;
    let whole = dump(&server);
    let switches = |server: &Server| server.nbctl(&["ls-list"]).matches("(x.n").count();
    assert_eq!(switches(&server), 1_000);
    drop(first);
    let done = server.transactions();
    let mut second = Controller::started(&server, all()).await;
    assert_eq!(
        (second.metrics.transactions.get(), server.transactions()),
        (0, done),
        "a restart at that size"
    );
    assert_eq!(dump(&server), whole);
    // What somebody else removes is put right, and the rest is left alone.
    server.nbctl(&["ls-del", "x.n501"]);
    second.settle_until(|| dump(&server) == whole).await;
    assert_eq!(dump(&server), whole);
    // One without pods goes and comes.
    let (gone, done) = (networks_of_all[502].clone(), server.transactions());
    second.feed([networks(Watched::Delete(("x", "n502")))]).await;
    assert_eq!((switches(&server), server.transactions() - done), (999, 1));
    second.feed([networks(Watched::Apply(gone))]).await;
    assert_eq!(dump(&server), whole);
    drop(second);
    // A database that was lost.
    let empty = Server::northbound();
    let _third = Controller::started(&empty, all()).await;
    assert_eq!(switches(&empty), 1_000);
    assert_eq!(dump(&empty).len(), whole.len());
}

#[tokio::test]
async fn what_somebody_else_changes_in_a_network_is_put_right() {
    let server = Server::northbound();
    let mut controller =
        Controller::started(&server, all_lists(vec![outside(), isolated()], two_pods())).await;
    let before = dump(&server);
    for args in [
        &["ls-del", "ovn-ls-24"][..],
        &["lsp-del", "x.blue_x_a"],
        &["lsp-set-addresses", "infra.ovn-ls-24_x_a", "unknown"],
        &["lrp-del", "rtos-ovn-ls-24"],
        &["lr-route-del", "GR_n1", "172.16.24.0/24"],
        &["lr-nat-del", "GR_n2", "snat", "172.16.24.0/24"],
        &["lr-policy-del", "ovn_cluster_router", "500"],
        &["--route-table=ovn-ls-24", "lr-route-del", "ovn_cluster_router", "0.0.0.0/0"],
    ] {
        server.nbctl(args);
        assert_ne!(dump(&server), before, "{args:?} does nothing");
        controller.settle_until(|| dump(&server) == before).await;
        assert_eq!(dump(&server), before, "after {args:?}");
    }
}

#[tokio::test]
async fn an_existing_switch_of_the_name_is_taken_over() {
    let server = Server::northbound();
    server.nbctl(&["ls-add", "ovn-ls-24"]);
    server.nbctl(&[
        "set",
        "Logical_Switch",
        "ovn-ls-24",
        "other_config:subnet=172.16.24.0/24",
        "external_ids:gateway_ip=172.16.24.1/24",
    ]);
    let uuid = server.nbctl(&["--bare", "--columns=_uuid", "find", "Logical_Switch", "name=ovn-ls-24"]);
    let _controller = Controller::started(&server, all_lists(vec![outside()], two_pods())).await;
    assert_eq!(
        server.nbctl(&["--bare", "--columns=_uuid", "find", "Logical_Switch", "name=ovn-ls-24"]),
        uuid
    );
    has(&server, &["lsp-list", "ovn-ls-24"], &["(stor-ovn-ls-24)", "(infra.ovn-ls-24_x_b)"]);
}
