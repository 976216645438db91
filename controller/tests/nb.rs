//! The engine on a real northbound database.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[allow(dead_code, reason = "shared with the other tests")]
mod common;

use common::{Controller, Server, config, lists, node, nodes, pod, pods};
use controller::metrics::ErrorKind;
use controller::state::Watched;
use ovsdb_client::{Error, Transaction};

fn two_nodes() -> Vec<serde_json::Value> {
    vec![node("n1", 1), node("n2", 2)]
}

fn two_pods() -> Vec<serde_json::Value> {
    vec![pod("x", "a", "uid-a", "n1"), pod("x", "b", "uid-b", "n2")]
}

async fn started(server: &Server) -> Controller {
    Controller::started(server, lists(two_nodes(), two_pods())).await
}

#[tokio::test]
async fn a_second_run_over_the_same_state_sends_nothing() {
    let server = Server::northbound();
    let mut controller = started(&server).await;
    assert!(server.nbctl(&["lsp-list", "n1"]).contains("x_a"));
    let (sent, done) = (controller.metrics.transactions.get(), server.transactions());
    controller.feed(lists(two_nodes(), two_pods())).await;
    for object in two_pods() {
        controller.feed([pods(Watched::Apply(object))]).await;
    }
    assert_eq!((controller.metrics.transactions.get(), server.transactions()), (sent, done));
    assert_eq!(controller.metrics.repairs.get(), 0);
}

#[tokio::test]
async fn a_restart_over_the_same_state_sends_nothing_and_keeps_addresses() {
    let server = Server::northbound();
    drop(started(&server).await);
    let before = server.nbctl(&["--format=json", "list", "Logical_Switch_Port"]);
    let done = server.transactions();
    // The annotations were not written before the end: the addresses come from the ports.
    let controller = started(&server).await;
    assert_eq!(controller.metrics.transactions.get(), 0);
    assert_eq!(server.transactions(), done);
    assert_eq!(server.nbctl(&["--format=json", "list", "Logical_Switch_Port"]), before);
    assert!(controller.engine.is_settled());
}

#[tokio::test]
async fn a_restart_removes_what_went_meanwhile_and_only_that() {
    let server = Server::northbound();
    drop(started(&server).await);
    let foreign = |server: &Server| {
        server.nbctl(&["lsp-list", "n1"]).contains("foreign-port")
            && server.nbctl(&["ls-list"]).contains("foreign-switch")
            && server.nbctl(&["lr-route-list", "GR_n1"]).contains("203.0.113.0/24")
            && server.nbctl(&["lr-route-list", "ovn_cluster_router"]).contains("198.51.100.0/24")
            && server.nbctl(&["lr-nat-list", "GR_n1"]).contains("192.0.2.9")
            && server.nbctl(&["lr-list"]).contains("foreign-router")
            && server.nbctl(&["lb-list"]).contains("foreign-lb")
            && server.nbctl(&["lr-policy-list", "ovn_cluster_router"]).contains("ip4.src == 198.51.100.9")
            && server.nbctl(&["list", "Address_Set"]).contains("foreign_set")
            && server.nbctl(&["acl-list", "n1"]).contains("ip4.src == 198.51.100.7")
    };
    for args in [
        &["lsp-add", "n1", "foreign-port"][..],
        &["ls-add", "foreign-switch"],
        &["lr-add", "foreign-router"],
        &["lr-route-add", "GR_n1", "203.0.113.0/24", "172.18.0.77"],
        &["lr-route-add", "ovn_cluster_router", "198.51.100.0/24", "10.244.0.9"],
        &["lr-nat-add", "GR_n1", "snat", "192.0.2.9", "198.51.100.0/24"],
        &["lb-add", "foreign-lb", "192.0.2.1:80", "192.0.2.2:80"],
        &["lr-policy-add", "ovn_cluster_router", "1004", "ip4.src == 198.51.100.9", "drop"],
        &["create", "Address_Set", "name=foreign_set"],
        &["acl-add", "n1", "to-lport", "900", "ip4.src == 198.51.100.7", "drop"],
    ] {
        server.nbctl(args);
    }
    assert!(foreign(&server));

    let mut controller = Controller::start(server.client(), config()).await;
    controller.wait_for_lock().await;
    controller.feed(lists(vec![node("n1", 1)], vec![])).await;
    assert!(foreign(&server), "foreign rows are untouched");
    for (command, gone) in [
        (&["ls-list"][..], &["n2", "ext_n2"][..]),
        (&["lr-list"], &["GR_n2"]),
        (&["lsp-list", "n1"], &["x_a"]),
        (&["lsp-list", "join"], &["jtor-GR_n2"]),
        (&["lrp-list", "ovn_cluster_router"], &["rtos-n2"]),
        (&["lr-route-list", "ovn_cluster_router"], &["100.64.0.3", "10.244.1.0/24"]),
        (&["lr-policy-list", "ovn_cluster_router"], &["rtos-n2"]),
        (&["list", "Static_MAC_Binding"], &["GR_n2"]),
    ] {
        let listed = server.nbctl(command);
        for name in gone {
            assert!(!listed.contains(name), "{command:?} still has {name}:\n{listed}");
        }
    }
    assert!(server.nbctl(&["lrp-list", "ovn_cluster_router"]).contains("rtos-n1"));
    assert!(server.nbctl(&["lr-route-list", "GR_n1"]).contains("172.18.0.1"));
    // After that, nothing is left to do.
    let done = server.transactions();
    drop(controller);
    let mut again = Controller::start(server.client(), config()).await;
    again.wait_for_lock().await;
    again.feed(lists(vec![node("n1", 1)], vec![])).await;
    assert_eq!(server.transactions(), done);
}

