//! Networks of a physical network on a real northbound database, and what OVN makes of them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[allow(dead_code, reason = "shared with the other tests")]
mod common;
mod northd;

use api::MacAddr;
use common::{Controller, Server, config, lists_with_networks, network, networks, node, nodes, pod, pods};
use controller::engine::Input;
use controller::state::Watched;
use northd::Northd;
use serde_json::{Value, json};

const PORT: &str = "x.blue_ovn_localnet_port";

fn with_physical(name: &str, number: u8, physical: &[&str]) -> Value {
    let mut object = node(name, number);
    let names = serde_json::to_string(physical).unwrap();
    object["metadata"]["annotations"]["slipstream.dev/physical-networks"] = names.into();
    object
}

fn on_vlan(vlan: Option<u16>) -> Value {
    let mut localnet = json!({"physicalNetwork": "dc"});
    if let Some(vlan) = vlan {
        localnet["vlan"] = vlan.into();
    }
    network(
        "x",
        "blue",
        1,
        json!({"reach": "Localnet", "subnets": ["172.16.24.0/24", "fd00:24::/64"], "localnet": localnet}),
    )
}

fn asking(name: &str, node: &str) -> Value {
    let mut object = pod("x", name, &format!("uid-{name}"), node);
    let request = json!([{"name": "blue", "interface": "net1"}]);
    object["metadata"]["annotations"] = json!({"ovnNetwork": request.to_string()});
    object
}

fn all_lists(network_list: Vec<Value>, pod_list: Vec<Value>) -> Vec<Input> {
    lists_with_networks(
        network_list,
        vec![with_physical("n1", 1, &["dc"]), with_physical("n2", 2, &[])],
        pod_list,
    )
}

/// The columns of the port to the physical network.
fn port(server: &Server) -> String {
    let columns = "--columns=type,addresses,options,tag_request,tag";
    server.nbctl(&["--bare", columns, "find", "Logical_Switch_Port", &format!("name={PORT}")])
}

const TAGGED: &str = "localnet\nunknown\nnetwork_name=dc\n100\n100";
const UNTAGGED: &str = "localnet\nunknown\nnetwork_name=dc";

#[tokio::test]
async fn a_network_of_a_vlan_and_its_pods_come_and_go_and_leave_nothing() {
    let server = Server::northbound();
    let mut controller = Controller::started(&server, all_lists(vec![], vec![])).await;
    let (switches, ports) = (server.nbctl(&["ls-list"]), server.nbctl(&["list", "Logical_Switch_Port"]));
    controller.feed([networks(Watched::Apply(on_vlan(Some(100))))]).await;
    assert_eq!(port(&server), TAGGED);
    assert!(server.nbctl(&["lsp-list", "x.blue"]).contains(PORT));
    assert!(
        !server.nbctl(&["lrp-list", "ovn_cluster_router"]).contains("x.blue"),
        "it has no port on a router"
    );
    controller.feed([pods(Watched::Apply(asking("a", "n1"))), pods(Watched::Apply(asking("b", "n2")))]).await;
    let listed = server.nbctl(&["lsp-list", "x.blue"]);
    assert!(listed.contains("(x.blue_x_a)") && !listed.contains("x_b"), "{listed}");
    assert!(!server.nbctl(&["lsp-list", "n2"]).contains("x_b"), "a pod gets all of its interfaces or none");
    controller.feed([nodes(Watched::Apply(with_physical("n2", 2, &["dc"])))]).await;
    assert!(
        server.nbctl(&["lsp-list", "x.blue"]).contains("(x.blue_x_b)"),
        "its node has the physical network now"
    );
    let security = server.nbctl(&["lsp-get-port-security", "x.blue_x_b"]);
    assert!(security.contains("0a:58:ac:10:18:03 172.16.24.3 fd00:24::3"), "{security}");
    controller
        .feed([
            pods(Watched::Delete(("x", "a"))),
            pods(Watched::Delete(("x", "b"))),
            networks(Watched::Delete(("x", "blue"))),
        ])
        .await;
    assert_eq!(
        (server.nbctl(&["ls-list"]), server.nbctl(&["list", "Logical_Switch_Port"])),
        (switches, ports)
    );
}

