use std::collections::BTreeSet;

use serde_json::json;

use super::*;
use crate::config::{Config, Features};
use crate::index::{ContainerPort, Dirty, Index, Protocol};
use crate::plan::{Member, Table};
use crate::unit::Unit;

fn config() -> Config {
    Config {
        cluster_subnets: vec!["10.244.0.0/16/24".parse().unwrap()],
        service_cidrs: Vec::new(),
        join_subnets: Vec::new(),
        masquerade_subnets: Vec::new(),
        mtu: 1400,
        host_network_namespace: None,
        default_network: true,
        features: Features::ALL,
    }
}

fn dual_stack() -> Config {
    let mut config = config();
    config.cluster_subnets.push("fd00:10:244::/48/64".parse().unwrap());
    config
}

fn policy(name: &str, spec: serde_json::Value) -> Policy {
    let object = json!({"metadata": {"namespace": "n", "name": name}, "spec": spec});
    let (policy, problems) = Policy::from_object(&serde_json::from_value(object).unwrap());
    assert_eq!(problems, []);
    policy
}

fn pod(name: &str, address: &str, labels: &[(&str, &str)], port: Option<(&str, u16)>) -> Pod {
    let port = port.map(|(name, port)| ContainerPort {
        name: Some(name.to_owned()),
        port,
        protocol: Protocol::Tcp,
        host_port: None,
        host_ip: None,
    });
    Pod {
        name: NamespacedName::new("n", name),
        uid: String::new(),
        created: 0,
        node: "n1".into(),
        host_network: false,
        labels: labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        addresses: vec![address.parse().unwrap()],
        mac: None,
        attachments: Vec::new(),
        status_ips: Vec::new(),
        ports: port.into_iter().collect(),
    }
}

fn index(policies: &[Policy], pods: &[Pod]) -> Index {
    let mut index = Index::default();
    index.apply_namespace(Namespace { name: "n".into(), ..Namespace::default() });
    for pod in pods {
        index.apply_pod(pod.clone());
    }
    for policy in policies {
        index.apply_policy(policy.clone());
    }
    index
}

fn items(index: &Index, name: &str, config: &Config) -> Vec<Item> {
    let policy = index.policies.get(&NamespacedName::new("n", name)).unwrap();
    policy_items(&Domain::cluster(&index.policies, config), policy)
}

fn rows(items: &[Item], table: Table) -> Vec<&DesiredRow> {
    let rows = items.iter().filter_map(|item| if let Item::Row(row) = item { Some(row) } else { None });
    rows.filter(|row| row.key.table == table).collect()
}

/// Matches of the policy's ACLs, without the port group at the end.
fn matches(items: &[Item]) -> Vec<String> {
    let text =
        |row: &&DesiredRow| row.columns["match"].as_str().unwrap().rsplit_once(" && ").unwrap().0.to_owned();
    rows(items, Table::Acl).iter().map(text).collect()
}

fn sets(items: &[Item]) -> BTreeMap<String, String> {
    let id = |row: &&DesiredRow| {
        let ovsdb_client::Datum::Map(pairs) = &row.columns["external_ids"] else { panic!() };
        let (_, id) = pairs.iter().find(|(key, _)| *key == "k8s.ovn.org/id".into()).unwrap();
        let ovsdb_client::Atom::String(id) = id else { panic!() };
        id.strip_prefix("default-network-controller:").unwrap().to_owned()
    };
    rows(items, Table::AddressSet)
        .iter()
        .map(|row| (id(row), format!("${}", row.key.hashed_name())))
        .collect()
}

fn named_policy() -> Policy {
    policy("p", json!({"podSelector": {}, "ingress": [{"ports": [{"port": "web"}]}]}))
}

#[test]
fn a_named_port_gives_one_acl_for_each_number_towards_the_pods_that_declare_it() {
    let pods = [
        pod("a", "10.244.0.3/24", &[], Some(("web", 80))),
        pod("b", "10.244.0.4/24", &[], Some(("web", 81))),
        pod("c", "10.244.0.5/24", &[], None),
    ];
    let index = index(&[named_policy()], &pods);
    let items = items(&index, "p", &config());
    let sets = sets(&items);
    let set = |number: u16| &sets[&format!("PodSelectorNamedPort:n_LS{{}}:web:tcp:{number}:v4")];
    assert_eq!(sets.len(), 2);
    let expected = [80, 81].map(|n| format!("ip4.dst == {{{}}} && tcp && tcp.dst=={n}", set(n)));
    assert_eq!(matches(&items), expected);
    let members = pod_items(&Domain::cluster(&index.policies, &config()), &pods[0], &[], &index.namespaces);
    let set = RowKey::new(
        Table::AddressSet,
        "default-network-controller:PodSelectorNamedPort:n_LS{}:web:tcp:80:v4",
    );
    assert_eq!(members, [Item::text(&set, "addresses", "10.244.0.3")]);
}

