//! Second uplinks of nodes and external gateways of namespaces on a real northbound database, and what OVN makes of them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[allow(dead_code, reason = "shared with the other tests")]
mod common;
mod northd;

use common::{Controller, Server, config, lists, node, nodes, pod, pods};
use controller::engine::Input;
use controller::index::convert;
use controller::state::Watched;
use northd::Northd;
use serde_json::{Value, json};

/// A node of this gateway mode with a second uplink.
fn with_second(name: &str, number: u8, mode: &str) -> Value {
    let mut object = node(name, number);
    let value = &mut object["metadata"]["annotations"]["k8s.ovn.org/l3-gateway-config"];
    let mut gateway: Value = serde_json::from_str(value.as_str().unwrap()).unwrap();
    let own = &mut gateway["default"];
    own["mode"] = mode.into();
    own["exgw-interface-id"] = format!("brexgw_{name}").into();
    own["exgw-mac-address"] = format!("02:42:ac:13:00:0{}", number + 1).into();
    own["exgw-ip-addresses"] = json!([format!("172.19.0.{}/16", number + 1)]);
    own["exgw-ip-address"] = own["exgw-ip-addresses"][0].clone();
    *value = gateway.to_string().into();
    object
}

fn read(name: &str, gateways: Option<&str>, bfd: bool) -> Input {
    let mut annotations = json!({});
    if let Some(gateways) = gateways {
        annotations["k8s.ovn.org/routing-external-gws"] = gateways.into();
    }
    if bfd {
        annotations["k8s.ovn.org/bfd-enabled"] = "".into();
    }
    let object = json!({"metadata": {"name": name, "annotations": annotations}});
    let read = convert::namespace(serde_json::from_value(object).unwrap()).unwrap();
    Input::Namespaces(Watched::Apply(read))
}

/// The first lists: namespace `x` with these gateways, and the pods `a` on `n1` and `b` on `n2` in it.
fn all_lists(node_list: Vec<Value>, gateways: Option<&str>, bfd: bool) -> Vec<Input> {
    let pod_list = vec![pod("x", "a", "uid-a", "n1"), pod("x", "b", "uid-b", "n2")];
    let mut inputs = lists(node_list, pod_list);
    for input in &mut inputs {
        if let Input::Namespaces(change) = input {
            let Input::Namespaces(Watched::Apply(namespace)) = read("x", gateways, bfd) else {
                unreachable!()
            };
            *change = Watched::Reset(vec![namespace]);
        }
    }
    inputs
}

fn one_with_second() -> Vec<Value> {
    vec![with_second("n1", 1, "shared"), node("n2", 2)]
}

const GATEWAYS: &str = "172.19.0.1, 172.19.0.9";

/// Sources and next hops of the routes to external gateways of a gateway router, with their ports.
fn routes(server: &Server, router: &str) -> Vec<String> {
    let listed = server.nbctl(&["lr-route-list", router]);
    let of_pods = listed.lines().filter(|line| line.contains("src-ip"));
    let mut found: Vec<_> =
        of_pods.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    found.sort();
    found
}

fn sessions(server: &Server) -> Vec<String> {
    let rows = server.rows(&[("BFD", "logical_port,dst_ip")]);
    rows.into_iter().map(|line| line.replace('"', "")).collect()
}

/// Identity and content of all rows that this is about.
fn everything(server: &Server) -> Vec<String> {
    server.rows(&[
        ("BFD", "_uuid,logical_port,dst_ip,external_ids"),
        ("Logical_Router_Static_Route", "_uuid,ip_prefix,nexthop,output_port,options,bfd,external_ids"),
        ("Logical_Router_Policy", "_uuid,priority,match,nexthops"),
        ("Logical_Router_Port", "_uuid,name,networks"),
        ("Logical_Switch_Port", "_uuid,name,type,options"),
        ("Address_Set", "_uuid,name,addresses"),
    ])
}