#[tokio::test]
async fn a_restart_sends_nothing_and_one_over_another_vlan_puts_the_tag_right() {
    let server = Server::northbound();
    let lists = |vlan| all_lists(vec![on_vlan(vlan)], vec![asking("a", "n1")]);
    drop(Controller::started(&server, lists(Some(100))).await);
    let done = server.transactions();
    let second = Controller::started(&server, lists(Some(100))).await;
    assert_eq!((second.metrics.transactions.get(), server.transactions()), (0, done));
    drop(second);
    // Deleted and made again while no controller ran.
    drop(Controller::started(&server, lists(None)).await);
    assert_eq!(port(&server), UNTAGGED);
}

#[tokio::test]
async fn what_somebody_else_changes_is_put_right() {
    let server = Server::northbound();
    let mut controller =
        Controller::started(&server, all_lists(vec![on_vlan(Some(100))], vec![asking("a", "n1")])).await;
    for args in [
        &["set", "Logical_Switch_Port", PORT, "tag=7"][..],
        &["set", "Logical_Switch_Port", PORT, "tag_request=7"],
        &["set", "Logical_Switch_Port", PORT, "options:network_name=other"],
        &["set", "Logical_Switch_Port", PORT, "type=\"\""],
        &["lsp-del", PORT],
        &["ls-del", "x.blue"],
    ] {
        server.nbctl(args);
        assert_ne!(port(&server), TAGGED, "{args:?} does nothing");
        controller.settle_until(|| port(&server) == TAGGED).await;
        assert_eq!(port(&server), TAGGED, "after {args:?}");
        assert!(server.nbctl(&["lsp-list", "x.blue"]).contains(PORT), "after {args:?}");
    }
}

#[tokio::test]
async fn what_nobody_of_ovn_has_goes_to_the_physical_network_and_no_forged_source_does() {
    let northd = Northd::start();
    let mut controller = Controller::start(northd.server.client(), config()).await;
    controller.feed(all_lists(vec![on_vlan(Some(100))], vec![asking("a", "n1"), asking("c", "n1")])).await;
    northd.wait_for(["x.blue_x_a", "x.blue_x_c", PORT].into_iter());
    for pod in ["x.blue_x_a", "x.blue_x_c"] {
        northd.bind(pod, 1);
    }
    let tag =
        northd.sbctl(&["--bare", "--columns=tag", "find", "Port_Binding", &format!("logical_port={PORT}")]);
    assert_eq!(tag.trim(), "100", "as ovn-controller takes it");
    let mac = |ip: &str| MacAddr::from_ip(ip.parse().unwrap());
    let (own, other) = (mac("172.16.24.2"), mac("172.16.24.3"));
    let outside = "0a:00:00:00:00:01";
    let trace = |inport: &str, source_mac: &str, to: &str, source: &str, destination: &str| {
        let packet = format!(
            "inport == \"{inport}\" && eth.src == {source_mac} && eth.dst == {to} && ip4.src == {source} && \
             ip4.dst == {destination} && ip.ttl == 64 && icmp4.type == 8"
        );
        northd.trace("x.blue", &packet)
    };
    let (own, other) = (own.to_string(), other.to_string());
    let out = trace("x.blue_x_a", &own, outside, "172.16.24.2", "172.16.24.250");
    assert!(out.contains(&format!("output(\"{PORT}\")")), "{out}");
    let beside = trace("x.blue_x_a", &own, &other, "172.16.24.2", "172.16.24.3");
    assert!(beside.contains("output(\"x.blue_x_c\")") && !beside.contains(PORT), "{beside}");
    let into = trace(PORT, outside, &own, "172.16.24.250", "172.16.24.2");
    assert!(into.contains("output(\"x.blue_x_a\")"), "{into}");
    for forged in [
        trace("x.blue_x_a", outside, &other, "172.16.24.2", "172.16.24.250"),
        trace("x.blue_x_a", &own, outside, "172.16.24.3", "172.16.24.250"),
    ] {
        assert!(!forged.contains("output("), "{forged}");
    }
}