#[test]
fn a_named_port_that_nobody_declares_opens_nothing() {
    let undeclared = pod("c", "10.244.0.5/24", &[], Some(("other", 80)));
    let items = items(&index(&[named_policy()], &[undeclared]), "p", &config());
    assert!(rows(&items, Table::Acl).is_empty());
}

#[test]
fn a_pod_with_a_new_number_makes_the_policy_dirty_and_one_with_a_known_number_does_not() {
    let mut index = index(&[named_policy()], &[pod("a", "10.244.0.3/24", &[], Some(("web", 80)))]);
    let unit = |name: &str| Unit::Pod(NamespacedName::new("n", name));
    let policy = Unit::Policy(NamespacedName::new("n", "p"));
    let same = index.apply_pod(pod("b", "10.244.0.4/24", &[], Some(("web", 80))));
    assert_eq!(same, Dirty::from([unit("b")]));
    let other = index.apply_pod(pod("c", "10.244.0.5/24", &[], Some(("web", 81))));
    assert_eq!(other, Dirty::from([unit("c"), policy.clone()]));
    assert_eq!(index.delete_pod(&NamespacedName::new("n", "a")), Dirty::from([unit("a")]));
    assert_eq!(index.delete_pod(&NamespacedName::new("n", "b")), Dirty::from([unit("b"), policy]));
}

#[test]
fn egress_to_a_named_port_keeps_selected_pods_and_blocks_apart() {
    let rule = json!({"ports": [{"port": "web"}],
        "to": [{"podSelector": {"matchLabels": {"app": "db"}}}, {"ipBlock": {"cidr": "10.244.9.0/24"}}]});
    let policy = policy("p", json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [rule]}));
    // Declares the name, but is neither selected nor in the block: must not be in any set that a match uses alone.
    let stranger = pod("s", "10.244.0.9/24", &[], Some(("web", 80)));
    let peer = pod("d", "10.244.0.3/24", &[("app", "db")], Some(("web", 80)));
    let items = items(&index(&[policy], &[stranger, peer]), "p", &config());
    let sets = sets(&items);
    let selected = &sets["PodSelectorNamedPort:n_LS{ML:{app: db,},}:web:tcp:80:v4"];
    let anywhere = &sets["PodSelectorNamedPort:any:web:tcp:80:v4"];
    assert_eq!(
        matches(&items),
        [
            format!("ip4.dst == {{{selected}}} && tcp && tcp.dst==80"),
            format!("ip4.dst == 10.244.9.0/24 && ip4.dst == {{{anywhere}}} && tcp && tcp.dst==80"),
        ]
    );
}

#[test]
fn rules_without_peers_name_the_families_that_pods_have() {
    let policy = policy("p", json!({"podSelector": {}, "ingress": [{}]}));
    let index = index(&[policy], &[]);
    assert_eq!(matches(&items(&index, "p", &config())), ["ip4"]);
    assert_eq!(matches(&items(&index, "p", &dual_stack())), ["(ip4 || ip6)"]);
}

#[test]
fn with_two_families_a_peer_has_two_sets_and_one_match() {
    let policy = policy("p", json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]}));
    let both = Pod {
        addresses: vec!["10.244.0.3/24".parse().unwrap(), "fd00:10:244::3/64".parse().unwrap()],
        ..pod("a", "10.244.0.3/24", &[], None)
    };
    let index = index(&[policy], std::slice::from_ref(&both));
    let items = items(&index, "p", &dual_stack());
    let sets = sets(&items);
    let (v4, v6) = (&sets["PodSelector:n_LS{}:v4"], &sets["PodSelector:n_LS{}:v6"]);
    assert_eq!(matches(&items), [format!("(ip4.src == {{{v4}}} || ip6.src == {{{v6}}})")]);
    let members = pod_items(&Domain::cluster(&index.policies, &config()), &both, &[], &index.namespaces);
    let key = |family: &str| {
        RowKey::new(Table::AddressSet, format!("default-network-controller:PodSelector:n_LS{{}}:{family}"))
    };
    assert_eq!(
        members,
        [
            Item::text(&key("v4"), "addresses", "10.244.0.3"),
            Item::text(&key("v6"), "addresses", "fd00:10:244::3")
        ]
    );
}