#[tokio::test]
async fn a_second_uplink_comes_and_goes_with_the_annotation_also_without_a_controller() {
    let server = Server::northbound();
    let without = || lists(vec![node("n1", 1)], vec![]);
    let mut controller = Controller::started(&server, without()).await;
    let before = everything(&server);
    controller.feed([nodes(Watched::Apply(with_second("n1", 1, "shared")))]).await;
    let port = server.rows(&[("Logical_Router_Port", "name,mac,networks,external_ids")]);
    let port = port.iter().find(|line| line.contains("exgw-")).unwrap();
    for part in ["exgw-rtoe-GR_n1", "02:42:ac:13:00:02", "172.19.0.2/16", "gateway-physical-ip=yes"] {
        assert!(port.contains(part), "{part}: {port}");
    }
    let mut listed: Vec<_> = server.nbctl(&["lsp-list", "exgw-ext_n1"]).lines().map(str::to_owned).collect();
    listed.sort_by_key(|line| line.split('(').nth(1).map(str::to_owned));
    assert!(listed[0].ends_with("(brexgw_n1)") && listed[1].ends_with("(exgw-etor-GR_n1)"), "{listed:?}");
    let localnet = server.nbctl(&["lsp-get-options", "brexgw_n1"]);
    assert_eq!(localnet, "network_name=exgwphysnet");
    assert!(controller.engine.foreign().is_empty());
    controller.feed([nodes(Watched::Apply(node("n1", 1)))]).await;
    assert_eq!(everything(&server), before);
    controller.feed([nodes(Watched::Apply(with_second("n1", 1, "shared")))]).await;
    drop(controller);
    let controller = Controller::started(&server, without()).await;
    assert_eq!(everything(&server), before, "it went while no controller ran");
    drop(controller);
    // The node, too.
    drop(Controller::started(&server, lists(vec![with_second("n1", 1, "shared")], vec![])).await);
    drop(Controller::started(&server, lists(vec![], vec![])).await);
    assert!(!server.nbctl(&["ls-list"]).contains("n1"), "{}", server.nbctl(&["ls-list"]));
}

#[tokio::test]
async fn rows_of_ovn_kubernetes_are_taken_over() {
    let server = Server::northbound();
    drop(Controller::started(&server, all_lists(one_with_second(), Some(GATEWAYS), true)).await);
    // Without marks they are as ovn-kubernetes writes them.
    for table in ["Logical_Router_Static_Route", "BFD"] {
        for uuid in server.nbctl(&["--bare", "--columns=_uuid", "list", table]).split_whitespace() {
            server.nbctl(&["remove", table, uuid, "external_ids", "slipstream.dev/external-gateways"]);
        }
    }
    let without_marks = |server: &Server| {
        server
            .rows(&[("Logical_Router_Static_Route", "_uuid,ip_prefix,nexthop,bfd"), ("BFD", "_uuid,dst_ip")])
    };
    let before = without_marks(&server);
    let controller = Controller::start(server.client(), config()).await;
    assert_eq!(controller.engine.foreign().features["AdminPolicyBasedExternalRoute"].rows, 4);
    drop(controller);
    let controller = Controller::started(&server, all_lists(one_with_second(), Some(GATEWAYS), true)).await;
    assert_eq!(without_marks(&server), before);
    assert!(controller.engine.foreign().is_empty(), "{}", controller.engine.foreign());
}

#[tokio::test]
async fn routes_follow_annotation_pods_and_uplink() {
    let server = Server::northbound();
    let mut controller = Controller::started(&server, all_lists(one_with_second(), None, false)).await;
    let before = everything(&server);
    controller.feed([read("x", Some(GATEWAYS), false)]).await;
    let of_a =
        |gateway: &str, port: &str| format!("10.244.0.3 {gateway} src-ip {port} ecmp ecmp-symmetric-reply");
    let second = "exgw-rtoe-GR_n1";
    assert_eq!(routes(&server, "GR_n1"), [of_a("172.19.0.1", second), of_a("172.19.0.9", second)]);
    let on_n2 = routes(&server, "GR_n2");
    assert!(on_n2.len() == 2 && on_n2.iter().all(|route| route.contains(" rtoe-GR_n2 ")), "{on_n2:?}");
    // A pod more, and one that moves, are one transaction each.
    let done = server.transactions();
    controller.feed([pods(Watched::Apply(pod("x", "c", "uid-c", "n1")))]).await;
    assert_eq!((server.transactions() - done, routes(&server, "GR_n1").len()), (1, 4));
    controller.feed([pods(Watched::Apply(pod("x", "c", "uid-c2", "n2")))]).await;
    assert_eq!(server.transactions() - done, 2);
    assert_eq!((routes(&server, "GR_n1").len(), routes(&server, "GR_n2").len()), (2, 4));
    controller.feed([pods(Watched::Delete(("x", "c")))]).await;
    assert_eq!(routes(&server, "GR_n2"), on_n2);
    // Of another namespace, and on the node's own network: none.
    let mut host = pod("x", "host", "uid-host", "n1");
    host["spec"]["hostNetwork"] = true.into();
    controller.feed([pods(Watched::Apply(pod("y", "d", "uid-d", "n1"))), pods(Watched::Apply(host))]).await;
    assert_eq!(routes(&server, "GR_n1").len(), 2);
    controller.feed([pods(Watched::Delete(("y", "d"))), pods(Watched::Delete(("x", "host")))]).await;
    // The uplink goes, and comes back.
    controller.feed([nodes(Watched::Apply(node("n1", 1)))]).await;
    assert_eq!(routes(&server, "GR_n1"), ["172.19.0.1", "172.19.0.9"].map(|ip| of_a(ip, "rtoe-GR_n1")));
    controller.feed([nodes(Watched::Apply(with_second("n1", 1, "shared")))]).await;
    assert_eq!(routes(&server, "GR_n1").len(), 2);
    controller.feed([read("x", Some("172.19.0.9"), false)]).await;
    assert_eq!(routes(&server, "GR_n1").len(), 1);
    controller.feed([read("x", None, false)]).await;
    let ports = |all: Vec<String>| all.into_iter().filter(|line| !line.contains("exgw-")).count();
    assert_eq!(ports(everything(&server)), ports(before));
    assert_eq!(routes(&server, "GR_n1"), [] as [String; 0]);
    controller.feed([read("x", Some(GATEWAYS), false)]).await;
    controller.feed([Input::Namespaces(Watched::Delete("x".to_owned()))]).await;
    assert_eq!(routes(&server, "GR_n1"), [] as [String; 0]);
}