#[tokio::test]
async fn one_change_is_one_transaction() {
    let server = Server::northbound();
    let mut controller = started(&server).await;
    let mut feed = async |input| {
        let before = server.transactions();
        controller.feed([input]).await;
        server.transactions() - before
    };
    assert_eq!(feed(pods(Watched::Apply(pod("x", "c", "uid-c", "n1")))).await, 1);
    // Created again on the other node under the same name: the port moves in one transaction, with a new address.
    assert_eq!(feed(pods(Watched::Apply(pod("x", "c", "uid-c2", "n2")))).await, 1);
    assert!(server.nbctl(&["lsp-list", "n2"]).contains("x_c"));
    assert!(!server.nbctl(&["lsp-list", "n1"]).contains("x_c"));
    assert_eq!(feed(pods(Watched::Delete(("x", "c")))).await, 1);
    assert!(!server.nbctl(&["lsp-list", "n2"]).contains("x_c"));
    assert_eq!(feed(nodes(Watched::Delete("n2"))).await, 1);
    assert!(!server.nbctl(&["ls-list"]).contains("n2"));
}

#[tokio::test]
async fn five_hundred_pods_at_once_are_few_transactions() {
    let server = Server::northbound();
    let mut controller = started(&server).await;
    let before = server.transactions();
    let mut inputs = Vec::new();
    for at in 0..500 {
        let node = if at % 2 == 0 { "n1" } else { "n2" };
        inputs.push(pods(Watched::Apply(pod("many", &format!("p{at}"), &format!("uid-{at}"), node))));
    }
    controller.feed(inputs).await;
    assert_eq!(
        server.nbctl(&["--bare", "--columns=name", "list", "Logical_Switch_Port"]).matches("many_p").count(),
        500
    );
    assert!(server.transactions() - before <= 3, "{}", server.transactions() - before);
}

