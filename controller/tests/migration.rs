//! The engine on a northbound database that ovn-kubernetes has written, with features that the controller does not have.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[allow(dead_code, reason = "shared with the other tests")]
mod common;

use std::process::Stdio;

use api::service::Service;
use common::{Controller, Server, lists, node, nodes, pod};
use controller::engine::Input;
use controller::index::policy::Policy;
use controller::state::Watched;
use serde_json::json;

/// Marks of a row of the cluster's own network.
fn marks(kind: &str, name: &str) -> String {
    let id = format!("default-network-controller:{kind}:{name}");
    format!(
        "external_ids={{\"k8s.ovn.org/owner-controller\"=default-network-controller,\"k8s.ovn.org/owner-type\"={kind},\
         \"k8s.ovn.org/name\"=\"{name}\",\"k8s.ovn.org/id\"=\"{id}\"}}"
    )
}

/// Rows of each feature as ovn-kubernetes writes them, beside those of a node `n1`: what to run, and the column by which
/// the row is found afterwards.
fn write_features(server: &Server) {
    let run = |args: &[&str]| drop(server.nbctl(args));
    // EgressIP: a policy of the cluster router, a translation on the gateway router, a set.
    let marked = marks("EgressIP", "egress-a_red/web");
    let reroute = "match=\"ip4.src == 10.244.0.9\"";
    run(&[
        "--id=@p",
        "create",
        "Logical_Router_Policy",
        "priority=100",
        reroute,
        "action=reroute",
        "nexthops=100.64.0.3",
        &marked,
        "--",
        "add",
        "Logical_Router",
        "ovn_cluster_router",
        "policies",
        "@p",
    ]);
    run(&[
        "--id=@n",
        "create",
        "NAT",
        "type=snat",
        "external_ip=172.18.0.99",
        "logical_ip=10.244.0.9",
        "options:stateless=\"false\"",
        &marked,
        "--",
        "add",
        "Logical_Router",
        "GR_n1",
        "nat",
        "@n",
    ]);
    run(&["create", "Address_Set", "name=egressip_pods", &marks("EgressIP", "egressip-served-pods")]);
    // AdminNetworkPolicy and its baseline: a group of their own with ACLs.
    for (kind, group) in [("AdminNetworkPolicy", "anp_group"), ("BaselineAdminNetworkPolicy", "banp_group")] {
        run(&[
            "--id=@a",
            "create",
            "ACL",
            "priority=30000",
            "direction=to-lport",
            "match=ip",
            "action=drop",
            &marks(kind, "strict"),
            "--",
            "create",
            "Port_Group",
            &format!("name={group}"),
            "acls=@a",
            &marks(kind, "strict"),
        ]);
    }
    // EgressFirewall: ACLs on the node's switch (older versions) and on the namespace's group, sets of names.
    let drop_all =
        ["priority=9999", "direction=from-lport", "match=\"ip4.dst == 198.51.100.0/24\"", "action=drop"];
    let [p, d, m, a] = drop_all;
    run(&[
        "--id=@a",
        "create",
        "ACL",
        p,
        d,
        m,
        a,
        &marks("EgressFirewall", "red"),
        "--",
        "add",
        "Logical_Switch",
        "n1",
        "acls",
        "@a",
    ]);
    run(&[
        "--id=@a",
        "create",
        "ACL",
        p,
        d,
        m,
        a,
        &marks("EgressFirewall", "blue"),
        "--",
        "create",
        "Port_Group",
        "name=namespace_group",
        "acls=@a",
        &marks("Namespace", "blue"),
    ]);
    run(&["create", "Address_Set", "name=dns_set", &marks("EgressFirewallDNS", "example.org")]);
    run(&["create", "Address_Set", "name=namespace_set", &marks("Namespace", "blue")]);
    // Multicast: ACLs in the group of all management ports, the cluster router's ports in its group.
    let cluster_group = "a13298398610555951118";
    run(&[
        "--id=@a",
        "create",
        "ACL",
        "priority=1011",
        "direction=to-lport",
        "match=\"(ip4.mcast)\"",
        "action=drop",
        &marks("MulticastCluster", "DefaultDeny"),
        "--",
        "add",
        "Port_Group",
        cluster_group,
        "acls",
        "@a",
    ]);
    let router_port =
        server.nbctl(&["--bare", "--columns=_uuid", "find", "Logical_Switch_Port", "name=stor-n1"]);
    let router_group = api::ovn_name::hashed("default-network-controller:Cluster:clusterRtrPortGroup");
    run(&["add", "Port_Group", &router_group, "ports", &router_port]);
    // EgressQoS, EgressService, external gateways.
    run(&[
        "--id=@q",
        "create",
        "QoS",
        "priority=1000",
        "direction=to-lport",
        "match=ip4",
        "action:dscp=40",
        &marks("EgressQoS", "red"),
        "--",
        "add",
        "Logical_Switch",
        "n1",
        "qos_rules",
        "@q",
    ]);
    run(&["create", "Address_Set", "name=egress_service_set", &marks("EgressService", "pods")]);
    run(&[
        "--ecmp-symmetric-reply",
        "--policy=src-ip",
        "lr-route-add",
        "GR_n1",
        "10.244.0.9/32",
        "172.18.0.88",
        "rtoe-GR_n1",
    ]);
    // A user-defined network with its own topology, which looks like the cluster's.
    let network = "external_ids:\"k8s.ovn.org/network\"=tenant";
    run(&["ls-add", "tenant_n1", "--", "set", "Logical_Switch", "tenant_n1", network]);
    run(&["lsp-add", "tenant_n1", "stor-tenant_n1", "--", "lsp-set-type", "stor-tenant_n1", "router"]);
    run(&["lr-add", "GR_tenant_n1", "--", "set", "Logical_Router", "GR_tenant_n1", network]);
    run(&["lrp-add", "GR_tenant_n1", "rtoj-GR_tenant_n1", "0a:58:64:41:00:02", "100.65.0.2/16"]);
    run(&[
        "lrp-add",
        "GR_tenant_n1",
        "rtoe-GR_tenant_n1",
        "0a:58:64:41:00:03",
        "172.18.0.2/16",
        "--",
        "set",
        "Logical_Router_Port",
        "rtoe-GR_tenant_n1",
        network,
    ]);
    run(&["ls-add", "ext_tenant_n1", "--", "set", "Logical_Switch", "ext_tenant_n1", network]);
    run(&[
        "lsp-add",
        "ext_tenant_n1",
        "etor-GR_tenant_n1",
        "--",
        "lsp-set-type",
        "etor-GR_tenant_n1",
        "router",
    ]);
    run(&[
        "create",
        "Static_MAC_Binding",
        "logical_port=rtoe-GR_tenant_n1",
        "ip=169.254.169.4",
        "mac=\"0a:58:a9:fe:a9:04\"",
        "override_dynamic_mac=true",
    ]);
    run(&[
        "create",
        "Load_Balancer",
        "name=Service_red/web_TCP_cluster_tenant",
        "vips={\"10.96.0.99:80\"=\"10.128.0.3:80\"}",
        "external_ids={\"k8s.ovn.org/kind\"=Service,\"k8s.ovn.org/owner\"=red/web,\"k8s.ovn.org/network\"=tenant}",
    ]);
    run(&[
        "create",
        "Port_Group",
        "name=tenant_group",
        "external_ids={\"k8s.ovn.org/owner-controller\"=\
        tenant-network-controller,\"k8s.ovn.org/owner-type\"=NetworkPolicy}",
    ]);
    // And rows left by network policies, which the controller must remove.
    run(&["create", "Port_Group", "name=stale_policy", &marks("NetworkPolicy", "red:gone")]);
    run(&["create", "Address_Set", "name=stale_peer", &marks("PodSelector", "gone")]);
}