#[test]
fn several_peers_of_a_rule_are_one_acl_and_blocks_are_another() {
    let rule = json!({"from": [{"podSelector": {"matchLabels": {"a": "1"}}}, {"namespaceSelector": {}},
        {"ipBlock": {"cidr": "192.0.2.0/24"}}, {"ipBlock": {"cidr": "198.51.100.0/24"}}]});
    let policy = policy("p", json!({"podSelector": {}, "ingress": [rule]}));
    let items = items(&index(&[policy], &[]), "p", &config());
    let names: BTreeSet<String> = sets(&items).into_values().collect();
    let names: Vec<String> = names.into_iter().collect();
    assert_eq!(
        matches(&items),
        [
            format!("ip4.src == {{{}}}", names.join(", ")),
            "ip4.src == {192.0.2.0/24, 198.51.100.0/24}".to_owned(),
        ]
    );
}

#[test]
fn the_same_rule_twice_keeps_ids_unique() {
    let rule =
        json!({"from": [{"podSelector": {}}], "ports": [{"port": 80}, {"port": 80, "protocol": "UDP"}]});
    let policy = policy("p", json!({"podSelector": {}, "ingress": [rule, rule]}));
    let items = items(&index(&[policy], &[]), "p", &config());
    let ids: BTreeSet<&str> = rows(&items, Table::Acl).iter().map(|row| row.key.key.as_str()).collect();
    assert_eq!((ids.len(), rows(&items, Table::Acl).len()), (4, 4));
}

#[test]
fn a_set_shared_by_two_policies_stays_for_the_one_that_is_left() {
    let spec = json!({"podSelector": {"matchLabels": {"x": "1"}}, "ingress": [{"from": [{"podSelector": {"matchLabels": {"a": "1"}}}]}]});
    let peer = pod("a", "10.244.0.3/24", &[("a", "1")], None);
    let mut index = index(&[policy("p", spec.clone()), policy("q", spec)], std::slice::from_ref(&peer));
    let is_member = |index: &Index| {
        !pod_items(&Domain::cluster(&index.policies, &config()), &peer, &[], &index.namespaces).is_empty()
    };
    let dirty = index.delete_policy(&NamespacedName::new("n", "p"));
    assert!(!dirty.contains(&Unit::Pod(peer.name.clone())), "its memberships do not change: {dirty:?}");
    assert!(is_member(&index));
    assert_eq!(rows(&items(&index, "q", &config()), Table::AddressSet).len(), 1);
    let dirty = index.delete_policy(&NamespacedName::new("n", "q"));
    assert!(dirty.contains(&Unit::Pod(peer.name.clone())));
    assert!(!is_member(&index));
}

#[test]
fn a_new_pod_gets_isolation_with_its_port() {
    let index = index(&[policy("p", json!({"podSelector": {}, "policyTypes": ["Egress"]}))], &[]);
    let port = RowKey::new(Table::LogicalSwitchPort, "n_a");
    let subject = pod("a", "10.244.0.3/24", &[], None);
    let groups: BTreeSet<_> = pod_items(
        &Domain::cluster(&index.policies, &config()),
        &subject,
        std::slice::from_ref(&port),
        &index.namespaces,
    )
    .into_iter()
    .map(|item| {
        let Item::Edge(edge) = item else { panic!("{item:?}") };
        assert_eq!(edge.member, Member::Row(port.clone()));
        edge.owner.key
    })
    .collect();
    let of = |id: &str| port_group(&format!("default-network-controller:{id}")).key;
    assert_eq!(groups, BTreeSet::from([of("NetworkPolicy:n:p"), of("NetpolNamespace:n:Egress")]));
}

#[test]
fn a_namespace_without_policies_has_no_default_deny() {
    let mut index = index(&[policy("p", json!({"podSelector": {}}))], &[]);
    assert_eq!(
        rows(&namespace_items(&Domain::cluster(&index.policies, &config()), "n"), Table::PortGroup).len(),
        2
    );
    assert!(namespace_items(&Domain::cluster(&index.policies, &config()), "m").is_empty());
    index.delete_policy(&NamespacedName::new("n", "p"));
    assert!(namespace_items(&Domain::cluster(&index.policies, &config()), "n").is_empty());
}

#[test]
fn names_of_acls_are_cut_to_what_the_column_holds() {
    let long = "x".repeat(100);
    let policy = policy(&long, json!({"podSelector": {}, "ingress": [{}]}));
    let items = items(&index(&[policy], &[]), &long, &config());
    let name = rows(&items, Table::Acl)[0].columns["name"].as_str().unwrap().to_owned();
    assert_eq!(name, format!("NP:n:{}", "x".repeat(58)));
    assert_eq!(name.len(), 63);
}

