//! Policies of virtual networks on a real northbound database: restarts, what went meanwhile, and what others change.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[allow(dead_code, reason = "shared with the other tests")]
mod common;

use common::{Controller, Server, lists_with_networks, network, node, pod};
use controller::engine::Input;
use controller::index::policy::SeenMultiPolicy;
use controller::state::Watched;
use serde_json::{Value, json};

/// Networks, and the pods of each.
const NETWORKS: u8 = 20;
const PODS: u8 = 10;

fn policy(network: u8, from: u8) -> SeenMultiPolicy {
    let object = json!({
        "metadata": {"namespace": "x", "name": format!("on-{network}"), "uid": format!("p{network}"),
            "annotations": {"k8s.v1.cni.cncf.io/policy-for": format!("net-{network}")}},
        "spec": {"podSelector": {"matchLabels": {"number": "0"}}, "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"number": from.to_string()}}}], "ports": [{"port": "web"}]}],
            "egress": [{"to": [{"ipBlock": {"cidr": "172.16.0.0/16", "except": ["172.16.3.0/24"]}}]}]},
    });
    SeenMultiPolicy::from_object(&serde_json::from_value(object).unwrap())
}

fn pods() -> Vec<Value> {
    let all = (0..NETWORKS).flat_map(|network| (0..PODS).map(move |number| (network, number)));
    all.map(|(network, number)| {
        let name = format!("p{network}-{number}");
        let mut object = pod("x", &name, &format!("uid-{name}"), if number % 2 == 0 { "n1" } else { "n2" });
        let asked = json!([{"name": format!("net-{network}"), "interface": "net1"}]);
        object["metadata"]["annotations"] = json!({"ovnNetwork": asked.to_string()});
        object["metadata"]["labels"] = json!({"number": number.to_string()});
        object["spec"]["containers"] =
            json!([{"name": "c", "ports": [{"name": "web", "containerPort": 8000 + u16::from(number)}]}]);
        object
    })
    .collect()
}

fn all_lists(policies: Vec<SeenMultiPolicy>) -> Vec<Input> {
    let spec = |number: u8| json!({"subnets": [format!("172.16.{number}.0/24")]});
    let all = (0..NETWORKS).map(|number| network("x", &format!("net-{number}"), number, spec(number)));
    let mut inputs = lists_with_networks(all.collect(), vec![node("n1", 1), node("n2", 2)], pods());
    inputs.retain(|input| !matches!(input, Input::MultiPolicies(_)));
    inputs.push(Input::MultiPolicies(Watched::Reset(policies)));
    inputs
}

async fn started(server: &Server, policies: Vec<SeenMultiPolicy>) -> Controller {
    Controller::started(server, all_lists(policies)).await
}

/// All that policies are made of, without what differs from one run to the next.
fn dump(server: &Server) -> Vec<String> {
    let mut lines = server.rows(&[
        ("ACL", "action,direction,match,priority,tier,options,external_ids"),
        ("Address_Set", "name,addresses,external_ids"),
        ("Port_Group", "name,external_ids"),
    ]);
    // Ports and ACLs of a group by their number.
    let groups =
        server.nbctl(&["--format=csv", "--no-headings", "--columns=name,ports,acls", "list", "Port_Group"]);
    lines.extend(groups.lines().map(|line| {
        let (name, rest) = line.split_once(',').unwrap_or((line, ""));
        format!("members of {name}: {}", rest.matches('-').count() / 4)
    }));
    lines.sort();
    lines
}

fn all(from: u8) -> Vec<SeenMultiPolicy> {
    (0..NETWORKS).map(|network| policy(network, from)).collect()
}

#[tokio::test]
async fn each_network_has_rows_of_its_own_and_a_restart_sends_nothing() {
    let server = Server::northbound();
    let bare = started(&server, Vec::new()).await;
    drop(bare);
    let without = dump(&server);
    let first = started(&server, all(1)).await;
    assert!(first.engine.foreign().is_empty(), "{}", first.engine.foreign());
    drop(first);
    let (before, done) = (dump(&server), server.transactions());
    // A port group, an ACL of a block and one of the named port's number.
    for own in [
        "MultiNetworkPolicy:x/net-7:x:on-7",
        "MultiNetworkPolicyNamedPort:x/net-7:x:on-7:Ingress:0:tcp:-1:web:8000",
    ] {
        assert!(before.iter().any(|line| line.contains(own)), "{own}: {before:?}");
    }
    let set = before.iter().find(|line| line.contains("MultiPodSelector:x/net-7:x_LS{ML:{number: 1,},}:v4"));
    assert!(set.is_some_and(|line| line.matches("172.16.7.").count() == 1), "{set:?}");
    let second = started(&server, all(1)).await;
    assert_eq!((second.metrics.transactions.get(), server.transactions()), (0, done));
    drop(second);
    // Other rules, and then none, while nobody looked.
    drop(started(&server, all(2)).await);
    let changed = dump(&server);
    assert!(changed.len() == before.len() && changed != before);
    drop(started(&server, Vec::new()).await);
    assert_eq!(dump(&server), without);
}

#[tokio::test]
async fn what_somebody_else_changes_is_put_right() {
    let server = Server::northbound();
    let mut controller = started(&server, all(1)).await;
    let before = dump(&server);
    let find = |table: &str, text: &str| {
        let found =
            server.nbctl(&["--format=csv", "--no-headings", "--columns=_uuid,external_ids", "list", table]);
        let line = found.lines().find(|line| line.contains(text)).unwrap().to_owned();
        line.split(',').next().unwrap().to_owned()
    };
    let deny = find("Port_Group", "MultiNetpolNamespace:x/net-3:x:Ingress");
    let set = find("Address_Set", "MultiPodSelector:x/net-3:");
    for args in [
        &["clear", "Port_Group", &deny, "ports"][..],
        &["clear", "Port_Group", &deny, "acls"],
        &["add", "Address_Set", &set, "addresses", "172.16.3.99"],
    ] {
        server.nbctl(args);
        assert_ne!(dump(&server), before, "{args:?} does nothing");
        controller.settle_until(|| dump(&server) == before).await;
        assert_eq!(dump(&server), before, "{args:?}");
    }
    assert_eq!(controller.engine.verify().await.unwrap(), 0);
}