#[tokio::test]
async fn what_somebody_else_changes_is_put_right_and_counted() {
    let server = Server::northbound();
    let mut controller = started(&server).await;
    let dump = |server: &Server| {
        let mut lines: Vec<_> = ["lr-route-list", "lr-nat-list", "lr-policy-list"]
            .iter()
            .flat_map(|list| ["GR_n1", "ovn_cluster_router"].map(|router| server.nbctl(&[list, router])))
            .collect();
        lines.push(server.nbctl(&[
            "--bare",
            "--columns=name,addresses,options",
            "find",
            "Logical_Switch_Port",
            "name=x_a",
        ]));
        lines.push(
            server
                .nbctl(&["--bare", "--columns=ports", "find", "Logical_Switch", "name=ext_n1"])
                .len()
                .to_string(),
        );
        lines.push(server.nbctl(&["--bare", "--columns=options", "find", "Logical_Router", "name=GR_n1"]));
        lines.push(server.nbctl(&["--bare", "--columns=external_port_range", "list", "NAT"]));
        lines.push(
            server
                .nbctl(&["--bare", "--columns=ports", "find", "Port_Group", "name=a13298398610555951118"])
                .len()
                .to_string(),
        );
        // The order in which rows are listed does not matter, and an empty value looks like the space between rows.
        for line in &mut lines {
            let mut sorted: Vec<&str> = line.lines().filter(|line| !line.is_empty()).collect();
            sorted.sort_unstable();
            *line = sorted.join("\n");
        }
        lines
    };
    let before = dump(&server);
    let mut repaired = 0;
    for args in [
        &["lsp-del", "x_a"][..],
        &["lsp-set-addresses", "x_a", "unknown"],
        &["lsp-del", "etor-GR_n1"],
        &["remove", "Logical_Router", "GR_n1", "options", "snat-ct-zone"],
        &["lr-route-del", "GR_n1", "0.0.0.0/0"],
        &["lr-nat-del", "GR_n1", "snat", "100.64.0.2"],
        &["lr-policy-del", "ovn_cluster_router", "1004"],
        &[
            "set",
            "NAT",
            &server.nbctl(&["--bare", "--columns=_uuid", "find", "NAT", "logical_ip=100.64.0.3"]),
            "external_port_range=1000-2000",
        ],
        &["clear", "Port_Group", "a13298398610555951118", "ports"],
        &["lr-del", "GR_n1"],
    ] {
        server.nbctl(args);
        // The change arrives by itself; the time until then is not under the test's control.
        for _ in 0..500 {
            controller.engine.settle().await.unwrap();
            if controller.metrics.repairs.get() > repaired && dump(&server) == before {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        assert_eq!(dump(&server), before, "after {args:?}");
        assert!(controller.metrics.repairs.get() > repaired, "{args:?}");
        repaired = controller.metrics.repairs.get();
    }
}

#[tokio::test]
async fn two_writers_who_disagree_do_not_fight() {
    let server = Server::northbound();
    let mut controller = started(&server).await;
    for round in 0..20 {
        server.nbctl(&["set", "Logical_Switch", "n1", &format!("other_config:subnet=10.9.{round}.0/24")]);
        for _ in 0..20 {
            controller.engine.settle().await.unwrap();
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
    let repairs = controller.metrics.repairs.get();
    assert!((1..=6).contains(&repairs), "{repairs}");
    assert!(controller.metrics.repairs_deferred.get() > 0);
}

#[tokio::test]
async fn a_deposed_leader_cannot_write() {
    let server = Server::northbound();
    let mut old = started(&server).await;
    let taker = server.client();
    let lock = taker.steal_lock(controller::engine::LOCK).await.unwrap();
    assert!(lock.is_owned());
    let before = server.transactions();
    // The engine may not know yet that it lost the lock: either the server refuses, or the engine sends nothing.
    old.engine.apply(pods(Watched::Apply(pod("x", "late", "uid-late", "n1"))));
    let result = old.engine.settle().await;
    let refused = matches!(&result, Err(Error::Operation { error, .. }) if error == "not owner");
    assert!(refused || result.is_ok(), "{result:?}");
    assert!(!old.engine.is_settled());
    assert_eq!(server.transactions(), before);
    assert!(!server.nbctl(&["lsp-list", "n1"]).contains("x_late"));
    // The fence itself: a transaction that asserts a lost lock.
    let mut transaction = Transaction::new();
    transaction.assert_lock(controller::engine::LOCK);
    transaction.comment("too late");
    let client = server.client();
    let error = client.transact(transaction.clone()).await;
    if let Err(Error::NotConnected { .. }) = &error {
        client.connected(std::time::Duration::from_secs(10)).await.unwrap();
        let error = client.transact(transaction).await.unwrap_err();
        assert!(matches!(&error, Error::Operation { error, .. } if error == "not owner"), "{error}");
    } else {
        assert!(matches!(&error, Err(Error::Operation { error, .. }) if error == "not owner"), "{error:?}");
    }
}

#[tokio::test]
async fn nothing_is_deleted_before_every_kind_was_listed() {
    let server = Server::northbound();
    drop(started(&server).await);
    let before = server.transactions();
    let mut controller = Controller::start(server.client(), config()).await;
    controller.wait_for_lock().await;
    let mut all = lists(vec![], vec![]);
    let last = all.pop().unwrap();
    controller.feed(all).await;
    assert_eq!(server.transactions(), before);
    assert_eq!(controller.reason.borrow().as_deref(), Some("waiting for the first list of network policies"));
    controller.feed([last]).await;
    assert!(server.nbctl(&["ls-list"]).contains("join") && !server.nbctl(&["ls-list"]).contains("n1"));
}

#[tokio::test]
async fn a_port_of_the_same_name_elsewhere_gives_way_to_the_pod() {
    let server = Server::northbound();
    let mut controller = started(&server).await;
    // Names of ports are unique in the database.
    server.nbctl(&["ls-add", "foreign"]);
    server.nbctl(&["lsp-add", "foreign", "x_taken"]);
    controller.catch_up().await;
    controller.feed([pods(Watched::Apply(pod("x", "taken", "uid-t", "n1")))]).await;
    assert!(server.nbctl(&["lsp-list", "n1"]).contains("x_taken"));
    assert!(!server.nbctl(&["lsp-list", "foreign"]).contains("x_taken"));
    assert_eq!(controller.metrics.errors(ErrorKind::TransactionRefused), 0);
}

#[tokio::test]
async fn malformed_annotations_are_told_and_others_go_on() {
    let server = Server::northbound();
    let mut controller = started(&server).await;
    let mut bad = node("n3", 3);
    bad["metadata"]["annotations"]["k8s.ovn.org/l3-gateway-config"] = "{".into();
    controller.feed([nodes(Watched::Apply(bad)), pods(Watched::Apply(pod("x", "c", "uid-c", "n3")))]).await;
    let notice = controller.notices.recv().await.unwrap();
    assert!(
        notice.message.starts_with("node n3: annotation k8s.ovn.org/l3-gateway-config"),
        "{}",
        notice.message
    );
    assert_eq!(controller.metrics.errors(ErrorKind::Malformed), 1);
    // The switch and the pod are there, the gateway is not.
    assert!(server.nbctl(&["lsp-list", "n3"]).contains("x_c"));
    assert!(!server.nbctl(&["lr-list"]).contains("GR_n3"));
    controller.feed([nodes(Watched::Apply(node("n3", 3)))]).await;
    assert!(server.nbctl(&["lr-list"]).contains("GR_n3"));
}