/// Everything in the tables, without the order of rows.
fn dump(server: &Server) -> Vec<String> {
    let mut lines = Vec::new();
    for table in [
        "ACL",
        "Address_Set",
        "Load_Balancer",
        "Logical_Router",
        "Logical_Router_Policy",
        "Logical_Router_Port",
        "Logical_Router_Static_Route",
        "Logical_Switch",
        "Logical_Switch_Port",
        "NAT",
        "Port_Group",
        "QoS",
        "Static_MAC_Binding",
    ] {
        let text = server.nbctl(&["--format=csv", "--no-headings", "--data=json", "list", table]);
        lines.extend(
            text.lines().filter(|line| !line.contains("stale_")).map(|line| format!("{table} {line}")),
        );
    }
    lines.sort();
    lines
}

async fn started(server: &Server) -> Controller {
    started_with(server, lists(vec![node("n1", 1)], vec![pod("x", "a", "uid-a", "n1")])).await
}

async fn started_with(server: &Server, lists: Vec<Input>) -> Controller {
    let controller = Controller::started(server, lists).await;
    assert!(controller.engine.is_settled());
    controller
}

#[tokio::test]
async fn rows_of_features_that_the_controller_does_not_have_survive_it() {
    let server = Server::northbound();
    drop(started(&server).await);
    write_features(&server);
    let before = dump(&server);
    let controller = started(&server).await;
    assert_eq!(dump(&server), before);
    let names = |table: &str| server.nbctl(&["--bare", "--columns=name", "list", table]);
    assert!(!names("Port_Group").contains("stale_policy"), "what network policies left is removed");
    assert!(!names("Address_Set").contains("stale_peer"), "what network policies left is removed");
    let found = controller.engine.foreign();
    let rows: Vec<_> = found.features.iter().map(|(feature, found)| (feature.as_str(), found.rows)).collect();
    assert_eq!(
        rows,
        [
            ("AdminNetworkPolicy", 2),
            ("AdminPolicyBasedExternalRoute", 1),
            ("BaselineAdminNetworkPolicy", 2),
            ("EgressFirewall", 3),
            ("EgressIP", 3),
            ("EgressQoS", 1),
            ("EgressService", 1),
            ("multicast", 1),
            ("user-defined and secondary networks", 5),
        ]
    );
}