#[tokio::test]
async fn sessions_of_bfd_are_one_for_each_port_and_gateway_and_come_and_go_in_place() {
    let server = Server::northbound();
    let mut controller =
        Controller::started(&server, all_lists(one_with_second(), Some(GATEWAYS), false)).await;
    controller.feed([pods(Watched::Apply(pod("x", "c", "uid-c", "n1")))]).await;
    let same = |server: &Server| server.rows(&[("Logical_Router_Static_Route", "_uuid,ip_prefix,nexthop")]);
    let (before, plain) = (same(&server), everything(&server));
    controller.feed([read("x", Some(GATEWAYS), true)]).await;
    assert_eq!(
        sessions(&server),
        [
            "BFD exgw-rtoe-GR_n1,172.19.0.1",
            "BFD exgw-rtoe-GR_n1,172.19.0.9",
            "BFD rtoe-GR_n2,172.19.0.1",
            "BFD rtoe-GR_n2,172.19.0.9",
        ]
        .map(str::to_owned)
    );
    let with = server.nbctl(&["--bare", "--columns=_uuid", "find", "Logical_Router_Static_Route", "bfd!=[]"]);
    assert_eq!(with.split_whitespace().count(), 6, "all routes to gateways");
    assert_eq!(same(&server), before, "no route was made anew");
    // What somebody else does to them is put right.
    let right = everything(&server);
    for uuid in with.split_whitespace().take(2) {
        server.nbctl(&["clear", "Logical_Router_Static_Route", uuid, "bfd"]);
    }
    controller.settle_until(|| everything(&server) == right).await;
    assert_eq!(everything(&server), right);
    let of_n2 = server.nbctl(&["--bare", "--columns=_uuid", "find", "BFD", "logical_port=rtoe-GR_n2"]);
    server.nbctl(&["destroy", "BFD", of_n2.split_whitespace().next().unwrap()]);
    controller.settle_until(|| sessions(&server).len() == 4).await;
    assert_eq!(sessions(&server).len(), 4);
    let with = server.nbctl(&["--bare", "--columns=_uuid", "find", "Logical_Router_Static_Route", "bfd!=[]"]);
    assert_eq!(with.split_whitespace().count(), 6);
    // The status is ovn-northd's.
    let done = server.transactions();
    server.nbctl(&["set", "BFD", of_n2.split_whitespace().nth(1).unwrap(), "status=up"]);
    controller.catch_up().await;
    controller.engine.settle().await.unwrap();
    assert_eq!(server.transactions() - done, 1, "nothing but the one of the test");
    controller.feed([read("x", Some(GATEWAYS), false)]).await;
    assert_eq!(everything(&server), plain);
}