#[test]
fn without_tiers_in_the_schema_no_acl_names_one() {
    let mut old = config();
    old.features.acl_tier = false;
    let index = index(&[policy("p", json!({"podSelector": {}, "ingress": [{}]}))], &[]);
    for (config, expected) in [(config(), true), (old, false)] {
        let mut all = items(&index, "p", &config);
        all.extend(namespace_items(&Domain::cluster(&index.policies, &config), "n"));
        let acls = rows(&all, Table::Acl);
        assert_eq!(acls.len(), 5);
        assert!(acls.iter().all(|acl| acl.columns.contains_key("tier") == expected));
    }
}

#[test]
fn a_namespace_label_moves_its_pods_between_sets() {
    let spec = json!({"podSelector": {}, "ingress": [{"from": [{"namespaceSelector": {"matchLabels": {"team": "red"}}}]}]});
    let mut index = index(&[policy("p", spec)], &[pod("a", "10.244.0.3/24", &[], None)]);
    let a = NamespacedName::new("n", "a");
    let is_member = |index: &Index| {
        !pod_items(&Domain::cluster(&index.policies, &config()), &index.pods[&a], &[], &index.namespaces)
            .is_empty()
    };
    assert!(!is_member(&index));
    let labels = BTreeMap::from([("team".to_owned(), "red".to_owned())]);
    assert_eq!(
        index.apply_namespace(Namespace { name: "n".into(), labels, ..Namespace::default() }),
        Dirty::from([Unit::Pod(a.clone())])
    );
    assert!(is_member(&index));
    assert_eq!(index.delete_namespace("n"), Dirty::from([Unit::Pod(a.clone())]));
    assert!(!is_member(&index));
}

fn host_node(name: &str, id: u32) -> Node {
    Node {
        name: name.to_owned(),
        id,
        subnets: vec![format!("10.244.{id}.0/24").parse().unwrap()],
        addresses: Vec::new(),
        chassis: None,
        gateway: None,
        gateway_unknown: false,
        host_cidrs: Vec::new(),
        userspace_tso: false,
        labels: BTreeMap::new(),
    }
}

fn host_namespace(labels: &[(&str, &str)]) -> Namespace {
    let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    Namespace { name: "hosts".to_owned(), labels: labels.collect(), ..Namespace::default() }
}

#[test]
fn nodes_become_peers_with_what_selects_their_namespace_and_only_then() {
    let takes = |name, labels: serde_json::Value| {
        let peer = json!({"namespaceSelector": {"matchLabels": labels}});
        policy(name, json!({"podSelector": {}, "ingress": [{"from": [peer]}]}))
    };
    let peers = |dirty: &Dirty| {
        let units = dirty.iter().filter_map(|unit| match unit {
            Unit::NodePeers(name) => Some(name.as_str()),
            _ => None,
        });
        units.collect::<Vec<_>>().join(" ")
    };
    let mut index = Index::default().with_host_network_namespace(Some("hosts".to_owned()));
    index.apply_namespace(host_namespace(&[("a", "1")]));
    assert_eq!(peers(&index.apply_node(host_node("n1", 2))), "n1");
    assert_eq!(peers(&index.apply_node(host_node("n2", 3))), "n2");
    // A change that does not concern its addresses.
    let labelled = Node { chassis: Some("c".to_owned()), ..host_node("n2", 3) };
    assert_eq!(peers(&index.apply_node(labelled)), "");
    assert_eq!(peers(&index.apply_node(host_node("n2", 4))), "n2");

    assert_eq!(peers(&index.apply_policy(takes("one", json!({"a": "1"})))), "n1 n2");
    assert_eq!(peers(&index.apply_policy(takes("same", json!({"a": "1"})))), "");
    assert_eq!(peers(&index.apply_policy(takes("other", json!({"b": "1"})))), "");
    assert_eq!(peers(&index.apply_namespace(host_namespace(&[("a", "1"), ("c", "1")]))), "");
    assert_eq!(peers(&index.apply_namespace(host_namespace(&[("a", "1"), ("b", "1")]))), "n1 n2");
    let other = Namespace {
        name: "n".to_owned(),
        labels: host_namespace(&[("a", "1")]).labels,
        ..Namespace::default()
    };
    assert_eq!(peers(&index.apply_namespace(other)), "");
    assert_eq!(peers(&index.delete_policy(&NamespacedName::new("n", "one"))), "");
    assert_eq!(peers(&index.delete_policy(&NamespacedName::new("n", "same"))), "n1 n2");
    assert_eq!(peers(&index.delete_namespace("hosts")), "n1 n2");
    assert_eq!(peers(&index.delete_node("n2")), "n2");
    assert!(index.units().contains(&Unit::NodePeers("n1".to_owned())));

    let mut without = Index::default();
    without.apply_namespace(host_namespace(&[("a", "1")]));
    without.apply_policy(takes("one", json!({"a": "1"})));
    assert_eq!(peers(&without.apply_node(host_node("n1", 2))), "");
    assert_eq!(peers(&without.units()), "");
}