#[tokio::test]
async fn what_other_features_add_to_our_groups_meanwhile_stays_too() {
    let server = Server::northbound();
    let mut controller = started(&server).await;
    write_features(&server);
    let before = dump(&server);
    for _ in 0..3 {
        controller.catch_up().await;
        controller.engine.settle().await.unwrap();
    }
    assert_eq!((dump(&server), controller.metrics.repairs.get()), (before, 0));
}

#[tokio::test]
async fn a_database_of_our_own_holds_nothing_foreign() {
    let server = Server::northbound();
    let mut all = lists(vec![node("n1", 1)], vec![pod("x", "a", "uid-a", "n1")]);
    let policy = json!({"metadata": {"name": "p", "namespace": "x"}, "spec": {"podSelector": {},
        "ingress": [{"from": [{"podSelector": {}}], "ports": [{"port": "web"}]}]}});
    let service = json!({"metadata": {"name": "s", "namespace": "x"}, "spec": {"type": "LoadBalancer",
        "clusterIP": "10.96.0.9", "loadBalancerSourceRanges": ["10.0.0.0/8"], "ports": [{"port": 80, "nodePort": 30080}]},
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}});
    all.retain(|input| !matches!(input, Input::Policies(_) | Input::Services(_)));
    all.push(Input::Policies(Watched::Reset(vec![Policy::from_object(
        &serde_json::from_value(policy).unwrap(),
    )])));
    all.push(Input::Services(Watched::Reset(vec![Service::from_object(
        &serde_json::from_value(service).unwrap(),
    )])));
    let controller = started_with(&server, all).await;
    assert!(server.nbctl(&["acl-list", "ext_n1"]).contains("192.0.2.1"));
    let found = controller.engine.foreign();
    assert!(found.is_empty(), "{found}");
    found.check(false).unwrap();
}