#[tokio::test]
async fn a_restart_sends_nothing_and_one_over_other_annotations_removes_what_is_too_much() {
    let server = Server::northbound();
    let nodes = || vec![with_second("n1", 1, "local"), node("n2", 2)];
    drop(Controller::started(&server, all_lists(nodes(), Some(GATEWAYS), true)).await);
    let (before, done) = (everything(&server), server.transactions());
    let mut second = Controller::started(&server, all_lists(nodes(), Some(GATEWAYS), true)).await;
    assert_eq!((second.metrics.transactions.get(), server.transactions()), (0, done));
    assert_eq!(second.engine.verify().await.unwrap(), 0);
    assert!(second.engine.foreign().is_empty(), "{}", second.engine.foreign());
    drop(second);
    // A gateway that cannot be read keeps its routes, its sessions and its policy.
    let mut broken = node("n1", 1);
    broken["metadata"]["annotations"]["k8s.ovn.org/l3-gateway-config"] = "{".into();
    drop(Controller::started(&server, all_lists(vec![broken, node("n2", 2)], Some(GATEWAYS), true)).await);
    assert_eq!(everything(&server), before);
    drop(Controller::started(&server, all_lists(nodes(), Some("172.19.0.9"), false)).await);
    assert_eq!((sessions(&server).len(), routes(&server, "GR_n1").len()), (0, 1));
    assert!(server.nbctl(&["lr-policy-list", "ovn_cluster_router"]).contains("501"));
    drop(Controller::started(&server, all_lists(nodes(), None, false)).await);
    assert_eq!(routes(&server, "GR_n1").len() + routes(&server, "GR_n2").len(), 0);
    assert!(!server.nbctl(&["lr-policy-list", "ovn_cluster_router"]).contains("501"));
    assert_eq!(server.nbctl(&["list", "Address_Set"]), "");
}

#[tokio::test]
async fn bad_entries_are_told_of_once_and_the_good_ones_are_used() {
    let server = Server::northbound();
    let mut controller = Controller::started(&server, all_lists(one_with_second(), None, false)).await;
    let bad = "172.19.0.1,gateway.example,127.0.0.1,fd00:19::1";
    controller.feed([read("x", Some(bad), false)]).await;
    assert_eq!(routes(&server, "GR_n1").len(), 1);
    let mut told = Vec::new();
    while let Ok(notice) = controller.notices.try_recv() {
        let object = notice.object.unwrap();
        assert_eq!((object.kind, object.name.as_str(), object.namespace), ("Namespace", "x", None));
        told.push(notice.message);
    }
    assert_eq!(told.len(), 3, "{told:#?}");
    for part in ["`gateway.example` is no IP address", "`127.0.0.1` is a loopback", "fd00:19::1 is not used"]
    {
        assert!(told.iter().any(|message| message.contains(part)), "{part}: {told:#?}");
    }
    assert!(told.iter().all(|message| message.contains("k8s.ovn.org/routing-external-gws")), "{told:#?}");
    controller.feed([read("x", Some(bad), true)]).await;
    assert!(controller.notices.try_recv().is_err(), "nothing new is wrong");
}

#[tokio::test]
async fn ovn_sends_what_pods_send_to_the_outside_by_the_second_uplink_in_both_modes() {
    for mode in ["shared", "local"] {
        let northd = Northd::start();
        let mut controller = Controller::start(northd.server.client(), config()).await;
        let node_list = vec![with_second("n1", 1, mode), node("n2", 2)];
        controller.feed(all_lists(node_list, Some("172.19.0.1"), false)).await;
        controller.feed([pods(Watched::Apply(pod("y", "d", "uid-d", "n1")))]).await;
        northd.wait_for(["x_a", "y_d", "exgw-rtoe-GR_n1", "brexgw_n1"].into_iter());
        for port in ["x_a", "y_d"] {
            northd.bind(port, 1);
        }
        let trace = |port: &str, last: u8| {
            let packet = format!(
                "inport == \"{port}\" && eth.src == 0a:58:0a:f4:00:0{last} && eth.dst == 0a:58:0a:f4:00:01 && \
                 ip4.src == 10.244.0.{last} && ip4.dst == 198.51.100.7 && ip.ttl == 64 && icmp4.type == 8"
            );
            northd.trace("n1", &packet)
        };
        northd.know("GR_n1", "exgw-rtoe-GR_n1", "172.19.0.1");
        let with = trace("x_a", 3);
        assert!(with.contains("output(\"brexgw_n1\")"), "{mode}: {with}");
        let without = trace("y_d", 4);
        assert!(!without.contains("brexgw_n1"), "{mode}: {without}");
        // Once BFD watches the gateway, it is used as long as it is alive.
        controller.feed([read("x", Some("172.19.0.1"), true)]).await;
        let session = || northd.sbctl(&["--bare", "--columns=logical_port,dst_ip,status", "list", "BFD"]);
        northd.wait_until(|| session().contains("exgw-rtoe-GR_n1\n172.19.0.1"));
        for (status, used) in [("down", false), ("up", true)] {
            let uuid =
                northd.sbctl(&["--bare", "--columns=_uuid", "find", "BFD", "logical_port=exgw-rtoe-GR_n1"]);
            northd.sbctl(&["set", "BFD", uuid.trim(), &format!("status={status}")]);
            northd.wait_until(|| trace("x_a", 3).contains("output(\"brexgw_n1\")") == used);
        }
    }
}