/// Runs the program on the database until it ends or logs `until`; returns its exit code and messages.
fn program(server: &Server, more: &[&str], until: &str) -> (Option<i32>, String) {
    use std::io::{BufRead, BufReader};
    let kubeconfig = server.path("kubeconfig");
    std::fs::write(
        &kubeconfig,
        "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}], \
         clusters: [{name: c, cluster: {server: \"http://127.0.0.1:9\"}}], users: [{name: u, user: {token: t}}]}",
    )
    .unwrap();
    #[expect(clippy::disallowed_methods, reason = "the program under test")]
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_slipstream-controller"))
        .args(["run", "--leader-elect=false", "--metrics-bind-address=127.0.0.1:0", "--nb"])
        .arg(format!("unix:{}", server.path("db.sock").display()))
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .args(more)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    for line in BufReader::new(child.stderr.take().unwrap()).lines() {
        let line = line.unwrap();
        said.push_str(&line);
        said.push('\n');
        // A program that continues tries again and again to reach the API server.
        if line.contains(until) || said.lines().count() > 100 {
            let _ = child.kill();
        }
    }
    (child.wait().unwrap().code(), said)
}

#[tokio::test]
async fn the_program_refuses_a_database_with_such_rows_until_it_is_told_to_adopt_it() {
    let server = Server::northbound();
    drop(started(&server).await);
    write_features(&server);
    let before = server.transactions();
    let (code, said) = program(&server, &[], "comparing everything");
    assert_eq!(code, Some(1), "{said}");
    for part in ["EgressIP (3 rows, such as ", "multicast (1 row, such as ACL `DefaultDeny`)", "--adopt"] {
        assert!(said.contains(part), "{part} is not in\n{said}");
    }
    assert_eq!(server.transactions(), before);
    let (_, said) = program(&server, &["--adopt"], "left as they are");
    assert!(said.contains("EgressIP (3 rows, such as "), "{said}");
    assert!(!said.contains("start with --adopt"), "{said}");
}

#[tokio::test]
async fn a_gateway_whose_annotation_cannot_be_read_at_start_stays_as_it_is() {
    let server = Server::northbound();
    let service = json!({"metadata": {"name": "s", "namespace": "x"}, "spec": {"type": "NodePort",
        "clusterIP": "10.96.0.9", "ports": [{"port": 80, "nodePort": 30080}]}});
    let with_nodes = |list| {
        let mut all = lists(list, vec![pod("x", "a", "uid-a", "n1")]);
        all.retain(|input| !matches!(input, Input::Services(_)));
        let read = Service::from_object(&serde_json::from_value(service.clone()).unwrap());
        all.push(Input::Services(Watched::Reset(vec![read])));
        all
    };
    let readable = || vec![node("n1", 1), node("n2", 2)];
    drop(started_with(&server, with_nodes(readable())).await);
    let gateway = |server: &Server| {
        let mut text = Vec::new();
        for command in [
            &["lr-route-list", "GR_n1"][..],
            &["lr-nat-list", "GR_n1"],
            &["lr-lb-list", "GR_n1"],
            &["lrp-list", "GR_n1"],
            &["lsp-list", "ext_n1"],
            &["lsp-list", "join"],
            &["lr-route-list", "ovn_cluster_router"],
            &["lr-policy-list", "ovn_cluster_router"],
            &[
                "--bare",
                "--columns=logical_port,mac",
                "find",
                "Static_MAC_Binding",
                "logical_port=rtoe-GR_n1",
            ],
        ] {
            text.push(server.nbctl(command));
        }
        text
    };
    let before = gateway(&server);
    assert!(before[2].contains("30080"), "{before:#?}");
    let mut broken = node("n1", 1);
    broken["metadata"]["annotations"]["k8s.ovn.org/l3-gateway-config"] = "{".into();
    let mut controller = started_with(&server, with_nodes(vec![broken, node("n2", 2)])).await;
    assert_eq!(gateway(&server), before);
    let told = controller.notices.recv().await.unwrap().message;
    assert!(told.starts_with("node n1: annotation k8s.ovn.org/l3-gateway-config"), "{told}");
    // Readable again, and unchanged.
    controller.feed([nodes(Watched::Apply(node("n1", 1)))]).await;
    assert_eq!(gateway(&server), before);
    // Without any configuration the gateway is removed, as always.
    drop(controller);
    let mut without = node("n1", 1);
    without["metadata"]["annotations"].as_object_mut().unwrap().remove("k8s.ovn.org/l3-gateway-config");
    drop(started_with(&server, with_nodes(vec![without, node("n2", 2)])).await);
    let routers = server.nbctl(&["lr-list"]);
    assert!(!routers.contains("GR_n1") && routers.contains("GR_n2"), "{routers}");
}
